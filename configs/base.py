"""A base algorithm alone: what RSPO is laid beside, with everything else the same.

    rspo train --config=configs/base.py:alfworld --workdir=runs/grpo
    rspo train --config=configs/base.py:alfworld,gigpo --workdir=runs/gigpo
"""

from configs import variants


def get_config(arg: str = "alfworld"):
    """arg: an environment of variants.ENVIRONMENTS, then optionally a base of bases.BASES, then optionally `smoke`."""
    config = variants.build(arg)
    if "smoke" not in arg:
        # The episodes that configs/rspo.py plays for its 24 updates: a PRM's 512, and 8 loops of 3 * 112 + 128 + 3 * 112.
        config.loop.updates, config.evaluation.every = 54, 27
    return config
