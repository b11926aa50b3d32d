"""SPEAR: self-imitation beside the on-policy update.

    repeat
        play; the score of an episode is its outcome plus a bonus for length that fades                         (bonus)
        update the policy, without the gradient of a few tokens that would cost the most entropy                (Clip-Cov)
        buffer <- buffer + episodes with a positive advantage, with the log-probs that they were sampled with
        when enough of the buffer is better than the median of recent group means and not too old:
            update on a random part of it by the ordinary clipped surrogate, with a weight that grows; empty the buffer

The bonus is left out of what the buffer compares. Clip-Cov takes its means over a whole update, not over a minibatch.
"""

import functools
import math
import time

import jax
import numpy as np

from rspo_jax import interrupt
from rspo_jax.algorithms import self_imitation
from rspo_jax.rollout import replay
from rspo_jax.train import estimate, evaluate, gather, learn
from rspo_jax.train import session as sessions

RECENT = 10240  # group means whose median an episode must reach
CLIP_COV = {"update": ((1.0, 5.0), 2e-4), "replay": ((2.0, 60.0), 0.02)}  # band of covariances, share of the tokens
ENOUGH = 1.5  # times config.spear.replay_episodes
PADDING = 64  # of the buffer, so that its comparison is compiled for few sizes


def run(session: sessions.Session, stop: interrupt.Stop):
    """Trains the agent for config.loop.updates updates; resumes from the newest checkpoint. Returns its params."""
    settings, options = session.settings, session.settings.spear
    (step,) = learn.make_steps(session, settings.optimizer.learning_rate)
    progress = sessions.Progress()
    agent, buffer, means = learn.new_learner(session), [], []
    arrays, host = sessions.restore(session, {"agent": agent})
    if host:
        agent, means, progress = arrays["agent"], host["means"], sessions.Progress(**host["progress"])
        buffer = [replay.item_from_json(item) for item in host["buffer"]]
    else:
        evaluate.if_due(session, agent.policy.params, 0)

    while progress.updates < settings.loop.updates and not stop.requested:
        began = time.perf_counter()
        rollout = gather.play(session, progress, agent.policy.params, settings.loop.tasks_per_update)
        trained = gather.keep(settings, rollout.trainable)
        estimated = estimate.of_rewards(session, trained, with_bonus(options, trained, progress.updates))
        agent, metrics = learn.update(session, step, agent, trained, estimated, clip_cov=_clip_cov(session, progress, "update"))
        buffer += [replay.Item(*pair) for pair in zip(trained, estimated.tokens, strict=True) if pair[1].mean() > 0]
        means = (means + group_means(rollout.trainable))[-RECENT:]
        kept = worth_imitating(buffer, means, progress.updates, options.tolerance)
        metrics |= {"buffer": len(buffer), "worth_imitating": len(kept)}
        if len(kept) > ENOUGH * options.replay_episodes:
            weight = options.imitation_coef * float(self_imitation.imitation_weight(progress.updates, options.horizon))
            agent, of_replay = learn.update(
                session, step, agent, [], estimate.Estimated([], None), _part(session, progress, kept),
                clip_cov=_clip_cov(session, progress, "replay"), weight=weight)
            metrics |= {f"replay/{name}": value for name, value in of_replay.items()} | {"replay/weight": weight}
            buffer = []

        progress.updates += 1
        progress.tick += 1
        learn.record(session, "update", progress.updates, progress, rollout, metrics, began)
        evaluate.if_due(session, agent.policy.params, progress.updates)
        sessions.save(session, progress, {"agent": agent},
                      {"buffer": [replay.item_to_json(item) for item in buffer], "means": means}, now=bool(stop.requested))
    return agent.policy.params


def with_bonus(options, trajectories, update: int) -> estimate.Rewards:
    """The outcomes with SPEAR's intrinsic bonus on each episode's score."""
    rewards = estimate.outcome_rewards(trajectories)
    lengths = np.array([len(t.steps) for t in trajectories], np.float32)
    bonus = options.bonus_coef * np.asarray(self_imitation.length_bonus(lengths, update, options.horizon))
    return estimate.Rewards(rewards.returns + bonus, rewards.steps)


def group_means(trajectories) -> list[float]:
    """Mean outcome of each group."""
    groups: dict[int, list[float]] = {}
    for t in trajectories:
        groups.setdefault(t.group, []).append(t.outcome)
    return [float(np.mean(outcomes)) for outcomes in groups.values()]


def worth_imitating(buffer, means, update: int, tolerance: int) -> list[replay.Item]:
    """The items that are at least as good as the median of recent group means, with what they are better as advantage."""
    if not buffer or not means:
        return []
    size = -(-len(buffer) // PADDING) * PADDING
    returns, age, recent = np.zeros(size, np.float32), np.full(size, tolerance + 1), np.zeros(RECENT, np.float32)
    returns[: len(buffer)] = [item.trajectory.outcome for item in buffer]
    age[: len(buffer)] = [update - item.trajectory.update for item in buffer]
    recent[: len(means)] = means
    advantage, kept = (np.asarray(x) for x in _replay_advantage(returns, age, recent, np.arange(RECENT) < len(means), tolerance))
    tokens = (np.full(len(item.advantage), advantage[index], np.float32) for index, item in enumerate(buffer))
    return [replay.Item(item.trajectory, line) for item, line, stays in zip(buffer, tokens, kept, strict=False) if stays]


def _part(session, progress, kept):
    """A random part, of the largest power of two that config.spear.replay_episodes allows."""
    size = 2 ** int(math.log2(min(len(kept), session.settings.spear.replay_episodes)))
    rng = np.random.default_rng([session.settings.seed, sessions.REPLAY, progress.updates])
    return [kept[index] for index in rng.permutation(len(kept))[:size]]


def _clip_cov(session, progress, kind):
    key = jax.random.fold_in(jax.random.key(session.settings.seed), 2 * progress.updates + (kind == "replay"))
    return functools.partial(learn.covariance_clip, *CLIP_COV[kind], key)


_replay_advantage = jax.jit(self_imitation.replay_advantage, static_argnames="tolerance")
