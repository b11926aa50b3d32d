"""RSPO, Reward-Swap Policy Optimization: the loop of the paper's algorithm 1 around any base estimator.

    D = {}
    repeat
        Phase 1   B <- A;  k times: play with B, score the steps, update B on the dense rewards alone
                  D <- episodes of the final B, relabelled: their outcome advantages, and log pi_B of each token
        Phase 2   k times: play with A; update A on (1 - alpha) J_on + alpha J_off, J_off over the best of D
        D <- {}, B is discarded

config.rspo.arm is "swap" for this, or one of its controls:

| dense_only | no explorer: the agent itself is trained on the dense rewards (figure 3); train/on_policy.py runs it     |
| own_replay | no explorer: D is what the agent played in its last k updates, so phase 2 replays its own successes      |

A third one is an explorer that takes no dense step, config.rspo.explorer_learning_rate=0.
"""

import dataclasses
import time

import numpy as np

from rspo_jax import interrupt
from rspo_jax.rollout import replay
from rspo_jax.train import dense, estimate, evaluate, gather, learn
from rspo_jax.train import session as sessions
from rspo_jax.updates import accumulate


def run(session: sessions.Session, stop: interrupt.Stop):
    """Trains the agent for config.loop.updates updates; resumes from the newest checkpoint, also in mid-loop.

    Returns the agent's params.
    """
    settings, k = session.settings, session.settings.rspo.updates_per_phase
    own_replay = settings.rspo.arm == "own_replay"
    first_phase = "agent" if own_replay else "explorer"
    agent_step, explorer_step = learn.make_steps(session, settings.optimizer.learning_rate, settings.rspo.explorer_learning_rate)

    progress = sessions.Progress(phase=first_phase)
    agent, explorer = learn.new_learner(session), None
    buffer, own = [], []  # D, and what the agent played since the loop began
    signal, cost = dense.load(session)
    signal_step = dense.make_step(session)
    arrays, host = sessions.restore(session, {"agent": agent, "explorer": agent, "prm": signal})
    if host:
        agent, explorer, progress = arrays["agent"], arrays.get("explorer"), sessions.Progress(**host["progress"])
        signal = arrays.get("prm", signal)
        buffer, own = ([replay.item_from_json(item) for item in host[name]] for name in ("buffer", "own"))
    elif not stop.requested:
        progress.episodes, progress.env_steps = cost["episodes"], cost["env_steps"]
        evaluate.if_due(session, agent.policy.params, 0)

    while progress.updates < settings.loop.updates and not stop.requested:
        began = time.perf_counter()
        if progress.phase == "explorer" and progress.phase_updates < k:
            explorer = explorer or accumulate.branch(agent)
            rollout = _explore(session, progress, explorer, settings.on_policy_tasks, signal)
            estimated = estimate.dense_advantages(session, rollout.trainable, explorer.critic)
            explorer, metrics = learn.update(session, explorer_step, explorer, rollout.trainable, estimated)
            progress.phase_updates += 1
            kind, tick = "explorer", progress.loop * k + progress.phase_updates

        elif progress.phase == "explorer":
            rollout = _explore(session, progress, explorer, settings.loop.tasks_per_update, signal)
            estimated = estimate.outcome_advantages(session, rollout.trainable, agent.critic)
            buffer = harvest(session, progress, rollout.trainable, estimated.tokens)
            metrics = {"useful": len(buffer), **learn.divergence(session, agent.policy.params, rollout.trainable)}
            explorer = None
            progress.phase, progress.phase_updates = "agent", 0
            kind, tick = "harvest", progress.loop

        else:
            rollout = gather.play(session, progress, agent.policy.params, settings.on_policy_tasks)
            rollout = _scored(session, signal, rollout, progress)
            trained = gather.keep(settings, rollout.trainable)
            estimated = estimate.outcome_advantages(session, trained, agent.critic)
            own += _items(trained, estimated.tokens) if own_replay else []
            replayed, buffer = buffer[: settings.off_policy_episodes], buffer[settings.off_policy_episodes :]
            agent, metrics = learn.update(session, agent_step, agent, trained, estimated, replayed)
            progress.updates += 1
            progress.phase_updates += 1
            kind, tick = "update", progress.updates

        signal, of_signal = dense.learn(session, signal_step, signal, rollout.trainable)
        progress.tick += 1
        learn.record(session, kind, tick, progress, rollout, metrics | of_signal, began)
        if kind == "update":
            evaluate.if_due(session, agent.policy.params, progress.updates)
        if progress.phase == "agent" and progress.phase_updates >= k:
            buffer, own = _ordered(session, progress, own), []
            progress.loop, progress.phase, progress.phase_updates = progress.loop + 1, first_phase, 0
        states = {"agent": agent} | dense.arrays(signal_step, signal) | ({"explorer": explorer} if explorer else {})
        host = {name: [replay.item_to_json(item) for item in items] for name, items in (("buffer", buffer), ("own", own))}
        sessions.save(session, progress, states, host, now=bool(stop.requested))
    return agent.policy.params


def harvest(session: sessions.Session, progress: sessions.Progress, trajectories, advantage) -> list[replay.Item]:
    """D: the reward swap, and the order in which phase 2 draws. Dense rewards end here."""
    return _ordered(session, progress, _items(trajectories, advantage))


def _items(trajectories, advantage):
    return [replay.Item(*pair) for pair in zip(trajectories, advantage, strict=True)]


def _ordered(session, progress, items):
    rng = np.random.default_rng([session.settings.seed, sessions.REPLAY, progress.loop])
    return replay.order(items, session.settings.rspo.replay, rng)


def _explore(session, progress, explorer, tasks, signal):
    """Fresh episodes of the explorer with dense rewards. No group is left out: dense returns are hardly ever all equal."""
    episodes = sessions.draw(session, progress, tasks, session.settings.loop.group_size)
    rollout = sessions.play(session, explorer.policy.params, episodes, "explorer", progress.updates)
    return _scored(session, signal, rollout, progress)


def _scored(session, signal, rollout, progress):
    """With dense rewards. The agent's episodes get them too, to be looked at and never trained on."""
    return dataclasses.replace(rollout, trajectories=dense.score(session, signal, rollout.trajectories, progress.tick))
