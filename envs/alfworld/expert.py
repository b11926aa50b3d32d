"""An expert that plays like a policy must: it knows the task's words and what it has seen, not where things are.

It searches likely receptacles first (`prior`), takes the target when it sees it, treats it, and puts it away. With
`noise` it errs now and then: half of its errors are random admissible actions, half misread the room and mostly change nothing.
So its episodes also show how to go on after an error. With `hesitation` it looks around instead of acting, as language models
do: a habit that costs steps. A policy that is cloned from all this has something to unlearn (docs/decisions/0006).
"""

import dataclasses
import functools
import random
import re

from envs.alfworld import package, prior
from envs.protocol import Observation

APPLIANCES = {
    "pick_heat_then_place_in_recep": ("heat", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "fridge"),
    "pick_clean_then_place_in_recep": ("clean", "sinkbasin"),
}
UNKNOWN_WEIGHT = 0.05  # of a place that the prior rules out: visited last, but visited

_MOVES = (("take", "from"), ("move", "to"))

_NAME = r"[a-z]+ \d+"
_SEEN = re.compile(rf"(?:On|The) (?:the )?({_NAME})(?: is open\. In it)?, you see ([^.]*)\.")
_CLOSED = re.compile(rf"The ({_NAME}) is closed\.")
_TOOK = re.compile(rf"You pick up the ({_NAME}) from the ({_NAME})\.")
_PUT = re.compile(rf"You move the ({_NAME}) to the ({_NAME})\.")
_TREATED = re.compile(rf"You (?:heat|cool|clean) the ({_NAME}) using the {_NAME}\.")


@dataclasses.dataclass(frozen=True)
class Goal:
    target: str  # class of the object, as the task names it
    parent: str  # class of the receptacle; "" for the task under a lamp
    lamp: str  # class of the lamp; "" for the other tasks


def goal(task_type: str, task: str) -> Goal:
    """Reads a task's words by the templates of ALFWorld. Raises ValueError for other words (human annotations)."""
    for template in package.goals()[task_type]["templates"]:
        pattern = template.format(obj="(?P<obj>[a-z]+)", recep="(?P<recep>[a-z]+)", toggle="(?P<toggle>[a-z]+)")
        found = re.fullmatch(pattern, task)
        if found:
            words = found.groupdict()
            return Goal(words["obj"], words.get("recep", ""), words.get("toggle", ""))
    raise ValueError(f"the expert reads the templated tasks of {task_type} only, not {task!r}")


