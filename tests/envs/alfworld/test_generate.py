"""Generated games: layout, rules, determinism, and proof that they can be won."""

import json
import subprocess
import sys
from collections import Counter

import pytest

from envs.alfworld import check, data, generate, package, prior, scene

ALFRED_TW_ENV = """
import sys
from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv
config = {
    "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6], "domain_randomization": False,
            "expert_type": "handcoded"},
    "dataset": {"eval_ood_data_path": sys.argv[1], "num_eval_games": 0},
    "general": {"training_method": "dqn"},
    "rl": {"training": {"max_nb_steps_per_episode": 50}},
}
games = AlfredTWEnv(config, "eval_out_of_distribution")
print("games", len(games.game_files))
env = games.init_env(batch_size=1)
_, infos = env.reset()
import json
for command in json.load(open(infos["extra.gamefile"][0]))["walkthrough"]:
    observation, _, _, infos = env.step([command])
print("won", infos["won"][0])
"""


def test_every_game_is_played_to_the_win(made):
    assert check.check_games(str(made)) == check.Report({"train": 18, "valid_seen": 6, "valid_unseen": 6}, ())


def test_task_types_take_turns_and_files_are_the_official_ones(made):
    for split, count in (("train", 3), ("valid_seen", 1), ("valid_unseen", 1)):
        assert Counter(task.type for task in data.tasks(made, split)) == dict.fromkeys(data.TASK_TYPES, count)
    for task in data.tasks(made, "train"):
        folder = made / task.id
        record = json.loads((folder / "traj_data.json").read_text())
        parameters, source = record["pddl_params"], data.read(folder / data.GAME)
        place = parameters["parent_target"] or parameters["toggle_target"]
        name = f"{task.type}-{parameters['object_target']}-None-{place}-{record['scene']['scene_num']}"
        assert folder.parent.name == name and folder.name == record["task_id"]
        assert (folder / "initial_state.pddl").read_text() == source.problem
        assert source.task == record["turk_annotations"]["anns"][0]["task_desc"]
        assert len(source.walkthrough) >= 4
        assert sum(file.stat().st_size for file in folder.iterdir()) < 120_000


def test_scenes_are_disjoint_and_games_differ(made):
    tables = package.constants()
    scenes, problems = {}, set()
    for split in data.SPLITS:
        scenes[split] = {int(task.id.split("/")[1].rsplit("-", 1)[1]) for task in data.tasks(made, split)}
        for task in data.tasks(made, split):
            problems.add(data.read(made / task.id / data.GAME).problem.split("\n", 1)[1])
    assert scenes["train"] | scenes["valid_seen"] <= set(tables.TRAIN_SCENE_NUMBERS)
    assert scenes["valid_unseen"] <= set(tables.TEST_SCENE_NUMBERS)
    assert len(problems) == 30


def test_the_same_seed_gives_the_same_bytes_in_any_process(made, tmp_path):
    # The fixture was made by two spawned processes with hash seeds of their own, and with more games.
    generate.make_games(str(tmp_path / "again"), {"train": 3, "valid_unseen": 1}, seed=7, workers=1)
    files = sorted(path.relative_to(tmp_path / "again") for path in (tmp_path / "again").rglob("trial_*/*"))
    assert len(files) == 4 * 4
    for file in files:
        assert (tmp_path / "again" / file).read_bytes() == (made / file).read_bytes(), file
    generate.make_games(str(tmp_path / "other"), {"train": 1}, seed=8, workers=1)
    assert not any((made / task.id.replace("S8", "S7")).exists() for task in data.tasks(tmp_path / "other", "train"))


def test_a_stopped_call_is_continued(made, tmp_path, monkeypatch):
    # Killed while the second game was being written: its translation, the last file, is missing.
    out, whole = tmp_path / "games", generate._make

    def stopped(job):
        whole(job)
        if job[2] == 1:
            next((tmp_path / "games.partial").glob(f"train/*/trial_S7_00001/{data.TRANSLATION}")).unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(generate, "_make", stopped)
    with pytest.raises(KeyboardInterrupt):
        generate.make_games(str(out), {"train": 3}, seed=7, workers=1)
    assert not out.exists()
    jobs = []
    monkeypatch.setattr(generate, "_make", lambda job: (jobs.append(job[2]), whole(job)))
    generate.make_games(str(out), {"train": 3}, seed=7, workers=1)
    assert jobs == [1, 2]
    for file in (file.relative_to(out) for file in out.rglob("trial_*/*")):
        assert (out / file).read_bytes() == (made / file).read_bytes()
    assert json.loads((out / generate.MANIFEST).read_text()) == {"seed": 7, "games": {"train": 3}}


