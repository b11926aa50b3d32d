import json

import pytest

from rspo_jax.report import runs


def make(path, config, lines=("",)):
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text("".join(lines))
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def test_runs_that_differ_in_seeds_only_are_one_group(tmp_path):
    configs = {
        "a0": {"seed": 0, "env": {"train_seed": 1}, "lr": 0.1},
        "b": {"seed": 0, "env": {"train_seed": 1}, "lr": 0.2},
        "a1": {"seed": 1, "env": {"train_seed": 2}, "lr": 0.1},
        "c": None,
        "d": None,
    }
    groups = runs.group(runs.load([make(tmp_path / name, config) for name, config in configs.items()]))
    assert [[record.name for record in group.records] for group in groups] == [["a0", "a1"], ["b"], ["c"], ["d"]]
    assert [group.name for group in groups] == ["a0 (mean of 2 seeds)", "b", "c", "d"]


def test_names_are_as_long_as_they_must_be(tmp_path):
    paths = [make(tmp_path / name, None) for name in ("x/rspo/run", "x/grpo/run", "x/other", "y/rspo/run")]
    assert [record.name for record in runs.load(paths)] == ["x/rspo/run", "grpo/run", "other", "y/rspo/run"]
    assert len(runs.load([paths[0], paths[0]])) == 1


def test_a_running_run_can_be_read(tmp_path):
    lines = ['{"kind": "update", "tick": 2}\n', '{"kind": "update", "tick": 1}\n', '{"kind": "upda']
    (record,) = runs.load([make(tmp_path / "run", None, lines)])
    assert [line["tick"] for line in record.lines["update"]] == [1, 2]
    assert record.trajectories == [] and record.facts == {}


def test_what_is_no_workdir_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/nothing has no metrics.jsonl"):
        runs.load([tmp_path / "nothing"])
    with pytest.raises(ValueError, match="no workdir"):
        runs.load([])


def test_differences_name_nested_keys():
    old, new = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "e": 5}
    assert list(runs.differences(old, new)) == [("a.c", 2, 4), ("d", 3, None), ("e", None, 5)]
