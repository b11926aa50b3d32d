"""From played episodes to an updated policy: advantages, weights, minibatches, the update, and its metrics."""

import time
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from rspo_jax import types
from rspo_jax.algorithms import advantages, masking
from rspo_jax.report import summary
from rspo_jax.rollout import batching, replay
from rspo_jax.train import session as sessions
from rspo_jax.updates import policy

SAMPLE = 4  # trajectories of each tick that the report can show


def outcome_advantages(session: sessions.Session, trajectories: Sequence[types.Trajectory]) -> np.ndarray:
    """Advantage of each step by its episode's outcome against its group, [B, T] (algorithms/advantages.py)."""
    return _relative(session, trajectories, np.array([t.outcome for t in trajectories], np.float32))


def dense_advantages(session: sessions.Session, trajectories: Sequence[types.Trajectory]) -> np.ndarray:
    """Advantage of each step by the process rewards, [B, T]; the outcome is not looked at (RSPO, phase 1)."""
    rewards, mask = batching.step_array(trajectories, "dense_reward"), batching.step_mask(trajectories)
    if session.settings.rspo.dense_advantage == "process":
        return np.asarray(advantages.process(jnp.asarray(rewards), jnp.asarray(mask), batching.group_index(trajectories)))
    return _relative(session, trajectories, rewards.sum(axis=1))


def _relative(session, trajectories, returns):
    options = session.settings.advantage
    invalid = ~batching.step_array(trajectories, "well_formed", bool)
    scores = advantages.step_scores(jnp.asarray(returns), jnp.asarray(invalid), options.invalid_penalty)
    return np.asarray(advantages.group_relative(
        scores, jnp.asarray(returns), jnp.asarray(batching.step_mask(trajectories)),
        jnp.asarray(batching.group_index(trajectories)), options.statistics, options.singleton))


def update(session: sessions.Session, step: Callable, state: types.TrainState, trajectories: Sequence[types.Trajectory],
           advantage: np.ndarray, replayed: Sequence[replay.Item] = ()):
    """One update of a policy on its own episodes, and on replayed ones where there are any (RSPO eq. 1).

    An episode that an environment error ended says nothing about the policy: it is counted, and not trained on.

    Args:
        step: update function of updates/policy.py; it donates `state`.
        advantage: [B, T] of the own trajectories.

    Returns:
        state and metrics.
    """
    began = time.perf_counter()
    batch = mixed_batch(session, state.params, trajectories, advantage, replayed)
    parts = split_minibatches(session, batch, trajectories)
    history = []
    for rows in parts:
        microbatches = [sessions.place(session, part)
                        for _, part in batching.split(_weighted(session, _take(batch, rows)), session.settings.microbatch)]
        state, values = step(state, microbatches)
        history.append(policy.summarize(values))
    result = {name: summary.mean(values[name] for values in history) for name in history[0]} if history else {}
    if history:
        result["ratio_max"] = max(values["ratio_max"] for values in history)
        result["skipped_updates"] = sum(values["skipped_updates"] for values in history)
    return state, result | {"replayed": len(replayed), "seconds/update": time.perf_counter() - began}


def mixed_batch(session, params, trajectories, advantage, replayed) -> types.TrajectoryBatch:
    """All rows of an update, with advantages and the three log-probs of each token; weights are still 0."""
    kept = [index for index, t in enumerate(trajectories) if not t.termination.startswith("error")]
    everything = [trajectories[index] for index in kept] + [item.trajectory for item in replayed]
    lines = [advantage[index] for index in kept] + [item.advantage for item in replayed]
    values = np.zeros((len(lines), max((len(line) for line in lines), default=1)), np.float32)
    for index, line in enumerate(lines):
        values[index, : len(line)] = line
    batch = batching.pad(everything, session.full_history)
    batch.advantage[:] = batching.spread(values, batch)
    batch.off_policy[:] = batch.trajectory >= len(kept)
    if replayed:  # on-policy, the sampling weights are the old weights
        old = sessions.token_logps(session, params, _take(batch, batch.off_policy))
        batch.logp_old[batch.off_policy] = old
    if session.settings.policy.kl_coef > 0:
        batch.logp_ref[:] = sessions.token_logps(session, session.initial, batch)
    return batch


