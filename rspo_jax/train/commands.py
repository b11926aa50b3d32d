"""What each command of `rspo` does: check the config, open a session, run one loop, leave a summary."""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rspo_jax.report import play as report_play
from rspo_jax.report import results
from rspo_jax.rollout import collect
from rspo_jax.train import evaluate, on_policy, rspo, sft
from rspo_jax.train import prm as prm_training
from rspo_jax.train import session as sessions
from rspo_jax.train import settings as run_settings
from rspo_jax.updates import accumulate

SUMMARY = "summary.json"


class UsageError(Exception):
    """What was asked for cannot be done; the message says why and what to do. Anything else is a bug, with its traceback."""


def train(config: Mapping[str, Any], workdir: str) -> None:
    """RSPO, or the base algorithm alone where config.rspo is None. A finished run only prints its summary again."""
    with _open(config, workdir) as session:
        params = on_policy.run(session) if session.settings.rspo is None else rspo.run(session)
        if session.stop.requested:
            session.run.note("stopped on request; the same command resumes")
            return
        sft.save_model(session, params)
    summary = results.summarize(workdir)
    (pathlib.Path(workdir) / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(results.render(summary))


def warm_start(config: Mapping[str, Any], workdir: str) -> None:
    """Makes a model from nothing (config.sft.model) and clones the expert into it."""

    def prepare(settings):
        _require(settings.sft, "config.sft is None; rspo sft needs its section.")
        initial = pathlib.Path(workdir) / "initial"
        sft.make_model(settings, initial)
        return dataclasses.replace(settings, model=dataclasses.replace(settings.model, directory=str(initial)))

    with _open(config, workdir, prepare) as session:
        sft.run(session)


def prm(config: Mapping[str, Any], workdir: str) -> None:
    """Trains the process reward model that `rspo train` with the same workdir would train first."""

    def prepare(settings):
        _require(settings.rspo, "config.rspo is None; rspo prm needs its section, as configs/rspo.py has it.")
        return settings

    with _open(config, workdir, prepare) as session:
        _, result = prm_training.load_or_train(session)
    print(json.dumps(result, indent=2))


def evaluation(config: Mapping[str, Any], workdir: str) -> None:
    """Evaluates the newest checkpoint of the workdir, or the initial policy where there is none."""
    with _open(config, workdir) as session:
        params, update = _newest(session)
        evaluate.evaluate(session, params, update)


def play(config: Mapping[str, Any], workdir: str, split: str, game: int, temperature: float) -> None:
    """Plays one episode with the weights that `rspo eval` would evaluate, and shows it."""
    with _open(config, workdir) as session:
        tasks = session.pool.tasks(split)
        _require(0 <= game < len(tasks), f"--game={game} is not one of the {len(tasks)} games of {split}.")
        params, update = _newest(session)
        policy = sessions.sampling_policy(session, params, temperature, sessions.EVALUATION)
        rollout = session.collector.collect(policy, [collect.Episode(tasks[game], game, 0, game)], "agent", update)
    report_play.print_trajectory(rollout.trajectories[0])


@contextlib.contextmanager
def _open(config, workdir, prepare: Callable = lambda settings: settings) -> Iterator[sessions.Session]:
    """A session of a checked config. What is wrong with the config, its paths or its files is a UsageError."""
    with contextlib.ExitStack() as stack:
        try:
            settings = prepare(run_settings.read(config))
            session = stack.enter_context(sessions.open_session(settings, config, workdir))
        except (ValueError, OSError) as error:
            raise UsageError(str(error)) from error
        yield session


def _newest(session):
    """Params of the newest checkpoint and their update counter; the initial policy and 0 where there is none."""
    optimizer = sessions.make_optimizer(session.settings.optimizer, session.settings.optimizer.learning_rate)
    arrays, host = sessions.restore(session, {"agent": accumulate.new_state(session.initial, optimizer)})
    return (arrays["agent"].params, host["progress"]["updates"]) if host else (session.initial, 0)


def _require(holds, message):
    if not holds:
        raise UsageError(message)
