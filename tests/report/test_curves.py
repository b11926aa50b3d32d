import math

import numpy as np

from rspo_jax.report import charts, curves, runs, summary


def record(name, lines):
    by_kind = {}
    for kind, tick, values in lines:
        line = {"kind": kind, "tick": tick, "seconds/elapsed": 10.0 * tick + len(name), **values}
        by_kind.setdefault(kind, []).append(line)
    return runs.Record(name, {}, {}, [], by_kind, [])


def test_seeds_are_averaged_at_the_ticks_that_all_have():
    one = record("a", [("update", t, {"episodes": 8 * t, "loss": float(t)}) for t in (1, 2, 3)])
    two = record("bbb", [("update", t, {"episodes": 16 * t, "loss": 3.0 * t}) for t in (2, 3, 4)])
    (table,) = curves.tables([runs.Group("g", [one, two])])
    assert table["update"] == {
        "x": {"updates": [2, 3], "episodes": [24.0, 36.0], "seconds": [22.0, 32.0]},  # seconds: (21 + 23) / 2, (31 + 33) / 2
        "y": {"loss": [4.0, 6.0]},
        "low": {"loss": [2.0, 3.0]},
        "high": {"loss": [6.0, 9.0]},
    }


def test_missing_and_non_finite_values_are_gaps_and_a_seed_without_a_metric_is_left_out():
    one = record("a", [("update", 1, {"loss": math.nan, "kl": 1.0}), ("update", 2, {"loss": 5.0})])
    two = record("b", [("update", 1, {"loss": 1.0}), ("update", 2, {"loss": 7.0})])
    (table,) = curves.tables([runs.Group("g", [one, two])])
    assert table["update"]["y"] == {"loss": [None, 6.0], "kl": [1.0, None]}
    assert table["update"]["low"] == {"loss": [None, 5.0]}


def test_an_evaluation_takes_its_episodes_from_the_update_before_and_has_a_wilson_band():
    values = {"success": 0.5, "count": 20, "success/heat": math.nan, "count/heat": 0, "steps": 3.0, "split": "x"}
    lines = [("eval/x/0.4", 0, values), ("update", 1, {"episodes": 8, "success": 0.5}), ("update", 2, {"episodes": 16})]
    (table,) = curves.tables([runs.Group("g", [record("a", [*lines, ("eval/x/0.4", 3, values)])])])
    evaluation = table["eval/x/0.4"]
    assert evaluation["x"]["episodes"] == [0.0, 16.0] and evaluation["x"]["updates"] == [0, 3]
    low, high = summary.wilson(10, 20)
    np.testing.assert_allclose(evaluation["low"]["success"], [low, low], rtol=1e-4)
    np.testing.assert_allclose(evaluation["high"]["success"], [high, high], rtol=1e-4)
    assert set(evaluation["low"]) == {"success"} and evaluation["y"]["success/heat"] == [None, None]
    assert "split" not in evaluation["y"] and table["update"]["low"] == {}  # training has no interval


def test_places_on_the_axis_of_updates():
    lines = [
        ("explorer", 4, {"updates": 3}), ("explorer", 5, {"updates": 3}), ("harvest", 1, {"updates": 3}), ("sft", 7, {}),
    ]  # fmt: skip
    (table,) = curves.tables([runs.Group("g", [record("a", lines)])])
    places = {kind: table[kind]["x"]["updates"] for kind in table}
    assert places == {"explorer": [4, 5], "harvest": [3], "sft": [7]}


def test_every_logged_number_is_in_a_chart_and_no_chart_is_empty(workdirs):
    groups = runs.group(runs.load(workdirs))
    made = charts.sections(groups)
    drawn = {(line.kind, line.name) for section in made for chart in section.charts for line in chart.lines}
    logged = {(kind, name) for kind in curves.kinds(groups) for name in curves.names(groups, kind)}
    assert {pair for pair in logged if not pair[1].startswith("count")} == drawn
    assert all(chart.lines for section in made for chart in section.charts)


def test_metrics_that_a_run_does_not_have_leave_no_chart():
    group = runs.Group("g", [record("a", [("sft", 1, {"loss": 2.0}), ("update", 1, {"outcome_return": 0.5})])])
    titles = [(section.title, [chart.title for chart in section.charts]) for section in charts.sections([group])]
    assert titles == [("Reward", ["Outcome return"]), ("Everything else that was logged", ["sft, loss"])]


def test_eval_titles():
    assert charts.eval_title("eval/valid_unseen/0.4") == "valid unseen, temperature 0.4"
    assert charts.eval_title("eval/valid_seen/0.0") == "valid seen, greedy"
