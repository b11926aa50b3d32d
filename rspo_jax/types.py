"""The data of rspo_jax: trajectories on the host, batches and train states on the device.

Axis legend, used in every docstring: B trajectories, R rows, G groups, N members of a group, T steps, L tokens,
V vocabulary; d model width, h heads, k key/value heads, g queries per key/value head, c head width, f mlp, s cache
positions.

A *step* is one interaction with the environment. A *row* is one padded token context with one or more action spans:
with `history: full` a trajectory is one row, with `history: window(n)` each of its steps is a row. A token is an
*action token* when the policy sampled it; only action tokens are trained on.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Step:
    """One interaction: what the policy read, what it sampled, and what the environment made of it.

    prompt_tokens are the ids that the policy read in this step and that no earlier step of the same row holds: with
    `full` history the new environment text only, with `window` the whole prompt. They are never sampled ids.
    response_tokens are exactly the sampled ids, the stop token included when one was sampled.
    """

    observation: str
    response: str
    action: str
    prompt_tokens: np.ndarray  # [L_prompt] int32
    response_tokens: np.ndarray  # [L_response] int32
    logp_sampler: np.ndarray  # [L_response] float32, the sampler's own log-probs, for the mismatch metric only
    logp_behavior: np.ndarray  # [L_response] float32, recomputed by the trainer with the sampling weights
    well_formed: bool  # the response could be parsed
    admissible: bool  # the action is among those that the environment offered
    outcome_reward: float  # the environment's own reward
    dense_reward: float  # the process reward; nan where nobody scored the step


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One episode, from reset to its end, with everything that is needed to train on it or to look at it later."""

    task_id: str
    task_type: str
    task: str  # the goal in words
    group: int  # episodes of one group play the same task with the same environment seed
    seed: int
    policy: str  # who sampled: "agent", "explorer" or "expert"
    update: int  # update counter of the weights that sampled
    steps: tuple[Step, ...]
    outcome: float  # in [0, 1]
    success: bool  # the environment's own verdict, not `done`
    termination: str  # "success", "failure", "step_cap", "token_cap" or "error: <kind>"
    seconds: float


_STEP_ARRAYS = {"prompt_tokens": np.int32, "response_tokens": np.int32, "logp_sampler": np.float32, "logp_behavior": np.float32}


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as plain lists, numbers and strings, from which `trajectory_from_json` makes the same one to the bit."""
    plain = dataclasses.asdict(trajectory)
    plain["steps"] = list(plain["steps"])
    for step in plain["steps"]:
        for name, dtype in _STEP_ARRAYS.items():
            if step[name].dtype != dtype:
                raise TypeError(f"{name} of {trajectory.task_id} is {step[name].dtype}; it must be {np.dtype(dtype)}.")
            step[name] = step[name].tolist()
    return plain


def trajectory_from_json(plain: Mapping[str, Any]) -> Trajectory:
    """The trajectory that `trajectory_to_json` wrote."""
    steps = []
    for step in plain["steps"]:
        arrays = {name: np.array(step[name], dtype) for name, dtype in _STEP_ARRAYS.items()}
        steps.append(Step(**{**step, **arrays}))
    return Trajectory(**{**plain, "steps": tuple(steps)})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrajectoryBatch:
    """R rows on the device. Rows are padded on the right; padding has mask False, weight 0 and finite values."""

    tokens: jax.Array  # [R, L] int32
    action_mask: jax.Array  # [R, L] bool, tokens that the policy sampled
    step: jax.Array  # [R, L] int32, the step that an action token belongs to
    trajectory: jax.Array  # [R] int32, index of the row's trajectory among the B of the whole batch
    off_policy: jax.Array  # [R] bool, harvested by the explorer
    advantage: jax.Array  # [R, L]
    weight: jax.Array  # [R, L], share of each token in the objective; the aggregation mode, as data
    logp_old: jax.Array  # [R, L], the agent before this update
    logp_behavior: jax.Array  # [R, L], the policy that sampled; equal to logp_old on-policy
    logp_ref: jax.Array  # [R, L], the frozen reference; read only where config.policy.kl_coef is positive


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """What one optimiser moves. `updates` counts applied updates; an update that is skipped does not count."""

    params: Any
    opt_state: Any
    updates: jax.Array  # [] int32


def with_dense_rewards(trajectories: Sequence[Trajectory], rewards: np.ndarray) -> list[Trajectory]:
    """The trajectories with rewards[i, t] as the dense reward of their steps; rewards is [B, T]."""
    scored = []
    for trajectory, line in zip(trajectories, rewards, strict=True):
        steps = (dataclasses.replace(step, dense_reward=float(line[t])) for t, step in enumerate(trajectory.steps))
        scored.append(dataclasses.replace(trajectory, steps=tuple(steps)))
    return scored
