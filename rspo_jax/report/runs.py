"""Workdirs as they are read: the files of a run, its config, and which runs are seeds of one another."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rspo_jax.report import jsonl

METRICS, TRAJECTORIES, CONFIG, HEADER = "metrics.jsonl", "trajectories.jsonl", "config.json", "header.json"
ELAPSED = "seconds/elapsed"  # stamped on every line: seconds since the start of the run, without the time between resumes

# What two success rates must share to be comparable. A fact that a run leaves out is shown as not stated.
COMPARABILITY = (
    "data", "split", "games", "evaluation_games", "history", "step_cap", "temperature", "evaluation_temperatures", "seed",
)  # fmt: skip
NOT_STATED = "not stated"


@dataclasses.dataclass(frozen=True)
class Record:
    """One workdir."""

    name: str  # shortest end of its path that tells it from the others
    config: Mapping[str, Any]  # flat: "policy.learning_rate" -> value
    facts: Mapping[str, Any]
    config_changes: Sequence[Mapping[str, Any]]
    lines: Mapping[str, Sequence[Mapping[str, Any]]]  # kind -> its lines, by tick
    trajectories: Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one config that differ in their seeds only; often a single one."""

    name: str
    records: Sequence[Record]


def load(workdirs: Sequence[str | os.PathLike]) -> list[Record]:
    """Reads workdirs, of finished runs or of running ones.

    Raises:
      FileNotFoundError: a workdir has no metrics.jsonl.
      ValueError: no workdirs, or a file that is damaged.
    """
    if not workdirs:
        raise ValueError("no workdir given; name at least one, as in `rspo report runs/a runs/b`.")
    paths = list(dict.fromkeys(pathlib.Path(workdir).resolve() for workdir in workdirs))
    return [_load(path, name) for path, name in zip(paths, _names(paths), strict=True)]


def group(records: Sequence[Record]) -> list[Group]:
    """Puts runs together whose configs are the same but for their seeds; a run without a config stays alone."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        same = {key: value for key, value in record.config.items() if not _is_seed(key)}
        groups.setdefault(json.dumps(same, sort_keys=True) if same else record.name, []).append(record)
    return [Group(_group_name(members), members) for members in groups.values()]


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """A JSON object, empty where the file does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}"""
    flat = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(key, was, is) of every value in which two nested configs differ; None stands for a key that one lacks."""
    was, now = flatten(old), flatten(new)
    for key in sorted(set(was) | set(now)):
        if was.get(key) != now.get(key):
            yield key, was.get(key), now.get(key)


def _load(path: pathlib.Path, name: str) -> Record:
    if not (path / METRICS).exists():
        raise FileNotFoundError(f"{path} has no {METRICS}, so it is not the workdir of a run; give the --workdir of one.")
    lines: dict[str, list] = {}
    for line in jsonl.read(path / METRICS):
        lines.setdefault(line["kind"], []).append(line)
    header = read_json(path / HEADER)
    trajectories = path / TRAJECTORIES
    return Record(
        name=name,
        config=flatten(read_json(path / CONFIG)),
        facts=header.get("facts", {}),
        config_changes=header.get("config_changes", []),
        lines={kind: sorted(some, key=lambda line: line["tick"]) for kind, some in lines.items()},
        trajectories=jsonl.read(trajectories) if trajectories.exists() else [],
    )


def _names(paths: Sequence[pathlib.Path]) -> list[str]:
    """For each path its last part, or as many of its last parts as make it unique."""
    names = []
    for path in paths:
        ends = ["/".join(path.parts[-n:]) for n in range(1, len(path.parts) + 1)]
        others = [f"/{other}" for other in paths if other != path]
        names.append(next((end for end in ends if not any(other.endswith(f"/{end}") for other in others)), str(path)))
    return names


def _is_seed(key: str) -> bool:
    last = key.rpartition(".")[2]
    return last in ("seed", "seeds", "workdir") or last.endswith("_seed")


def _group_name(records: Sequence[Record]) -> str:
    return records[0].name if len(records) == 1 else f"{records[0].name} (mean of {len(records)} seeds)"
