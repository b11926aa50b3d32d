"""What each command of `rspo` does: check the config, open a session, run one loop, leave a summary."""

import contextlib
import dataclasses
import itertools
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from envs import pool as env_pool
from rspo_jax import interrupt
from rspo_jax.report import jsonl, results
from rspo_jax.report import play as report_play
from rspo_jax.rollout import collect
from rspo_jax.train import evaluate, istar, learn, on_policy, rspo, sft, spear
from rspo_jax.train import prm as prm_training
from rspo_jax.train import session as sessions
from rspo_jax.train import settings as run_settings

SUMMARY = "summary.json"


def train(config: Mapping[str, Any], workdir: str) -> None:
    """RSPO, iStar or SPEAR, whose section is not None, or the base algorithm alone. Of a finished run, only the model and the
    summary are written again."""
    with interrupt.Stop() as stop, _open(config, workdir, workdir) as session:
        loop = _loop(session.settings)
        params = loop(session, stop)
        if stop.requested:
            session.run.note("stopped on request; the same command resumes")
            return
        sessions.save_model(session, params)
    summary = results.summarize(workdir)
    (pathlib.Path(workdir) / SUMMARY).write_text(json.dumps(jsonl.plain(summary), indent=2) + "\n", encoding="utf-8")
    print(results.render(summary))


def warm_start(config: Mapping[str, Any], workdir: str) -> None:
    """Makes a model from nothing (config.sft.model) and clones the expert into it."""

    def prepare(settings):
        _require(settings.sft, "config.sft is None; rspo sft needs its section.")
        initial = pathlib.Path(workdir) / "initial"
        sft.make_model(settings, initial)
        return dataclasses.replace(settings, model=dataclasses.replace(settings.model, directory=str(initial)))

    with _open(config, workdir, workdir, prepare) as session:
        sft.run(session)


def prm(config: Mapping[str, Any], workdir: str) -> None:
    """Trains the process reward model that `rspo train` with the same workdir would train first."""

    def prepare(settings):
        _require(settings.rspo, "config.rspo is None; rspo prm needs its section, as configs/rspo.py has it.")
        return settings

    with _open(config, workdir, workdir, prepare) as session:
        _, result = prm_training.load_or_train(session)
    print(json.dumps(jsonl.plain(result), indent=2))


def evaluation(config: Mapping[str, Any], workdir: str) -> None:
    """Evaluates the newest checkpoint of the workdir, or the initial policy where there is none.

    The record goes into a folder of its own, WORKDIR/eval-N: that of the training run is not touched.
    """
    record = next(path for number in itertools.count(1) if not (path := pathlib.Path(workdir) / f"eval-{number}").exists())
    with _open(config, workdir, record) as session:
        params, update = _newest(session)
        evaluate.evaluate(session, params, update)
    print(f"recorded in {record}")


def play(config: Mapping[str, Any], workdir: str, split: str, game: int, temperature: float) -> None:
    """Plays one episode with the weights that `rspo eval` would evaluate, and shows it."""
    with tempfile.TemporaryDirectory() as record, _open(config, workdir, record) as session:
        tasks = session.tasks(split)
        _require(0 <= game < len(tasks), f"--game={game} is not one of the {len(tasks)} games of {split}.")
        params, update = _newest(session)
        policy = sessions.sampling_policy(session, params, temperature, sessions.EVALUATION)
        rollout = session.collector.collect(policy, [collect.Episode(tasks[game], game, 0, game)], "agent", update)
    report_play.print_trajectory(rollout.trajectories[0])


@contextlib.contextmanager
def _open(config, workdir, record, prepare: Callable = lambda settings: settings) -> Iterator[sessions.Session]:
    """A session of a checked config. What is wrong with the config, its paths or its files is a UsageError."""
    with contextlib.ExitStack() as stack:
        try:
            settings = prepare(run_settings.read(config))
            session = stack.enter_context(sessions.open_session(settings, config, workdir, record))
        except (ValueError, OSError, env_pool.StartError) as error:
            raise sessions.UsageError(str(error)) from error
        yield session


def _loop(settings):
    if settings.rspo:
        return on_policy.run if settings.rspo.arm == "dense_only" else rspo.run
    if settings.istar:
        return istar.run
    return spear.run if settings.spear else on_policy.run


def _newest(session):
    """Params of the newest checkpoint and their update counter; the initial policy and 0 where there is none."""
    arrays, host = sessions.restore(session, {"agent": learn.new_learner(session)})
    if host:
        return arrays["agent"].policy.params, host["progress"]["updates"]
    session.run.note(f"no checkpoint in {session.workdir}: this is config.model.directory={session.settings.model.directory}")
    return session.initial, 0


def _require(holds, message):
    if not holds:
        raise sessions.UsageError(message)
