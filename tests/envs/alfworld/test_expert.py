"""The searching expert: what it reads, how it decides, how often it wins."""

import pytest

import envs.alfworld as alfworld
from envs.alfworld import expert
from envs.protocol import Observation


def play(slot, task, seed, noise, cap):
    observation = slot.reset(task.id, 0)
    player, actions = expert.Expert(task.type, observation.task, seed, noise), []
    while not observation.done and len(actions) < cap:
        actions.append(player.act(observation))
        assert noise or actions[-1] in observation.admissible
        observation = slot.step(actions[-1])
    return actions, observation.success


def test_wins_without_noise_and_repeats_by_seed(made):
    slot = alfworld.make(str(made))
    tasks = slot.tasks("valid_unseen") + slot.tasks("train")
    results = [play(slot, task, seed, 0.0, cap=50) for seed, task in enumerate(tasks)]
    assert sum(success for _, success in results) >= 0.95 * len(results)
    assert [play(slot, task, seed, 0.0, cap=50) for seed, task in enumerate(tasks)] == results
    assert [play(slot, task, 99, 0.0, cap=50)[0] for task in tasks] != [actions for actions, _ in results]
    slot.close()


def test_noise_costs_steps_and_the_expert_recovers(made):
    slot = alfworld.make(str(made))
    tasks = slot.tasks("train")
    clean = [play(slot, task, 1, 0.0, cap=200) for task in tasks]
    noisy = [play(slot, task, 1, 0.4, cap=200) for task in tasks]
    assert sum(len(actions) for actions, _ in noisy) > 1.3 * sum(len(actions) for actions, _ in clean)
    assert sum(success for _, success in noisy) >= 0.95 * len(noisy)
    slot.close()


def test_half_of_the_noise_is_admissible_and_most_of_the_rest_changes_nothing(made):
    slot = alfworld.make(str(made))
    observation, admissible, nothing = slot.reset(slot.tasks("train")[0].id, 0), [], []
    player = expert.Expert(slot.tasks("train")[0].type, observation.task, seed=0, noise=1.0)
    for _ in range(300):
        action = player.act(observation)
        admissible.append(action in observation.admissible)
        observation = slot.step(action)
        if not admissible[-1]:
            nothing.append(observation.text == "Nothing happens.")
    assert 0.45 < sum(admissible) / len(admissible) < 0.75  # some missteps happen to be admissible
    assert all(nothing)
    slot.close()


def test_hesitation_only_costs_steps(made):
    slot, looks, others = alfworld.make(str(made)), 0, 0
    for seed, task in enumerate(slot.tasks("train")):
        observation = slot.reset(task.id, 0)
        player = expert.Expert(task.type, observation.task, seed, noise=0.0, hesitation=0.5)
        for _ in range(100):
            action = player.act(observation)
            looks, others = looks + (action == "look"), others + (action != "look")
            observation = slot.step(action)
            if observation.done:
                break
        assert observation.success
    assert 0.35 < looks / (looks + others) < 0.65
    slot.close()


def test_wins_real_games(real):
    slot = alfworld.make(str(real))
    results = [play(slot, task, 0, 0.0, cap=50) for split in ("train", "valid_unseen") for task in slot.tasks(split)]
    assert len(results) == 8 and all(success for _, success in results)
    slot.close()


def test_decides_by_what_it_sees():
    player = expert.Expert("pick_heat_then_place_in_recep", "heat some mug and put it in sidetable", seed=0, noise=0.0)
    room = Observation(
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a microwave 1, and a sidetable 1.",
        admissible=("go to cabinet 1", "go to microwave 1", "go to sidetable 1", "look"),
    )
    player._read(room.text)
    player._contents["sidetable 1"] = player._contents["microwave 1"] = set()  # only the cabinet is left to search
    assert player.act(room) == "go to cabinet 1"
    rest = (
        ("You arrive at cabinet 1. The cabinet 1 is closed.", "examine cabinet 1", "open cabinet 1"),
        ("You open the cabinet 1. The cabinet 1 is open. In it, you see a mug 2, and a pan 1.",
         "take pan 1 from cabinet 1", "take mug 2 from cabinet 1"),
        ("You pick up the mug 2 from the cabinet 1.", "go to sidetable 1", "go to microwave 1"),
        ("You arrive at microwave 1. The microwave 1 is closed.", "open microwave 1", "heat mug 2 with microwave 1"),
        ("You heat the mug 2 using the microwave 1.", "heat mug 2 with microwave 1", "go to sidetable 1"),
        ("You arrive at sidetable 1. On the sidetable 1, you see nothing.", "look", "move mug 2 to sidetable 1"),
    )
    for text, other, expected in rest:
        assert player.act(Observation(text, admissible=(other, expected))) == expected


def test_reads_templated_goals_and_refuses_others():
    assert expert.goal("pick_two_obj_and_place", "find two pen and put them in drawer") == expert.Goal("pen", "drawer", "")
    assert expert.goal("look_at_obj_in_light", "examine the cd with the desklamp") == expert.Goal("cd", "", "desklamp")
    assert expert.goal("pick_cool_then_place_in_recep", "put a cool egg in microwave") == expert.Goal("egg", "microwave", "")
    with pytest.raises(ValueError, match="templated tasks of pick_and_place_simple only, not 'Tidy up.'"):
        expert.goal("pick_and_place_simple", "Tidy up.")
    with pytest.raises(ValueError, match="noise=1.5"):
        expert.Expert("pick_and_place_simple", "put a pen in drawer", 0, 1.5)
    with pytest.raises(ValueError, match="hesitation=-1"):
        expert.Expert("pick_and_place_simple", "put a pen in drawer", 0, 0.0, -1)
    with pytest.raises(ValueError, match="lists none"):
        expert.Expert("pick_and_place_simple", "put a pen in drawer", 0, 0.0).act(Observation("text"))