def test_things_stand_where_the_prior_allows(made):
    for task in data.tasks(made, "train"):
        game = data.load(made / task.id / data.GAME)
        classes = {name.lower(): name for name in (*prior.HOMES, "DeskLamp", *package.constants().VAL_RECEPTACLE_OBJECTS)}
        kinds = {entity: classes[kind.removesuffix("type")] for entity, kind in game.facts["objecttype"]}
        kinds |= {entity: classes[kind.removesuffix("type")] for entity, kind in game.facts["receptacletype"]}
        for thing, place in game.facts["inreceptacle"]:
            assert prior.weight(kinds[thing], kinds[place]) > 0, (thing, place)


def test_prior_follows_its_rule_and_alfworlds_table():
    # Apple: Fridge, CounterTop, DiningTable are its homes; a microwave can hold it; a bed cannot.
    places = ("Fridge", "CounterTop", "DiningTable", "Microwave", "Bed")
    assert [prior.weight("Apple", place) for place in places] == [8, 4, 2, 0.5, 0]
    for portable, homes in prior.HOMES.items():
        assert set(homes) <= prior.compatible(portable), portable


def test_scenes_have_what_their_files_leave_out():
    kitchen = scene.scene(1)
    kinds = Counter(receptacle.kind for receptacle in kitchen.receptacles)
    assert kinds["StoveBurner"] == 4 and kinds["CoffeeMachine"] == kinds["Toaster"] == kinds["SinkBasin"] == 1
    assert {r.id for r in kitchen.receptacles if r.kind == "SinkBasin"} == {"Sink_bar_1_bar_SinkBasin"}
    assert kitchen.start not in {receptacle.location for receptacle in kitchen.receptacles}
    assert {r.kind for r in kitchen.receptacles if r.openable} == {"Cabinet", "Drawer", "Fridge", "Microwave"}


def test_nothing_is_overwritten_and_wrong_numbers_are_refused(made, tmp_path):
    with pytest.raises(FileExistsError, match="exists: use the games in it"):
        generate.make_games(str(made), 1, seed=0, workers=1)
    (tmp_path / "x.partial" / "train" / "look_at" / "trial_S9_00000").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="x.partial holds train/look_at/trial_S9_00000, .*remove "):
        generate.make_games(str(tmp_path / "x"), 1, seed=0, workers=1)
    for games in (0, -1, {"train": -1}, {"test": 3}, {}):
        with pytest.raises(ValueError, match="games="):
            generate.make_games(str(tmp_path / "y"), games, seed=0, workers=1)
    with pytest.raises(ValueError, match="workers=0"):
        generate.make_games(str(tmp_path / "y"), 1, seed=0, workers=0)
    assert not (tmp_path / "y").exists() and not (tmp_path / "y.partial").exists()


def test_a_game_that_cannot_be_won_is_reported_with_its_file(made, tmp_path):
    task = data.tasks(made, "valid_seen")[0]
    for number, spoil in enumerate((lambda w: w[:-1], lambda w: ["go to mars 1", *w], lambda w: [*w, "look"])):
        folder = tmp_path / task.id.replace("trial", f"trial{number}")
        folder.mkdir(parents=True)
        record = json.loads((made / task.id / data.GAME).read_text())
        record["walkthrough"] = spoil(record["walkthrough"])
        (folder / data.GAME).write_text(json.dumps(record))
    report = check.check_games(str(tmp_path))
    assert report.won["valid_seen"] == 0 and len(report.failures) == 3
    for failure, reason in zip(report.failures, ("the game is not won", "('go to mars 1')", "is won before"), strict=True):
        assert str(tmp_path) in failure and reason in failure


def test_a_stored_translation_of_other_texts_is_not_used(made, tmp_path):
    task = data.tasks(made, "train")[0]
    source = data.read(made / task.id / data.GAME)
    (tmp_path / data.TRANSLATION).write_bytes((made / task.id / data.TRANSLATION).read_bytes())
    stored = data.translation(tmp_path, source)
    fresh = data.translation(tmp_path / "nowhere", source)
    assert stored.sas == fresh.sas and data.build(source, stored).facts == data.build(source, fresh).facts
    other = data.read(made / data.tasks(made, "train")[1].id / data.GAME)
    assert data.translation(tmp_path, other).sas != stored.sas


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="ALFWorld's own environment fails on Python 3.13 (PEP 667)")
def test_alfworlds_own_environment_plays_the_games(made, tmp_path):
    script = [sys.executable, "-c", ALFRED_TW_ENV, str(made / "valid_unseen")]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "ALFWORLD_DATA": str(tmp_path)}
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, env=environment)
    assert "games 6" in done.stdout and "won True" in done.stdout, done.stderr[-2000:]
