import io
import math

import pytest
import rich.console

from rspo_jax.report import console

ROW = {
    "success": 0.25, "dense_return": -0.5, "outcome_return": 0.25, "ratio_mean": 1.0, "clip_fraction_on": 0.01,
    "clip_fraction_off": math.nan, "entropy": 1.5, "kl_ref": 0.002, "steps": 12.34, "seconds/total": 20.0,
    "seconds/env": 3.0, "seconds/sample": 9.0, "seconds/elapsed": 500.0,
}  # fmt: skip


def cells(line):
    """The row cut at the columns' widths, by title."""
    found, at = {}, 0
    for title, width in console.COLUMNS:
        found[title] = line[at : at + width].strip()
        at += width
    return found | {"phases": line[at:].strip()}


def test_a_row_has_its_numbers_under_their_titles(capsys, monkeypatch):
    clock = iter([0.0, 30.0, 60.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    shown = console.Console(10)
    shown.row("update", 1, ROW)
    shown.row("eval/valid_unseen/0.4", 1, {"success": 0.5})
    shown.row("update", 2, ROW)
    shown.row("explorer", 3, {"success": 0.5, "ratio_mean": 1.0})
    title, first, evaluation, second, explorer = capsys.readouterr().out.rstrip("\n").split("\n")
    assert cells(title) == {name: name for name, _ in console.COLUMNS} | {"phases": ""}
    assert cells(first) == {
        "update": "1/10", "eta": "", "success": "25.0%", "eval": "", "dense": "-0.500", "outcome": "0.250", "ratio": "1.000",
        "clip on/off": "0.010/nan", "entropy": "1.5", "kl": "0.002", "steps": "12.3", "seconds": "20.0",
        "phases": "env 3.0 sample 9.0",
    }  # fmt: skip
    assert evaluation == "eval/valid_unseen/0.4 at 1: 50.0%"
    assert cells(second)["eval"] == "50.0%"
    assert cells(second)["eta"] == "4m00s"  # 8 updates to go at 30 s each
    assert cells(explorer)["update"] == "explorer 3" and cells(explorer)["entropy"] == "" and cells(explorer)["eta"] == ""


def test_harvests_are_rows_and_other_kinds_have_a_line(capsys):
    shown = console.Console(0)
    shown.row("harvest", 2, {"success": 0.5, "useful": 3})
    shown.row("prm", 0, {"auc": 0.75, "note": "held out", "success/heat": 0.5, "seconds/elapsed": 3.0})
    _, harvest, prm = capsys.readouterr().out.rstrip("\n").split("\n")
    assert cells(harvest)["update"] == "harvest 2" and cells(harvest)["success"] == "50.0%"
    assert prm == "prm 0  auc 0.75  note held out"


def test_without_a_terminal_lines_are_plain_and_whole(capsys):
    shown = console.Console(0)
    shown.note("making 600 games " + "x" * 300)
    shown.row("update", 7, ROW)
    out = capsys.readouterr().out
    assert "\x1b" not in out and out.isascii()
    assert out.split("\n")[0] == "making 600 games " + "x" * 300
    assert cells(out.split("\n")[2])["update"] == "7" and out.split("\n")[2].endswith("sample 9.0")


def test_in_a_narrow_terminal_a_row_stays_one_line(monkeypatch):
    screen = io.StringIO()
    made = rich.console.Console(file=screen, force_terminal=True, width=60, color_system=None)
    monkeypatch.setattr("rich.console.Console", lambda **_: made)
    shown = console.Console(10)
    shown.row("update", 1, ROW)
    rows = screen.getvalue().rstrip("\n").split("\n")
    assert len(rows) == 2 and all(len(row) <= 60 for row in rows) and "25.0%" in rows[1]


def test_markup_of_a_note_is_text(capsys):
    console.Console(0).note("[bold]not bold[/bold] :smile: [/]")
    assert capsys.readouterr().out == "[bold]not bold[/bold] :smile: [/]\n"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (200, "3m20s"), (3600, "1h00m"), (90000, "25h00m")])
def test_duration(seconds, text):
    assert console.duration(seconds) == text
