"""The oracle: goals read from PDDL, and plans for all games there are."""

import pytest

from envs.alfworld import data, oracle, package


def goal_of(task_type, **words):
    words = {"obj": "Mug", "recep": "Desk", "toggle": "DeskLamp", "mrecep": "Bowl", **words}
    return oracle.goal("(:goal" + package.goals()[task_type]["pddl"].split("(:goal", 1)[1].format(**words).replace("#", "-"))


def test_goals_of_all_task_types():
    assert goal_of("pick_and_place_simple") == oracle.Goal("mugtype", "desktype", "", "", 1)
    assert goal_of("look_at_obj_in_light") == oracle.Goal("mugtype", "", "desklamptype", "", 1)
    assert goal_of("pick_clean_then_place_in_recep") == oracle.Goal("mugtype", "desktype", "", "isclean", 1)
    assert goal_of("pick_heat_then_place_in_recep") == oracle.Goal("mugtype", "desktype", "", "ishot", 1)
    assert goal_of("pick_cool_then_place_in_recep") == oracle.Goal("mugtype", "desktype", "", "iscool", 1)
    assert goal_of("pick_two_obj_and_place") == oracle.Goal("mugtype", "desktype", "", "", 2)
    with pytest.raises(ValueError, match="movable receptacles"):
        goal_of("pick_and_place_with_movable_recep")
    with pytest.raises(ValueError, match="not the goal of one"):
        oracle.goal("(:goal (and (isOn lamp)))")


class Room:
    """As much of a game as the oracle looks at: a mug in a shut drawer, two on a desk, a basin beside the desk."""

    facts = {
        "atlocation": {("agent1", "door")},
        "receptacleatlocation": {("drawer1", "left"), ("desk1", "right"), ("shelf1", "back"), ("basin1", "right")},
        "inreceptacle": {("mug1", "drawer1"), ("mug2", "desk1"), ("mug3", "desk1")},
        "objecttype": {("mug1", "mugtype"), ("mug2", "mugtype"), ("mug3", "mugtype")},
        "receptacletype": {
            ("drawer1", "drawertype"), ("desk1", "desktype"), ("shelf1", "shelftype"), ("basin1", "sinkbasintype"),
        },
        "openable": {("drawer1",)},
    }
    names = {name: f"{name[:-1]} {name[-1]}" for name in ("drawer1", "desk1", "shelf1", "basin1", "mug1", "mug2", "mug3")}


def test_plan_opens_shares_locations_and_takes_turns():
    clean = oracle.plan(oracle.Goal("mugtype", "shelftype", "", "isclean", 1), Room)
    # The first mug is in the drawer; the basin shares the desk's location.
    assert clean == [
        "go to drawer 1", "open drawer 1", "take mug 1 from drawer 1", "go to basin 1", "clean mug 1 with basin 1",
        "go to shelf 1", "move mug 1 to shelf 1",
    ]
    two = oracle.plan(oracle.Goal("mugtype", "drawertype", "", "", 2), Room)
    # One mug is in the drawer already, so one more is enough; the drawer is shut.
    assert two == ["go to desk 1", "take mug 2 from desk 1", "go to drawer 1", "open drawer 1", "move mug 2 to drawer 1"]


def test_what_is_missing_is_named():
    with pytest.raises(LookupError, match="no receptacle of safetype"):
        oracle.plan(oracle.Goal("mugtype", "safetype", "", "", 1), Room)
    with pytest.raises(LookupError, match="no object of pentype"):
        oracle.plan(oracle.Goal("pentype", "desktype", "", "", 1), Room)
    with pytest.raises(LookupError, match="too few objects"):
        oracle.plan(oracle.Goal("mugtype", "shelftype", "", "", 4), Room)


def test_plans_are_the_walkthroughs(made):
    for task in data.tasks(made, "valid_unseen"):
        file = made / task.id / data.GAME
        source = data.read(file)
        assert tuple(oracle.plan(oracle.goal(source.problem), data.load(file))) == source.walkthrough
