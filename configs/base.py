"""A base algorithm alone, with the budget of configs/grpo.py.

    rspo train --config=configs/base.py:alfworld,gigpo --workdir=runs/gigpo
"""

from configs import variants


def get_config(arg: str = "alfworld"):
    """arg: an environment of variants.ENVIRONMENTS, then optionally a base of bases.BASES, then optionally `smoke`."""
    config = variants.build(arg)
    if "smoke" not in arg:
        config.loop.updates = 58  # see configs/grpo.py
        config.evaluation.every = 29
    return config
