"""What each command of `rspo` does: check the config, open a session, run one loop, leave a summary."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from rspo_jax.report import play as report_play
from rspo_jax.report import results
from rspo_jax.rollout import collect
from rspo_jax.train import evaluate, on_policy, rspo, sft
from rspo_jax.train import prm as prm_training
from rspo_jax.train import session as sessions
from rspo_jax.train import settings as run_settings
from rspo_jax.updates import accumulate

SUMMARY = "summary.json"


def train(config: Mapping[str, Any], workdir: str) -> None:
    """RSPO, or the base algorithm alone where config.rspo is None. A finished run only prints its summary again."""
    settings = run_settings.read(config)
    with sessions.open_session(settings, config, workdir) as session:
        params = on_policy.run(session) if settings.rspo is None else rspo.run(session)
        if session.stop.requested:
            session.run.note("stopped on request; the same command resumes")
            return
        sft.save_model(session, params)
    summary = results.summarize(workdir)
    (pathlib.Path(workdir) / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(results.render(summary))


def warm_start(config: Mapping[str, Any], workdir: str) -> None:
    """Makes a model from nothing (config.sft.model) and clones the expert into it."""
    settings = run_settings.read(config)
    if settings.sft is None:
        raise ValueError("config.sft is None; rspo sft needs its section.")
    initial = pathlib.Path(workdir) / "initial"
    sft.make_model(settings, initial)
    settings = dataclasses.replace(settings, model=dataclasses.replace(settings.model, directory=str(initial)))
    with sessions.open_session(settings, config, workdir) as session:
        sft.run(session)


def prm(config: Mapping[str, Any], workdir: str) -> None:
    """Trains the process reward model that `rspo train` with the same workdir would train first."""
    settings = run_settings.read(config)
    if settings.rspo is None:
        raise ValueError("config.rspo is None; rspo prm needs its section, as configs/rspo.py has it.")
    with sessions.open_session(settings, config, workdir) as session:
        _, result = prm_training.load_or_train(session)
    print(json.dumps(result, indent=2))


def evaluation(config: Mapping[str, Any], workdir: str) -> None:
    """Evaluates the newest checkpoint of the workdir, or the initial policy where there is none."""
    settings = run_settings.read(config)
    with sessions.open_session(settings, config, workdir) as session:
        params, update = newest(session)
        evaluate.evaluate(session, params, update)


def play(config: Mapping[str, Any], workdir: str, split: str, game: int, temperature: float) -> None:
    """Plays one episode with the weights that `rspo eval` would evaluate, and shows it."""
    settings = run_settings.read(config)
    with sessions.open_session(settings, config, workdir) as session:
        tasks = session.pool.tasks(split)
        if not 0 <= game < len(tasks):
            raise ValueError(f"--game={game} is not one of the {len(tasks)} games of {split}.")
        params, update = newest(session)
        policy = sessions.sampling_policy(session, params, temperature, sessions.EVALUATION)
        rollout = session.collector.collect(policy, [collect.Episode(tasks[game], game, 0, game)], "agent", update)
    report_play.print_trajectory(rollout.trajectories[0])


def newest(session: sessions.Session):
    """Params of the newest checkpoint and their update counter; the initial policy and 0 where there is none."""
    optimizer = sessions.make_optimizer(session.settings.optimizer, session.settings.optimizer.learning_rate)
    agent = accumulate.new_state(session.initial, optimizer)
    arrays, host = sessions.restore(session, {"agent": agent, "explorer": agent})
    if not host:
        return session.initial, 0
    return arrays["agent"].params, int(np.asarray(host["progress"]["updates"]))
