"""Where the numbers of a run go: `metrics.jsonl`, TensorBoard and the terminal get the same ones, from one call.

    with metrics.Run(workdir, resume=True, total_updates=150) as run:
        run.header(config.to_dict(), facts)
        run.note("compiling the train step ...")
        run.log(tick, "update", values)
        run.log(tick, "eval/valid_unseen/0.4", values)
        run.write_trajectories(tick, "update", trajectories[:8])

`metrics.jsonl` is the truth, TensorBoard (`tensorboard/`) and the terminal are views of it. Each line is on disk before
`log` returns. A crash between two checkpoints makes the resumed run compute some updates again: what the file holds is
not written twice, it is compared, and a difference is reported, since an exact resume must not have one.

On a pod, one process makes a `Run`.
"""

import fcntl
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import numpy as np
from tensorboardX import event_file_writer
from tensorboardX.proto import event_pb2, summary_pb2

from rspo_jax import types
from rspo_jax.report import console, jsonl, runs

RESERVED = {"kind", "tick", runs.ELAPSED, jsonl.NON_FINITE}


class Run:
    """The written record of one workdir.

    Args:
      workdir: made if it does not exist. One process at a time writes it.
      resume: continue the record that is there, if any. False refuses a workdir that has one.
      total_updates: the length of the run, for the terminal's ETA; 0 where there is none.

    Raises:
      ValueError: there is a record and resume is False, or another process is writing it.
    """

    def __init__(self, workdir: str | os.PathLike, resume: bool, total_updates: int = 0):
        self.workdir = pathlib.Path(workdir)
        self.workdir.mkdir(parents=True, exist_ok=True)
        path = self.workdir / runs.METRICS
        if not resume and path.exists():
            raise ValueError(f"{path} holds the record of a run; resume it, or choose another workdir.")
        self._file = _open(path)
        _lock(self._file, self.workdir)
        torn = jsonl.repair(path)
        lines = jsonl.read(path)
        self._earlier = {(line["kind"], line["tick"]): line for line in lines}
        self._start = time.monotonic() - max((line[runs.ELAPSED] for line in lines), default=0.0)
        self._tick = max((line["tick"] for line in lines), default=0)
        self._logged: set[tuple[str, int]] = set()
        self._differs = False

        path = self.workdir / runs.TRAJECTORIES
        jsonl.repair(path)
        self._trajectories = _open(path)
        self._stored = {(line["kind"], line["tick"], line["index"]) for line in jsonl.read(path)}

        self._failed: set[str] = set()
        self._console = self._view("console", lambda: console.Console(total_updates))
        self._events = self._view("tensorboard", lambda: _open_events(self.workdir / "tensorboard"))
        if torn:
            self._warn(f"{runs.METRICS} ended in a torn line, which was removed: {torn[:80]!r}")

    def log(self, tick: int, kind: str, values: Mapping[str, Any]) -> None:
        """Writes one line of metrics.

        Args:
          tick: the counter that orders lines of this kind: updates for "update" and evaluations (those of the weights
            that were evaluated), the explorer's own updates for "explorer", loops for "harvest".
          kind: "update", "explorer", "harvest", "eval/<split>/<temperature>", "prm", ...; with tick it names the line.
          values: by metric name; Python or array scalars, or strings. `episodes` counts from the start of the run.

        Raises:
          ValueError: this kind and tick were logged before by this process, or a name is reserved.
          TypeError: a value is neither a number nor a string.
        """
        if (kind, tick) in self._logged:
            raise ValueError(f"kind {kind!r} was logged for tick {tick} already; each line needs a tick of its own.")
        if RESERVED & set(values):
            raise ValueError(f"metric names {sorted(RESERVED & set(values))} are reserved; log them under other names.")
        plain = {name: _plain(name, value) for name, value in values.items()}
        plain[runs.ELAPSED] = round(time.monotonic() - self._start, 3)
        self._logged.add((kind, tick))
        self._tick = max(self._tick, tick)
        earlier = self._earlier.pop((kind, tick), None)
        if earlier is None:
            _append(self._file, {"kind": kind, "tick": tick, **plain})
            self._view("tensorboard", lambda: _write_events(self._events, tick, kind, plain))
        else:
            self._compare(earlier, plain)
        self._view("console", lambda: self._console.row(kind, tick, plain))

    def note(self, text: str) -> None:
        """Tells the terminal what starts now; nothing is stored."""
        self._view("console", lambda: self._console.note(text))

    def header(self, config: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Stores the resolved config and the facts of a run, and prints what decides comparability.

        On resume, a config value that differs from the stored one is noted and kept in `header.json` under
        `config_changes`, with the tick from which on it holds.

        Args:
          config: the resolved config, of JSON types and tuples.
          facts: everything named in runs.COMPARABILITY, and what else describes the run (model, devices, versions).
        """
        new = jsonl.plain(config)
        old, header = runs.read_json(self.workdir / runs.CONFIG), runs.read_json(self.workdir / runs.HEADER)
        changes = list(header.get("config_changes", ()))
        for key, was, now in runs.differences(old, new) if old else ():
            changes.append({"tick": self._tick, "key": key, "was": was, "now": now})
            self.note(f"config.{key} was {was!r}, is {now!r} from tick {self._tick} on")
        _replace(self.workdir / runs.CONFIG, new)
        _replace(self.workdir / runs.HEADER, {"facts": dict(facts), "config_changes": changes})
        shown = {name: facts.get(name, runs.NOT_STATED) for name in runs.COMPARABILITY} | dict(facts)
        self._view("console", lambda: self._console.facts(f"run {self.workdir}", shown))

    def write_trajectories(self, tick: int, kind: str, trajectories: Sequence[types.Trajectory]) -> None:
        """Appends trajectories, as text without token ids, to `trajectories.jsonl` for the report and for `rspo play`.

        One call per kind and tick. On resume, what the file has for them is not written again.
        """
        for index, trajectory in enumerate(trajectories):
            if (kind, tick, index) not in self._stored:
                self._stored.add((kind, tick, index))
                _append(self._trajectories, {"kind": kind, "tick": tick, "index": index, **_text(trajectory)})

    def close(self) -> None:
        """Closes all files; the workdir is then free for another process."""
        if self._events is not None:
            self._view("tensorboard", self._events.close)
        self._trajectories.close()
        self._file.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _compare(self, earlier: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Warns, once, when a resumed run does not reproduce what the file holds. Times are never the same."""
        differing = [
            f"{name} was {earlier.get(name)}, is {value}"
            for name, value in values.items()
            if "seconds" not in name and repr(earlier.get(name)) != repr(value)  # repr: nan equals nan, 1 is not 1.0
        ]
        if differing and not self._differs:
            self._differs = True
            self._warn(f"{earlier['kind']} {earlier['tick']} was computed again and differs: {'; '.join(differing[:5])}")

    def _view(self, name: str, action: Callable[[], Any]) -> Any:
        """Runs one output of a view. The first failure of a view is recorded, and ends that view, never the run."""
        if name in self._failed:
            return None
        try:
            return action()
        except Exception as error:  # whatever a terminal or an event file may raise: it is worth less than the run
            self._failed.add(name)
            self._warn(f"{name} failed and gets nothing more: {type(error).__name__}: {error}")
            return None

    def _warn(self, text: str) -> None:
        elapsed = round(time.monotonic() - self._start, 3)
        _append(self._file, {"kind": "warning", "tick": self._tick, "text": text, runs.ELAPSED: elapsed})
        self.note(f"warning: {text}")


def _plain(name: str, value: Any) -> float | int | str:
    """A Python number or string out of what a loop logs: Python, numpy and JAX scalars, of any precision."""
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "biufV":  # V: bfloat16
        raise TypeError(f"metric {name!r} is {array.dtype} of shape {array.shape}; log numbers without a shape, or strings.")
    return int(array) if array.dtype.kind in "biu" else float(array)


def _text(trajectory: types.Trajectory) -> dict[str, Any]:
    """What a person reads of an episode. Rewards that nobody gave (nan) become null."""
    steps = [
        {
            "observation": step.observation,
            "response": step.response,
            "action": step.action,
            "well_formed": bool(step.well_formed),
            "admissible": bool(step.admissible),
            "outcome_reward": _given(step.outcome_reward),
            "dense_reward": _given(step.dense_reward),
        }
        for step in trajectory.steps
    ]
    return {
        "task_id": trajectory.task_id,
        "task_type": trajectory.task_type,
        "task": trajectory.task,
        "group": int(trajectory.group),
        "seed": int(trajectory.seed),
        "policy": trajectory.policy,
        "update": int(trajectory.update),
        "outcome": _given(trajectory.outcome),
        "success": bool(trajectory.success),
        "termination": trajectory.termination,
        "seconds": round(float(trajectory.seconds), 3),
        "steps": steps,
    }


def _given(reward: float) -> float | None:
    return float(reward) if math.isfinite(reward) else None


def _open(path: pathlib.Path) -> TextIO:
    return path.open("a", encoding="ascii", newline="\n")


def _lock(file: TextIO, workdir: pathlib.Path) -> None:
    """Two trainers in one workdir would mix their lines. The lock goes with the process, however that ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ValueError(f"{workdir} is being written by another process; end it, or choose another workdir.") from error


def _append(file: TextIO, record: Mapping[str, Any]) -> None:
    """One line, on the disk when this returns."""
    file.write(jsonl.encode(record))
    file.flush()
    os.fsync(file.fileno())


def _replace(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file so that a crash leaves the old one or the new one."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _open_events(directory: pathlib.Path) -> event_file_writer.EventsWriter:
    """A new event file. The synchronous writer: tensorboardX's queue blocks forever once its thread died of a full disk."""
    directory.mkdir(exist_ok=True)
    return event_file_writer.EventsWriter(str(directory / "events"), filename_suffix=f".{time.time_ns()}")


def _write_events(writer: event_file_writer.EventsWriter, tick: int, kind: str, values: Mapping[str, float | int | str]) -> None:
    for name, value in values.items():
        if not isinstance(value, str):
            scalar = summary_pb2.Summary.Value(tag=f"{kind}/{name}", simple_value=value)
            writer.write_event(event_pb2.Event(wall_time=time.time(), step=tick, summary=summary_pb2.Summary(value=[scalar])))
    writer.flush()
