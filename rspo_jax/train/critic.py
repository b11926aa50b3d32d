"""PPO's critic: a copy of the policy with a value head, advantages by GAE, and its own update beside the policy's.

| config.critic.level | one value for each | a return ends                                                                      |
| row                 | token              | with its row; what is paid later counts on the row's last token (the public code)  |
| trajectory          | token              | with the episode; observation tokens are skipped (with `full` history the same)    |
| turn                | step               | with the episode, or goes on behind the cap, see bootstrap_on_truncation           |

An explorer has a critic of its own, a copy of the agent's, that is fitted to the dense rewards and discarded with it.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax import types
from rspo_jax.algorithms import advantages_gae, masking, spans
from rspo_jax.models import decoder, heads
from rspo_jax.rollout import batching
from rspo_jax.train import session as sessions
from rspo_jax.updates import accumulate, critic

TRUNCATED = ("step_cap", "token_cap")


class Targets(NamedTuple):
    """What the critic is fitted to, over the padded batch of the episodes that its policy played."""

    batch: types.TrajectoryBatch
    fitted: np.ndarray  # [R, L] bool
    returns: np.ndarray  # [R, L]
    values: np.ndarray  # [R, L], before the update


def new_state(session: sessions.Session) -> types.TrainState:
    """The initial policy's decoder, and a head that expects nothing."""
    params = {"decoder": session.initial, "head": heads.init_value_head(session.model.hidden_size)}
    return accumulate.new_state(params, _optimizer(session))


def make_step(session: sessions.Session):
    """The train step of a critic, see updates/critic.py."""

    def value(params, tokens):
        return heads.values_before(params["head"], _states(params, tokens, session.model, session.settings.model.remat))

    return critic.make_critic_update(value, _optimizer(session), session.settings.critic)


def advantages(session: sessions.Session, params, trajectories: Sequence[types.Trajectory], batch: types.TrajectoryBatch,
               returns, step_rewards, penalty) -> tuple[np.ndarray, Targets]:
    """Whitened GAE advantages of all tokens of a batch, [R, L], and what to fit the critic to.

    Args:
        batch: batching.pad of the trajectories.
        step_rewards: [B, T], which sum to `returns`.
        penalty: [B, T], not negative.
    """
    options = session.settings.critic
    after = values_after(session, params, batch)
    truncated = np.array([options.bootstrap_on_truncation and t.termination in TRUNCATED for t in trajectories])
    layout = spans.Layout(batch.action_mask, batch.trajectory, batch.step)
    row_local = options.level == "row" and not session.full_history
    advantage, fitted, to_fit, values = (np.asarray(x) for x in _gae(
        after, step_rewards, penalty, batching.step_mask(trajectories), truncated, layout, row_local, options))
    return advantage, Targets(batch, fitted, to_fit, values)


def values_after(session: sessions.Session, params, batch: types.TrajectoryBatch) -> np.ndarray:
    """The value of the state behind each token, [R, L]."""
    parts = [(index, np.asarray(_values_after(params, sessions.place(session, part.tokens), session.model)))
             for index, part in batching.split(batch, session.settings.microbatch)]
    return batching.merge(parts, np.zeros(batch.tokens.shape, np.float32))


def update(session: sessions.Session, step, state: types.TrainState, targets: Targets, minibatches: Sequence[np.ndarray]):
    """One update of the critic, in the minibatches of the policy's. The mean runs over all fitted values of a minibatch.

    Returns:
        state and metrics.
    """
    history = []
    for rows in minibatches:
        part = batching.take(targets.batch, rows)
        fitted = targets.fitted[rows]
        values = critic.ValueBatch(part.tokens, part.action_mask, targets.returns[rows], targets.values[rows],
                                   (fitted / max(fitted.sum(), 1)).astype(np.float32))
        microbatches = [sessions.place(session, micro) for _, micro in batching.split(values, session.settings.microbatch)]
        state, metrics = step(state, microbatches)
        history.append(critic.summarize(metrics))
    return state, {f"critic/{name}": float(np.mean([values[name] for values in history])) for name in history[0]}


def _optimizer(session):
    return sessions.make_optimizer(session.settings.optimizer, session.settings.critic.learning_rate)


def _states(params, tokens, model, remat):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    return decoder.hidden(params["decoder"], model, tokens, positions, remat=remat)


@functools.partial(jax.jit, static_argnames="model")
def _values_after(params, tokens, model):
    return heads.values_after(params["head"], _states(params, tokens, model, False))


@functools.partial(jax.jit, static_argnames=("row_local", "options"))
def _gae(after, step_rewards, penalty, step_mask, truncated, layout, row_local, options):
    """Whitened advantages, which values are fitted, to what, and what they were; each [R, L]."""
    before = jnp.pad(after[:, :-1], ((0, 0), (1, 0)))
    if options.level == "turn":
        first, last = spans.first_tokens(layout), spans.last_tokens(layout)
        by_step = spans.step_sum(jnp.where(first, before, 0.0), layout, step_mask.shape)
        ends = spans.step_sum(jnp.where(last, after, 0.0), layout, step_mask.shape)
        final = jnp.take_along_axis(ends, jnp.maximum(jnp.sum(step_mask, axis=1) - 1, 0)[:, None], axis=1)[:, 0]
        advantage, returns = advantages_gae.turns(
            step_rewards - penalty, by_step, step_mask, final, truncated, options.gamma, options.lambda_)
        advantage, returns, fitted = spans.spread(advantage, layout), spans.spread(returns, layout), first
    else:
        if row_local:  # a row is a step: it is paid all that follows, less its own penalty alone
            step_rewards = spans.discounted_sum(step_rewards, spans.row_local(step_mask), 1.0)
        paid = spans.at_last_tokens(jnp.where(step_mask, step_rewards - penalty, 0.0), layout)
        carried = spans.row_local(layout.action_mask) if row_local else layout
        advantage, returns = advantages_gae.tokens(paid, before, carried, options.gamma, options.lambda_)
        fitted = layout.action_mask
    return masking.whiten(advantage, layout.action_mask), fitted, returns, before
