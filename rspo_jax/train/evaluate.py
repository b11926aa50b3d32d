"""Success on a fixed panel: the same games with the same seeds in every evaluation, each exactly once."""

from rspo_jax.report import summary
from rspo_jax.rollout import collect
from rspo_jax.train import session as sessions


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
    for split, games in session.panels.items():
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
