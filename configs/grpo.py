"""GRPO, the base algorithm alone: what RSPO is laid beside, with everything else the same.

    rspo train --config=configs/grpo.py:alfworld --workdir=runs/grpo
"""

from configs import variants


def get_config(arg: str = "alfworld"):
    """arg: an environment of variants.ENVIRONMENTS, then optionally `smoke`."""
    return variants.build(arg, rspo=None)
