"""Which advantage each sampled token gets: the one place where config.advantage.estimator is read.

| estimator            | advantage of a step or token                                     | algorithms/              |
| grpo                 | z-score against the group (GRPO, DAPO, GSPO)                     | advantages.py            |
| dr_grpo              | centred on the group (Dr.GRPO, with aggregation `dr_grpo`)       | advantages.py            |
| rloo                 | against the other members of the group                           | advantages.py            |
| gigpo                | grpo or dr_grpo, plus omega times the anchor groups' comparison  | advantages_gigpo.py      |
| reinforce_pp         | return from here on, whitened over the tokens of the batch       | advantages_reinforce.py  |
| reinforce_pp_baseline | centred on the group, whitened over the tokens of the batch     | advantages_reinforce.py  |
| gae                  | by a critic (PPO), see train/critic.py                           | advantages_gae.py        |

The rewards are the outcomes, or the dense rewards alone (RSPO's phase 1). An advantage travels as one array a trajectory, with
an entry for each of its sampled tokens in their order: that is the same in both prompt layouts, and fits a replay buffer.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from rspo_jax import types
from rspo_jax.algorithms import (
    advantages,
    advantages_gigpo,
    advantages_reinforce,
    anchors,
    filtering,
    spans,
)
from rspo_jax.rollout import batching
from rspo_jax.train import critic as critics
from rspo_jax.train import session as sessions

process = jax.jit(advantages.process)


class Rewards(NamedTuple):
    """What trajectories were paid."""

    returns: np.ndarray  # [B]
    steps: np.ndarray  # [B, T]


class Estimated(NamedTuple):
    """The advantage of each sampled token of each trajectory, and what the critic is to learn, where there is one."""

    tokens: list[np.ndarray]
    targets: critics.Targets | None


class Compared(NamedTuple):
    """What an estimator sees of a batch."""

    returns: jax.Array  # [B]
    rewards: jax.Array  # [B, T]
    penalty: jax.Array  # [B, T], not negative; of malformed and overlong responses, on their own step alone
    step_mask: jax.Array  # [B, T] bool
    group: jax.Array  # [B] int32
    anchor: jax.Array  # [B, T] int32; all 0 where the estimator does not look at it
    layout: spans.Layout


def outcome_rewards(trajectories: Sequence[types.Trajectory]) -> Rewards:
    """The environment's verdict on the episode, and its own step rewards (GiGPO eq. 5; PPO's and REINFORCE++'s returns)."""
    return Rewards(np.array([t.outcome for t in trajectories], np.float32), batching.step_array(trajectories, "outcome_reward"))


def dense_rewards(trajectories: Sequence[types.Trajectory]) -> Rewards:
    """The process rewards and their sums; the outcome is not looked at."""
    steps = batching.step_array(trajectories, "dense_reward")
    return Rewards(steps.sum(axis=1), steps)


def outcome_advantages(session: sessions.Session, trajectories: Sequence[types.Trajectory], critic=None) -> Estimated:
    """Advantages by the outcomes. critic: its TrainState, for the estimator `gae`."""
    return of_rewards(session, trajectories, outcome_rewards(trajectories), critic)


def dense_advantages(session: sessions.Session, trajectories: Sequence[types.Trajectory], critic=None) -> Estimated:
    """Advantages by the dense rewards (RSPO, phase 1): by the base's own estimator, or by process supervision."""
    rewards = dense_rewards(trajectories)
    if trajectories and session.settings.rspo.dense_advantage == "process":
        steps = rewards.steps - penalties(session.settings, trajectories)
        values = process(steps, batching.step_mask(trajectories), batching.group_index(trajectories))
        return Estimated(per_token(trajectories, np.asarray(values)), None)
    return of_rewards(session, trajectories, rewards, critic)


def of_rewards(session: sessions.Session, trajectories: Sequence[types.Trajectory], rewards: Rewards, critic=None) -> Estimated:
    """Advantages by config.advantage.estimator."""
    if not trajectories:
        return Estimated([], None)
    batch = batching.pad(trajectories, session.full_history)
    rewards = less_kl(session, trajectories, batch, rewards)
    if critic is not None:
        penalty = penalties(session.settings, trajectories)
        values, targets = critics.advantages(session, critic.params, trajectories, batch, *rewards, penalty)
        return Estimated(split(trajectories, batch, values), targets)
    return Estimated(split(trajectories, batch, token_advantages(session, trajectories, batch, rewards)), None)


def token_advantages(session: sessions.Session, trajectories, batch: types.TrajectoryBatch, rewards: Rewards) -> np.ndarray:
    """Advantages of all tokens of a padded batch, [R, L], by an estimator without a critic."""
    return np.asarray(_estimate(compare(session, trajectories, batch, rewards), session.settings.advantage))