def split_minibatches(session, batch, trajectories) -> list[np.ndarray]:
    """Rows of each minibatch. Whole trajectories are dealt out in turn, on-policy and off-policy ones apart, so that every
    minibatch holds the same share of off-policy data."""
    count = session.settings.loop.minibatches
    first_off = batch.trajectory[batch.off_policy].min(initial=len(trajectories))
    turn = np.where(batch.off_policy, batch.trajectory - first_off, batch.trajectory) % count
    parts = [np.flatnonzero(turn == number) for number in range(count)]
    return [rows for rows in parts if len(rows)]


def _weighted(session, batch):
    """Weights of the on-policy and the off-policy term, (1 - alpha) and alpha; 1 where one of them has no tokens."""
    alpha = session.settings.rspo.off_policy_fraction if session.settings.rspo else 0.0
    length = session.settings.sampler.max_tokens
    off = batch.action_mask & batch.off_policy[:, None]
    on = batch.action_mask & ~batch.off_policy[:, None]
    alpha = alpha if on.any() and off.any() else float(off.any())
    # The trajectories of a minibatch, renumbered from 0 as aggregation_weights counts them.
    trajectory = np.unique(batch.trajectory, return_inverse=True)[1].astype(np.int32)
    for mask, share in ((on, 1 - alpha), (off, alpha)):
        weight = masking.aggregation_weights(jnp.asarray(mask), jnp.asarray(trajectory),
                                             session.settings.advantage.aggregation, length)
        batch.weight[:] += share * np.asarray(weight)
    return batch


def _take(batch, rows):
    arrays = {name: values[rows].copy() for name, values in vars(batch).items()}
    return types.TrajectoryBatch(**arrays)


def divergence(session: sessions.Session, params, trajectories: Sequence[types.Trajectory]) -> dict[str, float]:
    """How far the policy that sampled has moved from `params`: mean log-ratio (an estimate of the KL) and its largest value."""
    batch = batching.pad(trajectories, session.full_history)
    gap = (batch.logp_behavior - sessions.token_logps(session, params, batch))[batch.action_mask]
    return {"kl_from_agent": summary.mean(gap), "log_ratio_max": float(np.abs(gap).max(initial=0.0))}


def record(session: sessions.Session, kind: str, tick: int, progress: sessions.Progress, rollout, metrics, began: float) -> None:
    """Logs one tick of a loop with the metrics of its episodes, and keeps a few of them for the report."""
    values = rollout_metrics(session, progress, rollout) | metrics
    session.run.log(tick, kind, values | {"seconds/total": time.perf_counter() - began})
    session.run.write_trajectories(tick, kind, rollout.trajectories[:: session.settings.loop.group_size][:SAMPLE])


def rollout_metrics(session: sessions.Session, progress: sessions.Progress, rollout) -> dict[str, float]:
    """Metrics of freshly played episodes."""
    trajectories = rollout.trajectories
    gaps = np.concatenate([np.abs(s.logp_sampler - s.logp_behavior) for t in trajectories for s in t.steps] or [np.zeros(1)])
    groups = {t.group: set() for t in trajectories}
    for t in trajectories:
        groups[t.group].add(t.outcome)
    return summary.rollout_summary(trajectories, session.task_types) | {
        "updates": progress.updates, "episodes": progress.episodes, "loop": progress.loop,
        "logp_gap": float(gaps.mean()), "logp_gap_max": float(gaps.max()),
        "zero_variance_groups": summary.mean(len(outcomes) == 1 for outcomes in groups.values()),
        **{f"seconds/{name}": value for name, value in rollout.seconds.items()},
    }
