"""GRPO, the base algorithm alone: what RSPO is laid beside, with everything else the same.

    rspo train --config=configs/grpo.py:alfworld --workdir=runs/grpo
"""

from configs import variants


def get_config(arg: str = "alfworld"):
    """arg: an environment of variants.ENVIRONMENTS, then optionally `smoke`."""
    config = variants.build(arg)
    if "smoke" not in arg:
        # The episodes that configs/rspo.py plays for its 24 updates: a PRM's 512, and 8 loops of 3 * 56 + 64 + 3 * 56.
        config.loop.updates = 58
        config.evaluation.every = 29
    return config
