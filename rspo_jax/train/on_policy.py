"""The plain loop of every base algorithm: play, estimate advantages, update. What RSPO is laid beside.

With config.rspo.arm=dense_only the agent is trained on the dense rewards, and on nothing else (RSPO figure 3).
"""

import dataclasses
import time

from rspo_jax import interrupt
from rspo_jax.train import dense, estimate, evaluate, gather, learn
from rspo_jax.train import session as sessions


def run(session: sessions.Session, stop: interrupt.Stop):
    """Trains the agent for config.loop.updates updates; resumes from the newest checkpoint. Returns its params."""
    settings = session.settings
    (step,) = learn.make_steps(session, settings.optimizer.learning_rate)
    progress = sessions.Progress()
    agent = learn.new_learner(session)
    signal, cost = dense.load(session) if settings.rspo else (None, {})
    signal_step = dense.make_step(session) if settings.rspo else None
    arrays, host = sessions.restore(session, {"agent": agent, "prm": signal})
    if host:
        agent, signal = arrays["agent"], arrays.get("prm", signal)
        progress = sessions.Progress(**host["progress"])
    else:
        progress = dataclasses.replace(progress, **cost)
        evaluate.if_due(session, agent.policy.params, 0)

    while progress.updates < settings.loop.updates and not stop.requested:
        began = time.perf_counter()
        rollout = gather.play(session, progress, agent.policy.params, settings.loop.tasks_per_update)
        if settings.rspo:
            rollout = dataclasses.replace(rollout, trajectories=dense.score(session, signal, rollout.trajectories, progress.tick))
            trained = rollout.trainable
            estimated = estimate.dense_advantages(session, trained, agent.critic)
        else:
            trained = gather.keep(settings, rollout.trainable)
            estimated = estimate.outcome_advantages(session, trained, agent.critic)
        agent, metrics = learn.update(session, step, agent, trained, estimated)
        signal, of_signal = dense.learn(session, signal_step, signal, rollout.trainable)

        progress.updates += 1
        progress.tick += 1
        learn.record(session, "update", progress.updates, progress, rollout, metrics | of_signal, began)
        evaluate.if_due(session, agent.policy.params, progress.updates)
        sessions.save(session, progress, {"agent": agent} | dense.arrays(signal_step, signal), {}, now=bool(stop.requested))
    return agent.policy.params
