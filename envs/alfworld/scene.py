"""The rooms that games are made in: ALFWorld's 120 floor plans, with what their files leave out."""

import dataclasses
import functools

from envs.alfworld import package, prior

# Receptacles that a floor plan's list of objects names without a pose: how many there are, each class at a place of
# its own. (Burners and the like stand on a counter in AI2-THOR and need no pose there.)
WITHOUT_POSE = {
    "StoveBurner": 4,
    "CoffeeMachine": 1,
    "Toaster": 1,
    "GarbageCan": 1,
    "HandTowelHolder": 1,
    "TowelHolder": 1,
    "ToiletPaperHanger": 1,
    "LaundryHamper": 1,
    "Toilet": 1,
    "SinkBasin": 1,
}


@dataclasses.dataclass(frozen=True)
class Receptacle:
    id: str  # as in PDDL: Cabinet_bar_3, Sink_bar_1_bar_SinkBasin
    kind: str
    location: str
    openable: bool


@dataclasses.dataclass(frozen=True)
class Scene:
    number: int
    receptacles: tuple[Receptacle, ...]
    portables: tuple[str, ...]  # classes of the scene that can be carried and have a place to be, sorted
    has_lamp: bool
    start: str  # where the agent stands first: at no receptacle, as in the real games

    def kinds(self) -> list[str]:
        return sorted({receptacle.kind for receptacle in self.receptacles})


@functools.cache
def scene(number: int) -> Scene:
    """Reads one floor plan. Receptacles are numbered in the order of their AI2-THOR ids."""
    tables = package.constants()
    objects, poses = package.floor_plan(number)
    holders = set(tables.VAL_RECEPTACLE_OBJECTS) - tables.MOVABLE_RECEPTACLES_SET
    placed = [(_kind(name), tuple(pose)) for name, pose in sorted(poses.items()) if _kind(name) in holders]
    known = {kind for kind, _ in placed}
    for kind, count in WITHOUT_POSE.items():
        if kind in objects and kind not in known:
            placed += [(kind, kind)] * count
    locations = {pose: f"loc_bar_{index}" for index, pose in enumerate(dict.fromkeys(pose for _, pose in placed), 1)}
    counts, receptacles = {}, []
    for kind, pose in placed:
        counts[kind] = counts.get(kind, 0) + 1
        receptacles.append(Receptacle(_id(kind, counts[kind]), kind, locations[pose], kind in tables.OPENABLE_CLASS_SET))
    kinds = {receptacle.kind for receptacle in receptacles}
    portables = tuple(sorted(name for name in set(objects) & set(prior.HOMES) if prior.compatible(name) & kinds))
    has_lamp = "DeskLamp" in objects and bool(kinds & set(prior.LAMP_PLACES))
    return Scene(number, tuple(receptacles), portables, has_lamp, "loc_bar_0")


def _kind(name: str) -> str:
    """Sink|+00.10|+00.90|-01.50|SinkBasin is a SinkBasin, any other id begins with its class."""
    return name.rpartition("|")[2] if name.endswith("Basin") else name.partition("|")[0]


def _id(kind: str, count: int) -> str:
    if kind.endswith("Basin"):
        return f"{kind.removesuffix('Basin')}_bar_{count}_bar_{kind}"
    return f"{kind}_bar_{count}"