def compare(session: sessions.Session, trajectories, batch: types.TrajectoryBatch, rewards: Rewards) -> Compared:
    """The batch as estimators see it."""
    group = batching.group_index(trajectories)
    options = session.settings.advantage
    anchor = np.zeros(rewards.steps.shape, np.int32)
    if options.estimator == "gigpo":
        seen = [[step.observation for step in t.steps] for t in trajectories]
        exact = options.gigpo.anchor_similarity == 1
        ids = anchors.exact(seen, group) if exact else anchors.similar(seen, group, options.gigpo.anchor_similarity)
        for index, line in enumerate(ids):
            anchor[index, : len(line)] = line
    return Compared(rewards.returns, rewards.steps, penalties(session.settings, trajectories), batching.step_mask(trajectories),
                    group, anchor, spans.Layout(batch.action_mask, batch.trajectory, batch.step))


def penalties(settings, trajectories: Sequence[types.Trajectory]) -> np.ndarray:
    """What each step's own response costs it, [B, T]: malformed ones, and overlong ones (DAPO's soft punishment)."""
    options = settings.advantage
    mask = batching.step_mask(trajectories)
    cost = options.invalid_penalty * (mask & ~batching.step_array(trajectories, "well_formed", bool))
    if options.overlong.factor:
        lengths = np.zeros(mask.shape, np.float32)
        lengths[mask] = [len(step.response_tokens) for t in trajectories for step in t.steps]
        cost = cost - np.asarray(filtering.overlong_penalty(lengths, settings.sampler.max_new_tokens, options.overlong.buffer,
                                                            options.overlong.factor))
    return cost.astype(np.float32)


def less_kl(session: sessions.Session, trajectories, batch: types.TrajectoryBatch, rewards: Rewards) -> Rewards:
    """The rewards less config.advantage.kl_coef (log pi_old - log pi_ref), summed over each step's tokens (k1, no gradient)."""
    coef = session.settings.advantage.kl_coef
    if not coef:
        return rewards
    gap = batch.logp_behavior - sessions.token_logps(session, session.initial, batch)
    cost = coef * np.asarray(_step_sum(gap, spans.Layout(batch.action_mask, batch.trajectory, batch.step), rewards.steps.shape))
    return Rewards(rewards.returns - cost.sum(axis=1), rewards.steps - cost)


def per_token(trajectories: Sequence[types.Trajectory], values: np.ndarray) -> list[np.ndarray]:
    """Step values, [B, T], repeated for each sampled token of the step."""
    lengths = ([len(step.response_tokens) for step in t.steps] for t in trajectories)
    return [np.repeat(line[: len(counts)], counts) for line, counts in zip(values, lengths, strict=True)]


def split(trajectories: Sequence[types.Trajectory], batch: types.TrajectoryBatch, values: np.ndarray) -> list[np.ndarray]:
    """The entries of token values, [R, L], at each trajectory's sampled tokens."""
    counts = [sum(len(step.response_tokens) for step in t.steps) for t in trajectories]
    return np.split(values[batch.action_mask], np.cumsum(counts)[:-1])


def returns_to_go(rewards, penalty, step_mask):
    """Rewards, [B, T], whose running sum from any step on is the rest of the return less that step's own penalty alone."""
    following = jax.numpy.pad(penalty[:, 1:], ((0, 0), (0, 1)))
    return jax.numpy.where(step_mask, rewards - penalty + following, 0.0)


@functools.partial(jax.jit, static_argnames="options")
def _estimate(compared, options):
    """Advantages of all tokens of a batch, [R, L]; options are config.advantage."""
    returns, rewards, penalty, step_mask, group, anchor, layout = compared
    scores = advantages.step_scores(returns, penalty, 1.0)
    rest = (scores, returns, step_mask, group, options.statistics, options.singleton)
    if options.estimator == "grpo":
        steps = advantages.group_relative(*rest)
    elif options.estimator == "dr_grpo":
        steps = advantages.group_centered(*rest)
    elif options.estimator == "rloo":
        steps = advantages.leave_one_out(*rest)
    elif options.estimator == "gigpo":
        own = options.gigpo
        episode = advantages.group_relative if own.form == "z_score" else advantages.group_centered
        to_go = advantages_gigpo.step_returns(rewards, penalty, step_mask, own.gamma, 1.0)
        visits = advantages_gigpo.step_advantage(to_go, anchor, step_mask, own.form)
        steps = advantages_gigpo.combine(episode(*rest), visits, own.omega)
    elif options.estimator == "reinforce_pp":
        paid = spans.at_last_tokens(returns_to_go(rewards, penalty, step_mask), layout)
        return advantages_reinforce.reinforce_pp(paid, layout, 1.0)
    elif options.estimator == "reinforce_pp_baseline":
        return advantages_reinforce.whitened_baseline(advantages.group_centered(*rest), layout)
    return spans.spread(steps, layout)


_step_sum = jax.jit(spans.step_sum, static_argnames="shape")
