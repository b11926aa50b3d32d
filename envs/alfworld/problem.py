"""Writes a blueprint as the texts of a game: PDDL problem, domain and grammar, and ALFRED's traj_data.json."""

import functools
import re

from envs.alfworld import package
from envs.alfworld.blueprint import Blueprint

AFFORDANCES = {"cleanable": "Cleanable", "heatable": "Heatable", "coolable": "Coolable", "sliceable": "Sliceable"}


def pddl(game: Blueprint, name: str) -> str:
    """The PDDL problem. Only what the game has is declared: the real files name all of ALFRED's classes each time."""
    receptacles, things = game.scene.receptacles, game.things
    kinds, classes = game.scene.kinds(), sorted({thing.kind for thing in things})
    locations = sorted({receptacle.location for receptacle in receptacles} | {game.scene.start})
    objects = ["agent1 - agent"]
    objects += [f"{kind}Type - otype" for kind in classes] + [f"{kind}Type - rtype" for kind in kinds]
    objects += [f"{thing.id} - object" for thing in things] + [f"{r.id} - receptacle" for r in receptacles]
    objects += [f"{location} - location" for location in locations]
    return (
        f"(define (problem plan_{name})\n(:domain alfred)\n(:objects\n" + "\n".join(objects) + "\n)\n(:init\n"
        + "\n".join(f"({fact})" for fact in _facts(game, kinds, classes)) + "\n)\n" + _goal(game)
    )


def _facts(game: Blueprint, kinds: list[str], classes: list[str]) -> list[str]:
    tables = package.constants()
    facts = []
    for receptacle in game.scene.receptacles:
        facts.append(f"receptacleType {receptacle.id} {receptacle.kind}Type")
        facts.append(f"receptacleAtLocation {receptacle.id} {receptacle.location}")
        if receptacle.openable:
            facts.append(f"openable {receptacle.id}")
    for kind in kinds:
        held = tables.VAL_RECEPTACLE_OBJECTS[kind]
        facts += [f"canContain {kind}Type {name}Type" for name in classes if name in held]
    for thing in game.things:
        facts.append(f"objectType {thing.id} {thing.kind}Type")
        facts.append(f"objectAtLocation {thing.id} {thing.place.location}")
        facts.append(f"inReceptacle {thing.id} {thing.place.id}")
        facts.append(f"toggleable {thing.id}" if thing.kind == "DeskLamp" else f"pickupable {thing.id}")
        if thing.kind in tables.MOVABLE_RECEPTACLES_SET:
            facts.append(f"isReceptacleObject {thing.id}")
        facts += [f"{name} {thing.id}" for name, table in AFFORDANCES.items() if thing.kind in tables.VAL_ACTION_OBJECTS[table]]
    facts.append(f"atLocation agent1 {game.scene.start}")
    return facts


def _goal(game: Blueprint) -> str:
    text = package.goals()[game.task_type]["pddl"].replace("#", "-")
    return " ".join(text.format(obj=game.target, recep=game.parent, toggle=game.toggle).split()) + "\n"


@functools.cache
def logic() -> tuple[str, str]:
    """The package's domain and grammar without comments and indentation.

    They must be in each file (ALFWorld reads nothing else); this makes them half as long.
    """
    domain = " ".join(re.sub(r";[^\n]*", "", package.domain()).split())
    grammar = "\n".join(line.strip() for line in package.grammar().splitlines() if line.strip())
    return domain, grammar


def traj_data(game: Blueprint, trial: str) -> dict:
    """What ALFWorld and its kin read of ALFRED's trajectory file. There is no picture and no human annotation."""
    return {
        "task_id": trial,
        "task_type": game.task_type,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": game.target,
            "parent_target": game.parent,
            "toggle_target": game.toggle,
        },
        "scene": {"floor_plan": f"FloorPlan{game.scene.number}", "scene_num": game.scene.number},
        "turk_annotations": {"anns": [{"task_desc": game.task, "high_descs": []}]},
    }
