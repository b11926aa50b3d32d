"""The base algorithms: what each sets beside the GRPO of sections.base_algorithm. RSPO and iStar wrap them.

The epsilons and coefficients are those of the papers' rows as the public code runs them; algorithms.md 2.1 has the table.
"""

import math

from configs import sections


def grpo(config):
    """As sections.base_algorithm has it."""


def dr_grpo(config):
    """No division by the standard deviation, and no mean over lengths."""
    config.advantage.estimator = "dr_grpo"
    config.advantage.aggregation = "dr_grpo"


def rloo(config):
    config.advantage.estimator = "rloo"


def reinforce_pp(config):
    config.advantage.estimator = "reinforce_pp"


def reinforce_pp_baseline(config):
    """What iStar's tables call REINFORCE++."""
    config.advantage.estimator = "reinforce_pp_baseline"
    config.advantage.singleton = "raw"


def dapo(config):
    """Asymmetric clip, dynamic sampling, token mean; the soft punishment of long responses is off, as in verl-agent."""
    config.policy.epsilon_high = 0.28
    config.policy.dual_clip = 10.0
    config.advantage.aggregation = "token_mean"
    config.loop.keep_groups = "mixed"
    config.loop.sampling_tries = 10


def gspo(config):
    """Length-normalised ratios of whole rows, held very near 1."""
    config.policy.ratio = "row"
    config.policy.epsilon_low, config.policy.epsilon_high = 3e-4, 4e-4
    config.policy.dual_clip = math.inf
    config.advantage.aggregation = "row_mean"


def gigpo(config):
    """w/ std, as the public code runs ALFWorld; --config.advantage.gigpo.form=centered is w/o std."""
    config.advantage.estimator = "gigpo"



def ppo(config):
    """PPO with a critic. The public code plays groups of one; here the groups of the other bases, of which it sees nothing."""
    config.advantage.estimator = "gae"
    config.critic = sections.critic()


BASES = {each.__name__: each for each in (grpo, dr_grpo, rloo, reinforce_pp, reinforce_pp_baseline, dapo, gspo, gigpo, ppo)}
