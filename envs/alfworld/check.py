"""Are the games of a folder whole and solvable? Each is played to the win in the engine."""

import dataclasses
import json
import pathlib
import zlib

from envs.alfworld import data, engine, oracle


@dataclasses.dataclass(frozen=True)
class Report:
    """The outcome of a check: how many games were played to the win, by split, and what failed."""

    won: dict[str, int]
    failures: tuple[str, ...]  # "<file>: <what went wrong>"

    def __str__(self) -> str:
        counts = ", ".join(f"{number} {split}" for split, number in self.won.items())
        return "\n".join([f"played to the win: {counts}", *(f"failed: {failure}" for failure in self.failures)])


def check_games(folder: str) -> Report:
    """Plays each game by its walkthrough, or by the oracle where it has none, and names those that are not won.

    Works on our games and on the official ones. A game that was left out as unsolvable is not played.
    """
    root = data.resolve(folder)
    won, failures = dict.fromkeys(data.SPLITS, 0), []
    for split in data.SPLITS:
        for task in data.tasks(root, split):
            file = root / task.id / data.GAME
            try:
                play(file)
                won[split] += 1
            except (ValueError, LookupError, RuntimeError, zlib.error, json.JSONDecodeError) as error:
                failures.append(f"{file}: {error}")
    return Report(won, tuple(failures))


def play(file: pathlib.Path) -> None:
    """Plays one game to the win, or raises an error that says why that failed."""
    source = data.read(file)
    game = data.build(source, data.translation(file.parent, source))
    replay(game, source.walkthrough or oracle.plan(oracle.goal(source.problem), game))


def replay(game: engine.Game, commands: list[str] | tuple[str, ...]) -> None:
    """Plays commands from the start of a game. Raises RuntimeError unless each is offered and the last one wins."""
    session = engine.Session()
    try:
        session.reset(game)
        for number, command in enumerate(commands, 1):
            if session.node.won:
                raise RuntimeError(f"the game is won before command {number} ({command!r}) of {len(commands)}")
            if command not in session.node.admissible:
                raise RuntimeError(f"command {number} ({command!r}) of {len(commands)} is not offered")
            session.step(command)
        if not session.node.won:
            raise RuntimeError(f"{len(commands)} commands were played and the game is not won")
    finally:
        session.close()