class Expert:
    """Plays one episode: `act` takes each observation, from reset's on, and returns the next action."""

    def __init__(self, task_type: str, task: str, seed: int, noise: float, hesitation: float = 0.0):
        for name, value in (("noise", noise), ("hesitation", hesitation)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name}={value}: a probability between 0 and 1 is needed")
        self._task_type, self._noise, self._hesitation = task_type, noise, hesitation
        self._goal = goal(task_type, task)
        self._rng = random.Random(f"expert {seed}")
        self._places: list[str] = []  # all receptacles, in the order of the first observation
        self._contents: dict[str, set[str]] = {}  # what is known to be in the receptacles that were looked into
        self._shut: set[str] = set()  # receptacles that were seen closed, and not seen open since
        self._held = ""
        self._treated: set[str] = set()

    def act(self, observation: Observation) -> str:
        """The next action, an admissible one unless it is noise. Raises ValueError where there are none."""
        if not observation.admissible:
            raise ValueError("the expert chooses among admissible actions and the observation lists none")
        self._read(observation.text)
        if self._rng.random() < self._hesitation:
            return "look"
        if self._rng.random() < self._noise:
            return self._rng.choice(observation.admissible) if self._rng.random() < 0.5 else self._misread()
        action = self._holding(observation.admissible) if self._held else self._searching(observation.admissible)
        return action if action in observation.admissible else self._rng.choice(observation.admissible)

    def _read(self, text: str) -> None:
        """Notes what an observation says."""
        if not self._places:
            self._places = re.findall(_NAME, text)
        if took := _TOOK.search(text):
            self._held = took[1]
            self._contents.get(took[2], set()).discard(took[1])
        if put := _PUT.search(text):
            self._held = ""
            self._contents.setdefault(put[2], set()).add(put[1])
        if treated := _TREATED.search(text):
            self._treated.add(treated[1])
        for place in _CLOSED.findall(text):
            self._shut.add(place)
        for place, things in _SEEN.findall(text):
            self._shut.discard(place)
            self._contents[place] = set(re.findall(_NAME, things))

    def _misread(self) -> str:
        """What somebody says who misreads the room: mostly not admissible, so that nothing happens."""
        place = self._rng.choice(self._places)
        things = sorted(thing for held in self._contents.values() for thing in held)
        absent = f"{_kind(place)} {1 + sum(_kind(other) == _kind(place) for other in self._places)}"
        moves = [f"{words[0]} {self._rng.choice(things)} {words[1]} {place}" for words in _MOVES if things]
        return self._rng.choice([f"go to {absent}", f"open {place}", *moves])

    def _holding(self, admissible: tuple[str, ...]) -> str:
        if _kind(self._held) != self._goal.target:  # noise picked it up
            down = [action for action in admissible if action.startswith("move ")]
            return self._rng.choice(down) if down else self._visit(self._next_place(_kind(self._held)), admissible)
        if self._goal.lamp:
            lit = [action for action in admissible if action.startswith(f"use {self._goal.lamp} ")]
            return lit[0] if lit else self._visit(self._where(self._goal.lamp), admissible)
        if self._task_type in APPLIANCES and self._held not in self._treated:
            verb, appliance = APPLIANCES[self._task_type]
            treat = [action for action in admissible if action.startswith(f"{verb} {self._held} with {appliance} ")]
            return treat[0] if treat else self._visit(self._first(appliance), admissible)
        target = self._target()
        put = f"move {self._held} to {target}"
        return put if put in admissible else self._visit(target, admissible)

    def _searching(self, admissible: tuple[str, ...]) -> str:
        done = set() if self._goal.lamp else {place for place in self._contents if self._is_done(place)}
        takes = [re.fullmatch(rf"take ({_NAME}) from ({_NAME})", action) for action in admissible]
        for take in filter(None, takes):
            if _kind(take[1]) == self._goal.target and self._is_wanted(take[1], take[2], done):
                return take[0]
        for place, things in self._contents.items():
            if any(_kind(thing) == self._goal.target and self._is_wanted(thing, place, done) for thing in things):
                return self._visit(place, admissible)
        return self._visit(self._next_place(self._goal.target), admissible)

    def _is_done(self, place: str) -> bool:
        """Whether objects of the target class in this receptacle are where they should be."""
        if self._task_type == "pick_two_obj_and_place":
            return place == self._target()
        return _kind(place) == self._goal.parent

    def _is_wanted(self, thing: str, place: str, done: set[str]) -> bool:
        untreated = self._task_type in APPLIANCES and thing not in self._treated
        return place not in done or untreated

    def _target(self) -> str:
        """The receptacle to fill: the one that is known to hold most of the target class already, else the first."""
        places = [place for place in self._places if _kind(place) == self._goal.parent]

        def held(place: str) -> int:
            return sum(_kind(thing) == self._goal.target for thing in self._contents.get(place, ()))

        return max(places, key=held, default="")

    def _where(self, kind: str) -> str:
        """A receptacle that is known to hold an object of this class, else the next one to look into."""
        for place, things in self._contents.items():
            if any(_kind(thing) == kind for thing in things):
                return place
        return self._next_place(kind)

    def _first(self, kind: str) -> str:
        return next((place for place in self._places if _kind(place) == kind), "")

    def _next_place(self, kind: str) -> str:
        """A receptacle that was not looked into yet, drawn by the prior. What was seen shut here is opened first."""
        left = [place for place in self._places if place not in self._contents]
        if not left:  # somebody moved the thing: look again
            self._contents.clear()
            left = self._places
        shut = [place for place in left if place in self._shut]
        if shut:
            return shut[-1]
        counts = {place: sum(_kind(other) == _kind(place) for other in self._places) for place in left}
        weights = [max(_weight(kind, _kind(place)), UNKNOWN_WEIGHT) / counts[place] for place in left]
        return self._rng.choices(left, weights)[0]

    def _visit(self, place: str, admissible: tuple[str, ...]) -> str:
        """One step towards looking into a receptacle: go there, open it, or look again where one already stands."""
        for action in (f"open {place}", f"go to {place}", f"examine {place}"):
            if action in admissible:
                return action
        return ""


def _kind(name: str) -> str:
    return name.partition(" ")[0]


@functools.cache
def _weight(kind: str, place: str) -> float:
    classes = _classes()
    if kind not in classes or place not in classes:
        return 0.0
    return prior.weight(classes[kind], classes[place])


@functools.cache
def _classes() -> dict[str, str]:
    """Lower-case class name, as in texts -> the tables' name, for the classes that the prior knows."""
    names = {*prior.HOMES, "DeskLamp", *package.constants().VAL_RECEPTACLE_OBJECTS}
    return {name.lower(): name for name in names}
