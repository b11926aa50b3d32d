"""ALFWorld behind the protocol: observations, verdicts, paths."""

import json
import pathlib
import shutil

import pytest

import envs.alfworld as alfworld
from envs.alfworld import check, data
from envs.protocol import Task


def won_by_walkthrough(folder, split):
    slot = alfworld.make(str(folder))
    task = slot.tasks(split)[0]
    source = data.read(folder / task.id / data.GAME)
    observations = [slot.reset(task.id, seed=0)] + [slot.step(command) for command in source.walkthrough]
    return slot, source, observations


def test_first_observation_is_the_room_and_the_task_apart(made):
    slot, source, (first, *_) = won_by_walkthrough(made, "valid_unseen")
    assert first.task == source.task and not first.task.endswith(".")
    assert first.text.startswith("You are in the middle of a room. Looking quickly around you, you see a ")
    assert "Welcome" not in first.text and "task" not in first.text and first.text.endswith(".")
    assert (first.reward, first.done, first.success, first.error) == (0.0, False, False, "")
    slot.close()


def test_reward_is_paid_once_and_success_is_the_engines(made):
    slot, _, observations = won_by_walkthrough(made, "train")
    assert [observation.reward for observation in observations] == [0.0] * (len(observations) - 1) + [1.0]
    assert [observation.success for observation in observations] == [False] * (len(observations) - 1) + [True]
    assert observations[-1].done
    after = slot.step("look")
    assert (after.text, after.done, after.success, after.reward) == ("Nothing happens.", True, True, 0.0)
    slot.close()


def test_actions_help_and_nonsense(made):
    slot, _, (first, *_) = won_by_walkthrough(made, "train")
    slot.reset(slot.tasks("train")[0].id, seed=0)
    assert "help" not in first.admissible and {"look", "inventory"} <= set(first.admissible)
    assert list(first.admissible) == sorted(set(first.admissible))
    assert slot.step("help").text.lstrip().startswith("Available commands:")
    for nonsense in ("", "  ", "go to the moon", "LOOK", "go to cabinet", "\u2028\U0001f600"):
        observation = slot.step(nonsense)
        assert observation.text == "Nothing happens." and observation.admissible == first.admissible
    # The engine strips. That it sees nothing when it looks around from where it starts is its own rule.
    assert slot.step("  look \n").text == "You are in the middle of a room. Looking quickly around you, you see nothing."
    slot.close()


def test_there_is_no_hidden_limit_of_steps(made):
    slot, _, _ = won_by_walkthrough(made, "train")
    slot.reset(slot.tasks("train")[0].id, seed=0)
    for _ in range(120):
        observation = slot.step("look")
    assert not observation.done and observation.text.startswith("You are in the middle")
    slot.close()


def test_the_same_episode_in_every_slot(made):
    # Two slots play the same game interleaved; neither disturbs the other.
    first, second = alfworld.make(str(made)), alfworld.make(str(made))
    task = first.tasks("train")[3]
    commands = data.read(made / task.id / data.GAME).walkthrough
    assert first.reset(task.id, 0) == second.reset(task.id, 1)
    alone = [second.step(command) for command in commands]
    second.reset(task.id, 0)
    for command, expected in zip(commands, alone, strict=True):
        second.step("look")
        assert first.step(command) == expected
    first.close(), second.close()
    for slot in (first, alfworld.make(str(made))):
        with pytest.raises(RuntimeError, match="before its first reset, or after close"):
            slot.step("look")


def test_tasks_are_sorted_and_unplayable_games_left_out(made, tmp_path):
    folder = tmp_path / "games"
    shutil.copytree(made, folder)
    names = [task.id for task in data.tasks(folder, "train")]
    assert names == sorted(names) and len(names) == 18
    trial = folder / names[0]
    for name in ("pick_and_place_with_movable_recep-Pen-Mug-Desk-301", "pick_clean_then_place_in_recep-AppleSliced-None-Sofa-7"):
        shutil.copytree(trial, folder / "train" / name / "trial_1")
    game = json.loads((trial / data.GAME).read_text())
    (trial / data.GAME).write_text(json.dumps({**game, "solvable": False}))
    assert data.tasks(folder, "train") == [Task(name, name.split("/")[1].split("-")[0]) for name in names[1:]]


def test_wrong_paths_fail_at_once_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="ALFWORLD_DATA are both empty.*rspo envs make alfworld --out DIR"):
        alfworld.make("")
    missing = f"config.pool.options.data='{tmp_path}/x' does not exist.*rspo envs make alfworld"
    with pytest.raises(FileNotFoundError, match=missing):
        alfworld.make(f"{tmp_path}/x")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"ALFWORLD_DATA='{tmp_path}' has none of train/"):
        alfworld.make("")


def test_official_layout_is_found_below_alfworld_data(made, tmp_path, monkeypatch):
    (tmp_path / "json_2.1.1").symlink_to(made)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    slot = alfworld.make("")
    assert len(slot.tasks("valid_seen")) == 6
    with pytest.raises(ValueError, match="unknown split 'test'.*train, valid_seen, valid_unseen"):
        slot.tasks("test")
    with pytest.raises(FileNotFoundError, match="no game 'train/nowhere'"):
        slot.reset("train/nowhere", 0)
    slot.close()


def test_a_broken_game_file_is_named(made, tmp_path):
    file = tmp_path / data.GAME
    file.write_text('{"pddl_domain": ')
    with pytest.raises(ValueError, match=f"{file} is not an ALFWorld game"):
        data.read(file)
    file.write_text('{"pddl_domain": "", "pddl_problem": "", "grammar": "none"}')
    with pytest.raises(ValueError, match=f"{file}: its grammar has no line 'Your task is to: ..'"):
        data.read(file)


def test_old_games_get_the_current_logic(real):
    slot = alfworld.make(str(real))
    task = next(task for task in slot.tasks("train") if task.type == "look_at_obj_in_light")
    raw = json.loads((real / task.id / data.GAME).read_text())
    assert "put {o} in/on {r}" in raw["grammar"] and "action help" not in raw["grammar"]
    assert slot.reset(task.id, 0).task == "look at plate under the desklamp"
    assert slot.step("go to sidetable 1").text.startswith("You arrive at sidetable 1. On the sidetable 1, you see ")
    slot.close()


def test_real_games_are_won_by_the_oracle(real):
    report = check.check_games(str(real))
    assert report.failures == () and report.won == {"train": 3, "valid_seen": 0, "valid_unseen": 5}


def test_a_task_of_any_words_is_read(made, tmp_path):
    # Human annotations contain quotes, and full stops of their own.
    task = data.tasks(made, "train")[0]
    record = json.loads((made / task.id / data.GAME).read_text())
    words = data.read(made / task.id / data.GAME).task
    record["grammar"] = record["grammar"].replace(words, 'Take the \\"blue\\" mug. Put it away.')
    pathlib.Path(tmp_path / data.GAME).write_text(json.dumps(record))
    game = data.load(tmp_path / data.GAME)
    assert game.task == 'Take the "blue" mug. Put it away.'
    assert game.introduction.endswith('Your task is to: Take the "blue" mug. Put it away..')
