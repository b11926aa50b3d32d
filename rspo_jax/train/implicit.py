"""The implicit PRM of iStar and PRIME: a copy of the policy whose log-ratio to a reference is the reward of a token or step.

It is trained online, on the outcomes of the episodes that are played anyway. config.istar.reference is `old`, the policy that
played them (iStar), or `initial`, the frozen initial policy (PRIME).
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from rspo_jax import types
from rspo_jax.algorithms import advantages_istar, spans
from rspo_jax.report import summary
from rspo_jax.rollout import batching
from rspo_jax.train import session as sessions
from rspo_jax.updates import accumulate, implicit_prm

_token_rewards = jax.jit(advantages_istar.token_rewards)
_step_sum = jax.jit(spans.step_sum, static_argnames="shape")


def new_state(session: sessions.Session) -> types.TrainState:
    """The initial policy, at the start of training."""
    return accumulate.new_state(session.initial, _optimizer(session))


def make_step(session: sessions.Session):
    """The train step, see updates/implicit_prm.py."""
    return implicit_prm.make_implicit_prm_update(session.score, _optimizer(session), session.settings.istar)


def token_rewards(session: sessions.Session, state: types.TrainState, batch: types.TrajectoryBatch) -> np.ndarray:
    """beta (log pi_prm - log pi_ref) of each token of a padded batch, [R, L]; 0 until the PRM has been updated once, since
    before that there is nothing but the rounding noise of two equal models."""
    if int(state.updates) == 0:
        return np.zeros(batch.tokens.shape, np.float32)
    logp = sessions.token_logps(session, state.params, batch)
    return np.asarray(_token_rewards(logp, _reference(session, batch), batch.action_mask, session.settings.istar.beta))


def step_rewards(session: sessions.Session, state: types.TrainState, trajectories: Sequence[types.Trajectory]) -> np.ndarray:
    """Reward of each step (iStar eq. 1), [B, T]."""
    batch = batching.pad(trajectories, session.full_history)
    layout = spans.Layout(batch.action_mask, batch.trajectory, batch.step)
    return np.asarray(_step_sum(token_rewards(session, state, batch), layout, batching.step_mask(trajectories).shape))


def learn(session: sessions.Session, step, state: types.TrainState, trajectories: Sequence[types.Trajectory]):
    """One update on the outcomes of episodes. A success is a positive; without a pair of both nothing moves.

    Args:
        step: of make_step; it donates `state`.
        trajectories: without those that an environment error ended: they are neither success nor failure.

    Returns:
        state and metrics.
    """
    if not trajectories:
        return state, {"prm/terms": 0.0}
    batch = batching.pad(trajectories, session.full_history)
    batch.logp_ref[:] = _reference(session, batch)
    success = np.array([t.success for t in trajectories])
    mask = batching.step_mask(trajectories)
    mask = np.pad(mask, ((0, 0), (0, session.settings.data.max_steps - mask.shape[1])))  # always the same shape
    outcomes = implicit_prm.Outcomes(success, ~success, batching.group_index(trajectories), mask)
    microbatches = [sessions.place(session, part) for _, part in batching.split(batch, session.settings.microbatch)]
    state, metrics = step(state, microbatches, outcomes)
    rewards = np.asarray(metrics["step_rewards"])
    values = implicit_prm.summarize(metrics) | {
        "updates": int(state.updates), "success_return": summary.mean(rewards[success].sum(axis=1)),
        "failure_return": summary.mean(rewards[~success].sum(axis=1))}
    return state, {f"prm/{name}": value for name, value in values.items()}


def _reference(session, batch):
    """log pi_ref of each token, [R, L], at the rollout temperature."""
    if session.settings.istar.reference == "old":
        return batch.logp_behavior
    return sessions.token_logps(session, session.initial, batch)


def _optimizer(session):
    options = session.settings.istar
    shared = dataclasses.replace(session.settings.optimizer, max_grad_norm=options.max_grad_norm)
    return sessions.make_optimizer(shared, options.learning_rate)
