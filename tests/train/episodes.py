"""Made-up episodes, and a session without a model, for what the loops compute between playing and updating."""

import dataclasses
import types as python_types

import numpy as np

from configs import sections
from rspo_jax import types
from rspo_jax.train import options as run_options
from rspo_jax.train import settings as run_settings


def episode(group, outcome, steps=2, termination=None, tokens=3, dense=0.0, observations=None):
    """An episode of equal steps of `tokens` sampled tokens; a success is paid in the last one. tokens: one number, or one a
    step."""
    tokens = [tokens] * steps if isinstance(tokens, int) else tokens
    made = tuple(
        types.Step(observations[t] if observations else f"see {t}", "say", "do", np.arange(1, 3, dtype=np.int32),
                   np.arange(n, dtype=np.int32), np.full(n, -1, np.float32), np.full(n, -1, np.float32), True, True,
                   outcome if t == len(tokens) - 1 else 0.0, dense)
        for t, n in enumerate(tokens))
    return types.Trajectory(f"game {group}", "pick", "do it", group, 0, "agent", 0, made, outcome, outcome == 1.0,
                            termination or ("success" if outcome else "failure"), 0.1)


def malformed(trajectory, step):
    """The episode with a malformed response in one step."""
    steps = list(trajectory.steps)
    steps[step] = dataclasses.replace(steps[step], well_formed=False)
    return dataclasses.replace(trajectory, steps=tuple(steps))


def settings(alpha=0.25, replay="reward", dense_advantage="sum", **advantage):
    """The sections that are read without a model; `advantage` replaces options of config.advantage."""
    raw = sections.base_algorithm().advantage.to_dict() | advantage
    space = python_types.SimpleNamespace
    return space(
        seed=0, off_policy_episodes=4, sampler=space(max_tokens=16, max_new_tokens=8), loop=space(minibatches=2),
        advantage=run_settings.build(run_options.Advantage, raw, "config.advantage"),
        rspo=space(off_policy_fraction=alpha, replay=replay, dense_advantage=dense_advantage))


def opened(full_history=True, **options):
    return python_types.SimpleNamespace(settings=settings(**options), full_history=full_history)
