"""What an environment is. Environments know nothing of tokens, policies or training, and import neither jax nor rspo_jax.

An environment family is a module with one function, named by its import path in a config (`envs.alfworld`):

    def make(**options) -> Environment

An `Environment` object is one slot: it plays one episode at a time, again and again, inside a worker process.
"""

import dataclasses
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Task:
    """One thing to play: a game, a goal, a level. Sorted by id, so that a split is the same list everywhere."""

    id: str
    type: str  # the family that success rates are reported by


@dataclasses.dataclass(frozen=True)
class Observation:
    """What a reset or a step answers."""

    text: str
    task: str = ""  # the goal in words; filled by reset
    admissible: tuple[str, ...] = ()  # actions that would be accepted now; empty where an environment does not list them
    reward: float = 0.0  # the environment's own reward of this step, in [0, 1] for outcomes
    done: bool = False
    success: bool = False  # the environment's own verdict
    error: str = ""  # kind of failure ("timeout", "killed", "raised ValueError"): the episode is over and marked


class Environment(Protocol):
    """One slot of a worker."""

    def tasks(self, split: str) -> list[Task]:
        """The tasks of a split, sorted by id. Raises ValueError, naming the splits, for an unknown one."""

    def reset(self, task_id: str, seed: int) -> Observation:
        """Starts an episode of one task. The same task and seed give the same episode in every process."""

    def step(self, action: str) -> Observation:
        """Plays one action. Any string is legal; what the environment does not understand is an observation too."""

    def close(self) -> None:
        """Frees what the slot holds."""
