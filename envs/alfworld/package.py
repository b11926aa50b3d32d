"""What the `alfworld` package ships and we build on: its PDDL domain, its text grammar, its tables, its floor plans.

The files are read without importing `alfworld`: that import makes a folder in the user's home and sets ALFWORLD_DATA
to it "in case it wasn't" set, so that a missing path could no longer be told from a given one.
"""

import functools
import importlib.util
import json
import pathlib
import types

SCENES = {"Kitchen": range(1, 31), "LivingRoom": range(201, 231), "Bedroom": range(301, 331), "Bathroom": range(401, 431)}


@functools.cache
def root() -> pathlib.Path:
    """The folder of the installed package. Raises ImportError, with the remedy, where there is none."""
    spec = importlib.util.find_spec("alfworld")  # finds a top-level package without importing it
    if spec is None or spec.origin is None:
        raise ImportError("the package alfworld is not installed: run `make install`, or pip install alfworld==0.4.2")
    return pathlib.Path(spec.origin).parent


@functools.cache
def domain() -> str:
    """The PDDL domain of the current game logic."""
    return (root() / "data" / "alfred.pddl").read_text(encoding="utf-8")


@functools.cache
def grammar() -> str:
    """The text grammar of the current game logic; its task is the words UNKNOWN GOAL."""
    return (root() / "data" / "alfred.twl2").read_text(encoding="utf-8")


@functools.cache
def constants() -> types.ModuleType:
    """The tables of objects, receptacles, affordances and train/test scenes (alfworld/gen/constants.py)."""
    return _load("constants")


@functools.cache
def goals() -> dict[str, dict]:
    """Task type -> {"pddl": goal with {obj}, {recep}, {toggle}, "templates": the goal in words} (goal_library.py)."""
    return _load("goal_library").gdict


def floor_plan(scene: int) -> tuple[list[str], dict[str, list[float]]]:
    """The objects that AI2-THOR's scene contains and the poses [x, z, rotation, horizon] from which receptacles are reached."""
    layouts = root() / "gen" / "layouts"
    objects = json.loads((layouts / f"FloorPlan{scene}-objects.json").read_text(encoding="utf-8"))
    poses = json.loads((layouts / f"FloorPlan{scene}-openable.json").read_text(encoding="utf-8"))
    return objects, poses


def _load(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"_alfworld_{name}", root() / "gen" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
