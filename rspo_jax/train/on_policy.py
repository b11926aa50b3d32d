"""The plain loop of a base algorithm: play, compare within the group, update. What RSPO is laid beside."""

import time

from rspo_jax import interrupt
from rspo_jax.train import estimate, evaluate, learn
from rspo_jax.train import session as sessions
from rspo_jax.updates import accumulate, policy


def run(session: sessions.Session, stop: interrupt.Stop):
    """Trains the agent for config.loop.updates updates; resumes from the newest checkpoint. Returns its params."""
    settings = session.settings
    optimizer = sessions.make_optimizer(settings.optimizer, settings.optimizer.learning_rate)
    step = accumulate.make_update(policy.make_policy_gradient(session.score, settings.policy), optimizer)
    progress = sessions.Progress()
    agent = accumulate.new_state(session.initial, optimizer)
    arrays, host = sessions.restore(session, {"agent": agent})
    if host:
        agent, progress = arrays["agent"], sessions.Progress(**host["progress"])
    else:
        evaluate.if_due(session, agent.params, 0)

    while progress.updates < settings.loop.updates and not stop.requested:
        began = time.perf_counter()
        episodes = sessions.draw(session, progress, settings.loop.tasks_per_update, settings.loop.group_size)
        rollout = sessions.play(session, agent.params, episodes, "agent", progress.updates)
        advantage = estimate.outcome_advantages(session, rollout.trainable)
        agent, metrics = learn.update(session, step, agent, rollout.trainable, advantage)

        progress.updates += 1
        progress.tick += 1
        learn.record(session, "update", progress.updates, progress, rollout, metrics, began)
        evaluate.if_due(session, agent.params, progress.updates)
        sessions.save(session, progress, {"agent": agent}, {}, now=bool(stop.requested))
    return agent.params
