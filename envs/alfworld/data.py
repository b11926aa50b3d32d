"""Games on disk: the official folder layout, where it is looked for, and how a game file is read.

    <data>/{train,valid_seen,valid_unseen}/<task type>-<object>-<movable>-<receptacle>-<scene>/trial_*/game.tw-pddl

A game file is JSON: `pddl_domain`, `grammar` (with the task's words in it), `pddl_problem`, `solvable`, `walkthrough`.
Files of release 2.1.1 carry the old logic ("put X in/on Y", no `help`), which ALFWorld 0.4 no longer speaks: their
domain and grammar are replaced by the package's. Files of 2.1.2, and ours, are played as they are.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import zlib

from envs.alfworld import engine, package, simulator
from envs.alfworld.grammar import Grammar
from envs.protocol import Task

SPLITS = ("train", "valid_seen", "valid_unseen")
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
RELEASES = ("json_2.1.2", "json_2.1.1")  # folders of ALFWorld's releases below ALFWORLD_DATA, newest first
GAME = "game.tw-pddl"
TRANSLATION = "translation.z"  # beside a game that we made: what its translation gave, so that no worker repeats it
GAMES_IN_MEMORY = 16  # per process, beyond those that slots are playing; 1 to 3 MB each

_GOAL = re.compile(r'Your task is to: ((?:[^"\\]|\\.)*)"')


def resolve(data: str) -> pathlib.Path:
    """The folder that holds the splits: `data`, or where that is empty the environment variable ALFWORLD_DATA.

    Raises FileNotFoundError, naming where the path came from and the command that makes games.
    """
    source = "config.pool.options.data" if data else "the environment variable ALFWORLD_DATA"
    given = data or os.environ.get("ALFWORLD_DATA", "")
    remedy = "make games with `rspo envs make alfworld --out DIR --games N --seed S` and pass that DIR"
    if not given:
        raise FileNotFoundError(f"no ALFWorld games: config.pool.options.data and ALFWORLD_DATA are both empty; {remedy}")
    folder = pathlib.Path(given).expanduser()
    for candidate in (folder, *(folder / release for release in RELEASES)):
        if any((candidate / split).is_dir() for split in SPLITS):
            return candidate
    found = "has none of train/, valid_seen/, valid_unseen/" if folder.is_dir() else "does not exist"
    raise FileNotFoundError(f"no ALFWorld games: {source}={given!r} {found}; {remedy}")


def tasks(folder: pathlib.Path, split: str) -> list[Task]:
    """The games of a split, sorted by id (the path of the game's folder below the data folder).

    Left out, as ALFWorld itself does: movable receptacles and sliced objects, other task types, and games that are
    not marked as solvable.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r} of ALFWorld; choose one of {', '.join(SPLITS)}")
    found = []
    for file in (folder / split).glob(f"*/*/{GAME}"):
        name = file.relative_to(folder).parent.as_posix()
        kind = file.parent.parent.name.partition("-")[0]
        if kind not in TASK_TYPES or "movable" in name or "Sliced" in name:
            continue
        if re.search(r'"solvable":\s*true', file.read_text(encoding="utf-8")):
            found.append(Task(id=name, type=kind))
    return sorted(found, key=lambda task: task.id)


@dataclasses.dataclass(frozen=True)
class GameFile:
    """The texts of a game. `grammar` has the words UNKNOWN GOAL where the task was, so that games share a parsed one."""

    domain: str
    grammar: str
    problem: str
    task: str
    walkthrough: tuple[str, ...]  # commands that win; empty where the file has none, or has them in the old logic


def read(file: pathlib.Path) -> GameFile:
    """Reads a game file. Raises ValueError, naming the file, where it is no game."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        domain, grammar, problem = record["pddl_domain"], record["grammar"], record["pddl_problem"]
    except (json.JSONDecodeError, KeyError) as error:
        raise ValueError(f"{file} is not an ALFWorld game: {error!r}; remove it or make the games again") from error
    goal = _GOAL.search(grammar)
    if goal is None:
        raise ValueError(f"{file}: its grammar has no line 'Your task is to: ..'; remove it or make the games again")
    walkthrough = tuple(record.get("walkthrough") or ())
    task = json.loads(f'"{goal[1]}"').removesuffix(".")
    grammar = _GOAL.sub(f'Your task is to: {engine.UNKNOWN_TASK}."', grammar)
    if not re.search(r"\baction\s+help\b", grammar):
        domain, grammar, walkthrough = package.domain(), package.grammar(), ()
    return GameFile(domain, grammar, problem, task, walkthrough)


@functools.lru_cache(maxsize=GAMES_IN_MEMORY)
def load(file: pathlib.Path) -> engine.Game:
    """The game of a file, ready to play and shared by the slots of this process."""
    game = read(file)
    return build(game, translation(file.parent, game))


def build(game: GameFile, translated: simulator.Translation) -> engine.Game:
    """A game from its texts and their translation."""
    machine = simulator.Simulator.acquire()
    try:
        return engine.Game(translated, parsed_grammar(game.grammar), game.task, machine)
    finally:
        machine.release()


@functools.lru_cache(maxsize=4)
def parsed_grammar(text: str) -> Grammar:
    simulator.claim()
    return Grammar(text)


def translation(folder: pathlib.Path, game: GameFile) -> simulator.Translation:
    """The stored translation of a game where there is one of exactly these texts, else a new one."""
    file = folder / TRANSLATION
    if file.exists():
        record = json.loads(zlib.decompress(file.read_bytes()))
        if record.pop("digest") == _digest(game):
            return simulator.Translation(**{**record, "sas": record["sas"].encode()})
    return simulator.translate(game.domain, game.problem)


def store_translation(folder: pathlib.Path, game: GameFile, result: simulator.Translation) -> None:
    """Writes a translation beside its game, whole or not at all."""
    record = {"digest": _digest(game), **dataclasses.asdict(result), "sas": result.sas.decode()}
    text = json.dumps(record, separators=(",", ":"), sort_keys=True)
    unfinished = folder / f"{TRANSLATION}.partial"
    unfinished.write_bytes(zlib.compress(text.encode(), 6))
    unfinished.rename(folder / TRANSLATION)


def _digest(game: GameFile) -> str:
    return hashlib.sha256(f"{game.domain}\0{game.problem}".encode()).hexdigest()
