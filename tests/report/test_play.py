import dataclasses
import math

import fake_runs
import numpy as np

from rspo_jax.report import play


def episode(**changes):
    made = fake_runs.make_trajectory(np.random.default_rng(0), 1.0, "agent", 7)
    steps = (fake_runs.make_step(0, 0.25), fake_runs.make_step(1, math.nan, valid=False))
    return dataclasses.replace(made, **{"task": "heat [a] mug", "steps": steps, "seconds": 1.5} | changes)


def test_an_episode_is_told_from_task_to_verdict(capsys):
    play.print_trajectory(episode())
    out = capsys.readouterr().out
    order = [
        "heat [a] mug", "agent of update 7", "step 1", "You arrive at shelf 0", "<action>go to shelf 1</action>",
        "> go to shelf 1", "dense reward 0.25, outcome reward 0", "step 2", "> (no action)",
        "not well formed, not admissible, dense reward not scored", "success after 2 steps, outcome 1, 1.5 s",
    ]  # fmt: skip
    places = [out.index(text) for text in order]
    assert places == sorted(places)


def test_a_failed_and_an_empty_episode(capsys):
    play.print_trajectory(episode(success=False, termination="error: timeout", outcome=0.0, steps=()))
    assert "no success: error: timeout after 0 steps, outcome 0" in capsys.readouterr().out


def test_text_cannot_drive_the_terminal(capsys):
    step = dataclasses.replace(fake_runs.make_step(0, 0.0), observation="a\x1b[2Jb\x9bc\rd[red]e", response="")
    play.print_trajectory(episode(steps=(step,)))
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x9b" not in out and "\r" not in out
    assert "[2Jb" in out and "d[red]e" in out and "(empty response)" in out
