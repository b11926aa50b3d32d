"""RSPO's dense signal: step rewards from the regression PRM, from the environment itself, or from an implicit PRM.

| config.rspo.dense_signal | reward of a step                                                                     |
| regression_prm           | r_hat of a head that was trained once, before the loop (RSPO eq. 5, train/prm.py)    |
| implicit_prm             | beta (log pi_prm - log pi_ref), learned from what is played (iStar eq. 1, implicit.py) |
| environment              | the environment's own reward                                                         |
| none                     | nobody scores: for config.rspo.arm=own_replay                                        |
"""

from collections.abc import Sequence

import numpy as np

from rspo_jax import types
from rspo_jax.rollout import batching
from rspo_jax.train import implicit, prm
from rspo_jax.train import session as sessions


def load(session: sessions.Session):
    """What `score` needs, trained first where it has to be, and the episodes and env_steps that this has cost."""
    if session.settings.rspo.dense_signal == "regression_prm":
        head, result = prm.load_or_train(session)
        return head, {name: result[name] for name in ("episodes", "env_steps")}
    signal = implicit.new_state(session) if session.settings.rspo.dense_signal == "implicit_prm" else None
    return signal, {"episodes": 0, "env_steps": 0}


def make_step(session: sessions.Session):
    """The train step of a signal that learns on the way; None for the others."""
    return implicit.make_step(session) if session.settings.rspo.dense_signal == "implicit_prm" else None


def learn(session: sessions.Session, step, signal, trajectories: Sequence[types.Trajectory]):
    """The signal after what it learns from the outcomes of episodes, and metrics. step: of make_step."""
    return (signal, {}) if step is None else implicit.learn(session, step, signal, trajectories)


def arrays(step, signal) -> dict:
    """What a checkpoint must hold of the signal."""
    return {} if step is None else {"prm": signal}


def score(session: sessions.Session, signal, trajectories: Sequence[types.Trajectory], noise_seed: int) -> list[types.Trajectory]:
    """The trajectories with the dense reward of each step, plus N(0, config.rspo.reward_noise)."""
    if session.settings.rspo.dense_signal == "regression_prm":
        rewards = prm.step_rewards(session, signal, trajectories)
    elif session.settings.rspo.dense_signal == "implicit_prm":
        rewards = implicit.step_rewards(session, signal, trajectories)
    elif session.settings.rspo.dense_signal == "none":
        return list(trajectories)
    else:
        rewards = batching.step_array(trajectories, "outcome_reward")
    rng = np.random.default_rng([session.settings.seed, sessions.REWARD_NOISE, noise_seed])
    return types.with_dense_rewards(trajectories, rewards + session.settings.rspo.reward_noise * rng.normal(size=rewards.shape))
