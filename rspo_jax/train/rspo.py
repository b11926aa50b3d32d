"""RSPO, Reward-Swap Policy Optimization: the loop of the paper's algorithm 1 around a group-relative base algorithm.

    D = {}
    repeat
        Phase 1   B <- A;  k times: play with B, score the steps with the PRM, update B on the dense rewards alone
                  D <- episodes of the final B, relabelled: their outcome advantages, and log pi_B of each token
        Phase 2   k times: play with A; update A on (1 - alpha) J_on + alpha J_off, J_off over the best of D
        D <- {}, B is discarded
"""

import dataclasses
import time

import numpy as np

from rspo_jax import interrupt
from rspo_jax.rollout import replay
from rspo_jax.train import estimate, evaluate, learn, prm
from rspo_jax.train import session as sessions
from rspo_jax.updates import accumulate, policy


def run(session: sessions.Session, stop: interrupt.Stop):
    """Trains the agent for config.loop.updates updates; resumes from the newest checkpoint, also in mid-loop.

    Returns the agent's params.
    """
    settings, k = session.settings, session.settings.rspo.updates_per_phase
    optimizer = sessions.make_optimizer(settings.optimizer, settings.optimizer.learning_rate)
    explorer_optimizer = sessions.make_optimizer(settings.optimizer, settings.rspo.explorer_learning_rate)
    gradient = policy.make_policy_gradient(session.score, settings.policy)
    agent_step, explorer_step = (accumulate.make_update(gradient, each) for each in (optimizer, explorer_optimizer))

    progress = sessions.Progress(phase="explorer")
    agent, explorer, buffer = accumulate.new_state(session.initial, optimizer), None, []
    head, result = prm.load_or_train(session)
    arrays, host = sessions.restore(session, {"agent": agent, "explorer": agent})
    if host:
        agent, explorer, progress = arrays["agent"], arrays.get("explorer"), sessions.Progress(**host["progress"])
        buffer = [replay.item_from_json(item) for item in host["buffer"]]
    elif not stop.requested:
        progress.episodes, progress.env_steps = result["episodes"], result["env_steps"]  # what the PRM has cost
        evaluate.if_due(session, agent.params, 0)

    while progress.updates < settings.loop.updates and not stop.requested:
        began = time.perf_counter()
        if progress.phase == "explorer" and progress.phase_updates < k:
            explorer = explorer or accumulate.branch(agent)
            rollout = _play(session, progress, explorer, "explorer", settings.on_policy_tasks, head)
            advantage = estimate.dense_advantages(session, rollout.trainable)
            explorer, metrics = learn.update(session, explorer_step, explorer, rollout.trainable, advantage)
            progress.phase_updates += 1
            kind, tick = "explorer", progress.loop * k + progress.phase_updates

        elif progress.phase == "explorer":
            rollout = _play(session, progress, explorer, "explorer", settings.loop.tasks_per_update, head)
            buffer = harvest(session, progress, rollout.trainable)
            metrics = {"useful": len(buffer), **learn.divergence(session, agent.params, rollout.trainable)}
            explorer = None
            progress.phase, progress.phase_updates = "agent", 0
            kind, tick = "harvest", progress.loop

        else:
            rollout = _play(session, progress, agent, "agent", settings.on_policy_tasks, head)
            advantage = estimate.outcome_advantages(session, rollout.trainable)
            replayed, buffer = buffer[: settings.off_policy_episodes], buffer[settings.off_policy_episodes :]
            agent, metrics = learn.update(session, agent_step, agent, rollout.trainable, advantage, replayed)
            progress.updates += 1
            progress.phase_updates += 1
            kind, tick = "update", progress.updates

        progress.tick += 1
        learn.record(session, kind, tick, progress, rollout, metrics, began)
        if kind == "update":
            evaluate.if_due(session, agent.params, progress.updates)
        if progress.phase == "agent" and progress.phase_updates >= k:
            buffer = []
            progress.loop, progress.phase, progress.phase_updates = progress.loop + 1, "explorer", 0
        states = {"agent": agent} | ({"explorer": explorer} if explorer else {})
        sessions.save(session, progress, states, {"buffer": [replay.item_to_json(item) for item in buffer]},
                      now=bool(stop.requested))
    return agent.params


def harvest(session: sessions.Session, progress: sessions.Progress, trajectories) -> list[replay.Item]:
    """The buffer: the reward swap, and the order in which phase 2 draws. Dense rewards end here."""
    advantage = estimate.outcome_advantages(session, trajectories)
    items = [replay.Item(*pair) for pair in zip(trajectories, advantage, strict=True)]
    rng = np.random.default_rng([session.settings.seed, sessions.REPLAY, progress.loop])
    return replay.order(items, session.settings.rspo.replay, rng)


def _play(session, progress, state, name, tasks, head):
    """Fresh episodes with dense rewards; the agent's are scored too, to be looked at and never trained on."""
    episodes = sessions.draw(session, progress, tasks, session.settings.loop.group_size)
    rollout = sessions.play(session, state.params, episodes, name, progress.updates)
    return dataclasses.replace(rollout, trajectories=prm.score(session, head, rollout.trajectories, progress.tick))
