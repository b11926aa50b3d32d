"""SPEAR on its base, Dr.BoT, over the estimator of GRPO without std or of GiGPO.

    rspo train --config=configs/spear.py:alfworld --workdir=runs/spear
    rspo train --config=configs/spear.py:alfworld,gigpo --workdir=runs/spear-gigpo
"""

from configs import sections, variants


def get_config(arg: str = "alfworld"):
    """arg: an environment of variants.ENVIRONMENTS, then optionally `gigpo`, then optionally `smoke`."""
    config = variants.build(arg, spear=sections.spear())
    config.advantage.gigpo.form = "centered"
    if "gigpo" not in arg:
        config.advantage.estimator = "dr_grpo"
    config.advantage.aggregation = "sum_over_length"
    config.policy.epsilon_high = 0.28
    config.policy.dual_clip = config.policy.off_dual_clip = 10.0
    config.policy.clip = "standard"  # replay is clipped around its own log-probs
    config.loop.keep_groups = "widest"
    return config
