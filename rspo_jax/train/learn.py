"""From episodes and their advantages to an updated policy: weights, minibatches, the update, and its metrics."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

from rspo_jax import types
from rspo_jax.algorithms import masking
from rspo_jax.report import summary
from rspo_jax.rollout import batching, collect, replay
from rspo_jax.train import critic as critics
from rspo_jax.train import estimate
from rspo_jax.train import session as sessions
from rspo_jax.updates import accumulate, policy

SAMPLE = 4  # trajectories of each tick that the report can show
GAMED_ALARM = 2  # times in a row that the dense return rises while success falls
LOGP_GAP_ALARM = 0.05  # largest difference between the sampler's and the trainer's log-prob of a token


_token_weights = jax.jit(masking.aggregation_weights, static_argnames=("aggregation", "max_length"))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Learner:
    """A policy in training, the agent or the explorer, and its critic where the estimator is `gae`."""

    policy: types.TrainState
    critic: types.TrainState | None


@dataclasses.dataclass(frozen=True)
class Step:
    """The train steps of a Learner, see updates/accumulate.py; they donate what they move."""

    policy: Callable
    critic: Callable | None


def new_learner(session: sessions.Session) -> Learner:
    """The initial policy at the start of training."""
    optimizer = sessions.make_optimizer(session.settings.optimizer, session.settings.optimizer.learning_rate)
    critic = critics.new_state(session) if session.settings.critic else None
    return Learner(accumulate.new_state(session.initial, optimizer), critic)


def make_steps(session: sessions.Session, *learning_rates: float) -> list[Step]:
    """The train steps for each learning rate of a policy; they share what is compiled for the gradient."""
    gradient = policy.make_policy_gradient(session.score, session.settings.policy)
    optimizers = [sessions.make_optimizer(session.settings.optimizer, rate) for rate in learning_rates]
    critic = critics.make_step(session) if session.settings.critic else None
    return [Step(accumulate.make_update(gradient, optimizer), critic) for optimizer in optimizers]


def update(session: sessions.Session, step: Step, learner: Learner, trajectories: Sequence[types.Trajectory],
           estimated: estimate.Estimated, replayed: Sequence[replay.Item] = (), clip_cov: Callable | None = None,
           weight: float = 1.0):
    """One update of a policy on its own episodes, and on replayed ones where there are any (RSPO eq. 1).

    Args:
        step: of make_steps; it donates the learner.
        trajectories: played with the learner, and not ended by an environment error.
        estimated: of these trajectories.
        clip_cov: (settings, batch) -> None, takes tokens out of the objective, see covariance_clip.
        weight: of the whole objective.

    Returns:
        learner and metrics.
    """
    began = time.perf_counter()
    state = learner.policy
    batch = mixed_batch(session, state.params, trajectories, estimated.tokens, replayed)
    if clip_cov is not None:
        clip_cov(session.settings, batch)
    alpha = off_policy_share(session.settings, len(replayed))
    history = []
    minibatches = split_minibatches(batch, session.settings.loop.minibatches)
    for rows in minibatches:
        part = moving(weighted(batching.take(batch, rows), alpha, session.settings), session.settings.policy)
        if not len(part.tokens):
            continue
        part.weight[:] *= weight
        microbatches = [sessions.place(session, micro) for _, micro in batching.split(part, session.settings.microbatch)]
        state, values = step.policy(state, microbatches)
        history.append(policy.summarize(values))
    if not history:
        session.run.note("an update moved nothing: all episodes of each group ended alike, were left out, or ended with an error")
    metrics = {name: summary.mean(values[name] for values in history) for name in (history[0] if history else ())}
    if history:
        metrics |= {"ratio_max": max(values["ratio_max"] for values in history), "first_ratio_max": history[0]["ratio_max"],
                    "skipped_updates": sum(values["skipped_updates"] for values in history)}
    if session.settings.policy.kl_coef == 0:
        metrics.pop("kl_ref", None)  # nobody computed the reference's log-probs
    critic = learner.critic
    if estimated.targets is not None:  # replayed episodes are another policy's: their returns would bias it
        own = [rows[~batch.off_policy[rows]] for rows in minibatches]
        critic, more = critics.update(session, step.critic, critic, estimated.targets, own)
        metrics |= more
    counts = {"trained": len(trajectories), "replayed": len(replayed)}
    return Learner(state, critic), metrics | counts | {"seconds/update": time.perf_counter() - began}


def mixed_batch(session, params, trajectories, advantage, replayed) -> types.TrajectoryBatch:
    """All rows of an update, with advantages and the three log-probs of each token; weights are still 0."""
    batch = batching.pad([*trajectories, *(item.trajectory for item in replayed)], session.full_history)
    if lines := [*advantage, *(item.advantage for item in replayed)]:
        batch.advantage[batch.action_mask] = np.concatenate(lines)
    batch.off_policy[:] = batch.trajectory >= len(trajectories)
    if replayed:  # on-policy, the sampling weights are the old weights
        off = np.flatnonzero(batch.off_policy)
        batch.logp_old[off] = sessions.token_logps(session, params, batching.take(batch, off))
    if session.settings.policy.kl_coef > 0:
        batch.logp_ref[:] = sessions.token_logps(session, session.initial, batch)
    return batch


def covariance_clip(band, fraction, key, settings, batch: types.TrajectoryBatch) -> None:
    """Sets the advantage of a few tokens to 0 (SPEAR's Clip-Cov), by the policy before the update."""
    clipped = _covariance_clip(batch, batch.logp_old, settings.policy, band, fraction, key)
    batch.advantage[:] = np.asarray(clipped.advantage)


_covariance_clip = jax.jit(policy.covariance_clip, static_argnames=("options", "band", "fraction"))


def off_policy_share(settings, replayed: int) -> float:
    """alpha of RSPO eq. 1. A harvest that was too thin to fill its share of the batch weighs as much less."""
    return settings.rspo.off_policy_fraction * replayed / settings.off_policy_episodes if replayed and settings.rspo else 0.0


def split_minibatches(batch: types.TrajectoryBatch, count: int) -> list[np.ndarray]:
    """Rows of each minibatch. Whole trajectories are dealt out in turn, on-policy and off-policy ones apart, so that every
    minibatch holds the same share of off-policy data."""
    first_off = batch.trajectory[batch.off_policy].min(initial=np.iinfo(np.int32).max)
    turn = np.where(batch.off_policy, batch.trajectory - first_off, batch.trajectory) % count
    exists = batch.action_mask.any(axis=1)
    return [rows for number in range(count) if len(rows := np.flatnonzero(exists & (turn == number)))]


def weighted(batch: types.TrajectoryBatch, alpha: float, settings) -> types.TrajectoryBatch:
    """The batch with weights (1 - alpha) on its on-policy and alpha on its off-policy term; 1 where it has only one of them."""
    off = batch.action_mask & batch.off_policy[:, None]
    on = batch.action_mask & ~batch.off_policy[:, None]
    alpha = alpha if on.any() and off.any() else float(off.any())
    # The trajectories of a minibatch, renumbered from 0 as aggregation_weights counts them.
    trajectory = np.unique(batch.trajectory, return_inverse=True)[1].astype(np.int32)
    for mask, share in ((on, 1 - alpha), (off, alpha)):
        weight = _token_weights(mask, trajectory, aggregation=settings.advantage.aggregation,
                                max_length=settings.sampler.max_tokens)
        batch.weight[:] += share * np.asarray(weight)
    return batch


def moving(batch: types.TrajectoryBatch, options: policy.PolicyOptions) -> types.TrajectoryBatch:
    """The rows that move the policy. Those of groups that all succeed or all fail have no advantage and no gradient: they count
    in the denominators, which are in the weights already, and need not be computed. With a KL or entropy term all rows move."""
    if options.kl_coef or options.entropy_coef:
        return batch
    return batching.take(batch, np.flatnonzero((batch.weight * batch.advantage).any(axis=1)))


def divergence(session: sessions.Session, params, trajectories: Sequence[types.Trajectory]) -> dict[str, float]:
    """How far the policy that sampled has moved from `params`: mean log-ratio (an estimate of the KL) and its largest value."""
    batch = batching.pad(trajectories, session.full_history)
    gap = (batch.logp_behavior - sessions.token_logps(session, params, batch))[batch.action_mask]
    return {"kl_from_agent": summary.mean(gap), "log_ratio_max": float(np.abs(gap).max(initial=0.0))}


def record(session: sessions.Session, kind: str, tick: int, progress: sessions.Progress, rollout, metrics, began: float) -> None:
    """Logs one tick of a loop with the metrics of its episodes, and keeps a few of them for the report."""
    progress.env_steps += sum(len(t.steps) for t in rollout.trajectories)
    values = rollout_metrics(session, progress, rollout) | metrics
    if values["logp_gap_max"] > LOGP_GAP_ALARM:
        session.run.note(f"{kind} {tick}: the sampler's log-prob of a token differs from the trainer's by "
                         f"{values['logp_gap_max']:.3g}")
    if kind == "harvest" or session.settings.rspo and session.settings.rspo.arm == "dense_only":
        values |= hacking(session, progress, f"{kind} {tick}", values["dense_return"], values["success"])
    session.run.log(tick, kind, values | {"seconds/total": time.perf_counter() - began})
    session.run.write_trajectories(tick, kind, rollout.trajectories[:: session.settings.loop.group_size][:SAMPLE])


def hacking(session: sessions.Session, progress: sessions.Progress, when: str, dense: float, success: float) -> dict[str, int]:
    """Watches a policy that is trained on dense rewards: how often in a row its dense return rose while its success fell."""
    gamed = dense > progress.last_dense and success < progress.last_success
    progress.gamed = progress.gamed + 1 if gamed else 0
    if progress.gamed >= GAMED_ALARM:
        session.run.note(f"{when}: the dense return rose to {dense:.3g} while success fell to {success:.1%}, "
                         f"{progress.gamed} times in a row: the dense reward is being gamed")
    progress.last_dense, progress.last_success = dense, success
    return {"gamed_in_a_row": progress.gamed}


def rollout_metrics(session: sessions.Session, progress: sessions.Progress, rollout: collect.Rollout) -> dict[str, float]:
    """Metrics of freshly played episodes."""
    trajectories = rollout.trajectories
    gaps = np.concatenate([np.abs(s.logp_sampler - s.logp_behavior) for t in trajectories for s in t.steps] or [np.zeros(1)])
    return summary.rollout_summary(trajectories, session.task_types) | {
        "updates": progress.updates, "episodes": progress.episodes, "env_steps": progress.env_steps, "loop": progress.loop,
        "logp_gap": float(gaps.mean()), "logp_gap_max": float(gaps.max()),
        "compilations": session.sampler.compilations, **summary.group_shares(trajectories),
        **summary.dense_calibration(trajectories),
        **{f"seconds/{name}": value for name, value in rollout.seconds.items()},
    }
