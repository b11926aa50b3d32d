"""A base algorithm alone: what RSPO is laid beside, with everything else the same.

    rspo train --config=configs/base.py:alfworld --workdir=runs/grpo
    rspo train --config=configs/base.py:alfworld,gigpo --workdir=runs/gigpo
"""

from configs import variants


def get_config(arg: str = "alfworld"):
    """arg: an environment of variants.ENVIRONMENTS, then optionally a base of bases.BASES, then optionally `smoke`."""
    return variants.build(arg)
