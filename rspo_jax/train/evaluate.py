"""Success on a fixed panel: the same games with the same seeds in every evaluation, each exactly once."""

import collections

from envs import protocol
from rspo_jax.report import summary
from rspo_jax.rollout import collect
from rspo_jax.train import session as sessions


def panel(tasks: list[protocol.Task], games_per_type: int) -> list[protocol.Task]:
    """The first so many tasks of each type, in the split's own order."""
    taken = collections.Counter()
    chosen = []
    for task in tasks:
        taken[task.type] += 1
        if taken[task.type] <= games_per_type:
            chosen.append(task)
    return chosen


def if_due(session: sessions.Session, params, update: int) -> None:
    """Evaluates every config.evaluation.every updates, and the first and the last weights."""
    if update % session.settings.evaluation.every == 0 or update == session.settings.loop.updates:
        evaluate(session, params, update)


def evaluate(session: sessions.Session, params, update: int) -> dict[str, dict[str, float]]:
    """Plays the panels of config.evaluation and records them.

    Returns:
        By "<split>/<temperature>": rollout metrics with the Wilson interval of the success rate as low and high.
    """
    options = session.settings.evaluation
    results = {}
    for split in options.splits:
        games = panel(session.pool.tasks(split), options.games_per_type)
        for temperature in options.temperatures:
            episodes = [collect.Episode(task, group, 0, group) for group, task in enumerate(games)]
            policy = sessions.sampling_policy(session, params, temperature, sessions.EVALUATION)
            rollout = session.collector.collect(policy, episodes, "agent", update)
            values = summary.rollout_summary(rollout.trajectories, session.task_types)
            low, high = summary.wilson(round(values["success"] * values["count"]), values["count"])
            name = f"{split}/{temperature:g}"
            results[name] = {"updates": update, **values, "low": low, "high": high,
                             "seconds/env": rollout.seconds["env"], "seconds/sample": rollout.seconds["sample"]}
            session.run.log(update, f"eval/{name}", {"split": split, "temperature": temperature, **results[name]})
            session.run.write_trajectories(update, f"eval/{name}", rollout.trajectories[::max(1, len(games) // 6)])
    return results
