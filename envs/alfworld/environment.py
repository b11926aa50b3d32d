"""One slot of ALFWorld behind the protocol of `envs.protocol`."""

import pathlib

from envs.alfworld import data, engine
from envs.protocol import Observation, Task

BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"
GOAL = "\n\nYour task is to: "


class AlfWorld:
    """Plays one episode at a time on ALFWorld's engine.

    The first observation is the engine's introduction between its banner and its task sentence: what there is to see.
    The task's words, without the final stop, are `Observation.task`. Later observations are the engine's feedback as
    it is. Admissible actions are the engine's, without `help`, which is understood but teaches a policy nothing. The
    reward is 1 on the step that wins and 0 elsewhere, and `success` is the engine's own goal test.

    There is no limit of steps here: the 50 of ALFWorld's scripts is a wrapper of textworld's gym interface, which
    this class does not go through, and whoever collects episodes caps them. A step after the win changes nothing and
    is answered like the engine does: "Nothing happens.", done.

    The engine is deterministic, so `seed` makes no difference: the same game is the same episode.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._session = engine.Session()
        self._done = False  # the only end is a win

    def tasks(self, split: str) -> list[Task]:
        return data.tasks(self._folder, split)

    def reset(self, task_id: str, seed: int) -> Observation:
        del seed
        file = self._folder / task_id / data.GAME
        if not file.is_file():
            raise FileNotFoundError(f"no game {task_id!r} in {self._folder}: there is no file {file}")
        game = data.load(file)
        text = self._session.reset(game).removeprefix(BANNER).rpartition(GOAL)[0]
        self._done = False
        return Observation(text=text, task=game.task, admissible=self._admissible())

    def step(self, action: str) -> Observation:
        if self._session.node is None:
            raise RuntimeError("ALFWorld was stepped before its first reset, or after close; reset a task first")
        if self._done:
            return Observation(text=engine.NOTHING, done=True, success=True)
        text = self._session.step(action)
        self._done = self._session.node.won
        return Observation(text, admissible=self._admissible(), reward=float(self._done), done=self._done, success=self._done)

    def close(self) -> None:
        self._session.close()

    def _admissible(self) -> tuple[str, ...]:
        return tuple(command for command in self._session.node.admissible if command != "help")
