"""One game, drawn: which task in which scene, and where everything is.

A blueprint is drawn from a random generator that depends on (seed, split, number of the game) alone, so that the
games of a split can be made in any order and by any number of processes.
"""

import dataclasses
import random

from envs.alfworld import data, package, prior
from envs.alfworld.scene import Receptacle, Scene, scene

# How many things of one class there are. A kitchen then holds about 30, a bathroom about 12; real games hold 13 to 60,
# 36 on average, which costs the translator and a small policy's context more than it teaches.
INSTANCES = (1, 1, 1, 1, 2)

# Affordance and appliance of the tasks that change an object.
TREATMENTS = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}


@dataclasses.dataclass(frozen=True)
class Thing:
    id: str
    kind: str
    place: Receptacle


@dataclasses.dataclass(frozen=True)
class Blueprint:
    task_type: str
    scene: Scene
    target: str  # class of the object to handle
    parent: str  # class of the receptacle to put it in; "" for look_at_obj_in_light
    things: tuple[Thing, ...]
    task: str  # the goal in words

    @property
    def toggle(self) -> str:
        return "" if self.parent else "DeskLamp"


def draw(seed: int, split: str, number: int, attempt: int) -> Blueprint | None:
    """Draws game `number` of a split; None where the draw has no solution, for which the next attempt is made.

    The task types take turns. Train and valid_seen use ALFRED's training scenes, valid_unseen its test scenes.
    """
    rng = random.Random(f"alfworld {seed} {split} {number} {attempt}")
    task_type = data.TASK_TYPES[number % len(data.TASK_TYPES)]
    room = _scene(rng, task_type, split)
    if task_type == "look_at_obj_in_light" and not room.has_lamp:
        return None
    goals = _goals(task_type, room)
    if not goals:
        return None
    target = rng.choice(sorted({target for target, _ in goals}))
    parent = rng.choice([parent for name, parent in goals if name == target])
    things = _place(rng, task_type, room, target, parent)
    if things is None:
        return None
    words = {"obj": target.lower(), "recep": parent.lower(), "toggle": "desklamp"}
    task = rng.choice(package.goals()[task_type]["templates"]).format(**words)
    return Blueprint(task_type, room, target, parent, things, task)


def _scene(rng: random.Random, task_type: str, split: str) -> Scene:
    tables = package.constants()
    numbers = set(tables.TEST_SCENE_NUMBERS if split == "valid_unseen" else tables.TRAIN_SCENE_NUMBERS)
    room = rng.choice(sorted(tables.GOALS_VALID[task_type]))
    return scene(rng.choice(sorted(numbers & set(package.SCENES[room]))))


def _goals(task_type: str, room: Scene) -> list[tuple[str, str]]:
    """The (target, parent) classes that make sense, sorted. An appliance is not the parent of its own task."""
    if task_type == "look_at_obj_in_light":
        return [(target, "") for target in room.portables]
    targets, kinds = room.portables, room.kinds()
    if task_type in TREATMENTS:
        affordance, appliance = TREATMENTS[task_type]
        if appliance not in kinds:
            return []
        targets = [name for name in targets if name in package.constants().VAL_ACTION_OBJECTS[affordance]]
        kinds = [kind for kind in kinds if kind != appliance]
    return [(target, kind) for target in targets for kind in kinds if kind in prior.compatible(target)]


def _place(rng: random.Random, task_type: str, room: Scene, target: str, parent: str) -> tuple[Thing, ...] | None:
    """Puts everything where the prior says, but nothing of the target class where the task would begin solved."""
    avoided = {parent} if task_type in ("pick_and_place_simple", "pick_two_obj_and_place") else set()
    if task_type in TREATMENTS:
        avoided = {TREATMENTS[task_type][1]}
    things = []
    for kind in room.portables:
        count = rng.choice(INSTANCES)
        if kind == target and task_type == "pick_two_obj_and_place":
            count = max(count, 2)
        for index in range(1, count + 1):
            place = _draw_place(rng, room, kind, avoided if kind == target else set())
            if place is None:
                return None
            things.append(Thing(f"{kind}_bar_{index}", kind, place))
    if task_type == "look_at_obj_in_light":
        things.append(Thing("DeskLamp_bar_1", "DeskLamp", _draw_place(rng, room, "DeskLamp", set())))
    return tuple(things)


def _draw_place(rng: random.Random, room: Scene, kind: str, avoided: set[str]) -> Receptacle | None:
    weights = {place: prior.weight(kind, place) for place in room.kinds() if place not in avoided}
    if not any(weights.values()):
        return None
    place = rng.choices(list(weights), list(weights.values()))[0]
    return rng.choice([receptacle for receptacle in room.receptacles if receptacle.kind == place])
