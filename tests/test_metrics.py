import errno
import json
import math
import struct
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from rspo_jax import metrics, types
from rspo_jax.report import console, jsonl


def lines(workdir):
    return jsonl.read(workdir / "metrics.jsonl")


def named(workdir):
    return [(line["kind"], line["tick"]) for line in lines(workdir)]


def scalars(workdir):
    """{(tag, step): value} of all event files, read record by record: length, its checksum, bytes, their checksum."""
    found = {}
    for path in sorted((workdir / "tensorboard").iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
            at += 16 + size
            for value in event.summary.value:
                assert (value.tag, event.step) not in found
                found[value.tag, event.step] = value.simple_value
    return found


def trajectory(dense=0.5, observation="a shelf"):
    tokens = np.arange(3, dtype=np.int32)
    logp = np.zeros(3, np.float32)
    step = types.Step(observation, "<action>go</action>", "go", tokens, tokens, logp, logp, True, False, 0.0, dense)
    return types.Trajectory("t1", "heat", "heat a mug", 0, 7, "agent", 3, (step,), 1.0, True, "success", 0.5)


def test_the_same_number_in_the_three_places(tmp_path, capsys):
    with metrics.Run(tmp_path, resume=False, total_updates=5) as run:
        run.log(1, "update", {"success": 0.125, "entropy": 1.75, "steps": 12.5})
        run.log(1, "eval/valid_unseen/0.4", {"success": 0.375, "count": 8, "low": 0.25, "high": 0.5, "split": "valid_unseen"})
    update, evaluation = lines(tmp_path)
    assert (update["kind"], update["tick"], update["success"], update["entropy"]) == ("update", 1, 0.125, 1.75)
    assert evaluation["split"] == "valid_unseen" and evaluation["count"] == 8
    events = scalars(tmp_path)
    assert events["update/success", 1] == 0.125 and events["update/entropy", 1] == 1.75
    assert events["eval/valid_unseen/0.4/success", 1] == 0.375
    out = capsys.readouterr().out.split("\n")
    row = dict(zip(out[0].split()[:1] + ["success"], out[1].split(), strict=False))
    assert row == {"update": "1/5", "success": "12.5%"} and "1.75" in out[1] and "12.5" in out[1]
    assert out[2] == "eval/valid_unseen/0.4 at 1: 37.5% [25.0%, 50.0%] of 8"


def test_numbers_of_numpy_and_jax_become_plain_ones(tmp_path):
    values = {
        "a": np.float32(0.1), "b": jnp.asarray(2.5, jnp.bfloat16), "c": np.int64(3), "d": jnp.asarray(True), "e": np.bool_(False),
    }  # fmt: skip
    with metrics.Run(tmp_path, resume=False) as run:
        run.log(0, "update", values)
    (line,) = lines(tmp_path)
    assert [line[name] for name in "abcde"] == [float(np.float32(0.1)), 2.5, 3, 1, 0]


@pytest.mark.parametrize("value", [np.zeros(2), None, {"a": 1}, 1j])
def test_a_value_that_is_no_number_is_refused_by_name(tmp_path, value):
    with metrics.Run(tmp_path, resume=False) as run, pytest.raises(TypeError, match="'entropy'"):
        run.log(0, "update", {"entropy": value})


def test_non_finite_values_are_null_and_come_back(tmp_path):
    with metrics.Run(tmp_path, resume=False) as run:
        run.log(1, "update", {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0})
    raw = (tmp_path / "metrics.jsonl").read_text()
    strict = json.loads(raw, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert strict["a"] is None and strict["b"] is None and strict["non_finite"] == {"a": "nan", "b": "inf", "c": "-inf"}
    (line,) = lines(tmp_path)
    assert math.isnan(line["a"]) and line["b"] == math.inf and line["c"] == -math.inf and line["d"] == 1.0


def test_resume_neither_repeats_nor_loses_a_line(tmp_path, capsys):
    # Killed after update 4, resumed from the checkpoint of update 2: 3 and 4 are computed again.
    with metrics.Run(tmp_path, resume=False) as run:
        for tick in (1, 2, 3, 4):
            run.log(tick, "update", {"loss": tick / 8, "seconds/total": 1.0, "kl": math.nan})
        run.log(4, "explorer", {"loss": 0.0})
    with metrics.Run(tmp_path, resume=True) as run:
        for tick in (3, 4, 5):
            run.log(tick, "update", {"loss": tick / 8, "seconds/total": 2.0, "kl": math.nan})
        run.log(5, "explorer", {"loss": 0.0})
    assert named(tmp_path) == [*(("update", tick) for tick in (1, 2, 3, 4)), ("explorer", 4), ("update", 5), ("explorer", 5)]
    assert {key: value for key, value in scalars(tmp_path).items() if key[0] == "update/loss"} == {
        ("update/loss", tick): tick / 8 for tick in (1, 2, 3, 4, 5)
    }
    assert "differs" not in capsys.readouterr().out


def test_an_inexact_resume_is_reported_once_and_the_first_numbers_stay(tmp_path):
    with metrics.Run(tmp_path, resume=False) as run:
        for tick in (1, 2):
            run.log(tick, "update", {"loss": 0.5})
    with metrics.Run(tmp_path, resume=True) as run:
        for tick in (1, 2, 3):
            run.log(tick, "update", {"loss": 0.25})
    assert named(tmp_path) == [("update", 1), ("update", 2), ("warning", 2), ("update", 3)]
    assert "update 1 was computed again and differs: loss was 0.5, is 0.25" in lines(tmp_path)[2]["text"]


def test_elapsed_seconds_go_on_after_a_resume(tmp_path, monkeypatch):
    clock = iter([100.0, 130.0, 130.0, 5000.0, 5010.0, 5010.0])  # Run, line, row; the process of the resume starts anew
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with metrics.Run(tmp_path, resume=False) as run:
        run.log(1, "update", {})
    with metrics.Run(tmp_path, resume=True) as run:
        run.log(2, "update", {})
    assert [line["seconds/elapsed"] for line in lines(tmp_path)] == [30.0, 40.0]


@pytest.mark.parametrize("torn", ['{"kind": "update", "tick": 3, "lo', '{"kind"', "{", "7"])
def test_a_torn_last_line_is_repaired(tmp_path, torn):
    with metrics.Run(tmp_path, resume=False) as run:
        run.log(1, "update", {"loss": 0.5})
        run.log(2, "update", {"loss": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(torn)
    with metrics.Run(tmp_path, resume=True) as run:
        run.log(3, "update", {"loss": 0.25})
    assert named(tmp_path) == [("update", 1), ("update", 2), ("warning", 2), ("update", 3)]
    assert torn in lines(tmp_path)[2]["text"]


def test_a_last_line_that_only_lacks_its_newline_is_kept(tmp_path):
    with metrics.Run(tmp_path, resume=False) as run:
        run.log(1, "update", {"loss": 0.5})
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    with metrics.Run(tmp_path, resume=True) as run:
        run.log(1, "update", {"loss": 0.5})
        run.log(2, "update", {"loss": 0.5})
    assert named(tmp_path) == [("update", 1), ("update", 2)]


def test_a_damaged_line_in_the_middle_names_file_and_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "update", "tick": 1}\n\x00\x00\n{"kind": "update", "tick": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2"):
        metrics.Run(tmp_path, resume=True)


def test_every_line_is_on_disk_when_the_process_is_killed(tmp_path):
    code = (
        "import os, signal, sys; from rspo_jax import metrics\n"
        "run = metrics.Run(sys.argv[1], resume=False)\n"
        "run.log(1, 'update', {'loss': 0.5}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, timeout=60)
    assert killed.returncode == -9
    assert named(tmp_path) == [("update", 1)] and scalars(tmp_path)["update/loss", 1] == 0.5
    metrics.Run(tmp_path, resume=True).close()  # the lock went with the process


def test_one_process_at_a_time(tmp_path):
    with metrics.Run(tmp_path, resume=False), pytest.raises(ValueError, match="another process"):
        metrics.Run(tmp_path, resume=True)


def test_without_resume_a_record_is_not_written_over(tmp_path):
    metrics.Run(tmp_path, resume=False).close()
    with pytest.raises(ValueError, match="resume it, or choose another workdir"):
        metrics.Run(tmp_path, resume=False)


def test_a_line_is_logged_once_and_reserved_names_are_refused(tmp_path):
    with metrics.Run(tmp_path, resume=False) as run:
        run.log(1, "update", {})
        with pytest.raises(ValueError, match="'update' was logged for tick 1"):
            run.log(1, "update", {})
        with pytest.raises(ValueError, match="'tick'"):
            run.log(2, "update", {"tick": 2})


def test_a_failing_tensorboard_ends_only_itself(tmp_path, monkeypatch, capsys):
    def full(self, event):
        raise OSError(errno.ENOSPC, "No space left on device")

    with metrics.Run(tmp_path, resume=False) as run:
        run.log(1, "update", {"loss": 0.5})
        monkeypatch.setattr("tensorboardX.event_file_writer.EventsWriter.write_event", full)
        for tick in (2, 3):
            run.log(tick, "update", {"loss": 0.5})
    assert named(tmp_path) == [("update", 1), ("update", 2), ("warning", 2), ("update", 3)]
    assert "tensorboard failed" in lines(tmp_path)[2]["text"] and "No space left" in lines(tmp_path)[2]["text"]
    assert "warning: tensorboard failed" in capsys.readouterr().out


def test_a_failing_console_ends_only_itself(tmp_path, monkeypatch):
    def broken(self, *args):
        raise BrokenPipeError("the pipe has gone")

    with metrics.Run(tmp_path, resume=False) as run:
        monkeypatch.setattr(console.Console, "row", broken)
        for tick in (1, 2):
            run.log(tick, "update", {"loss": 0.5})
            run.note("still here")
    assert named(tmp_path) == [("update", 1), ("warning", 1), ("update", 2)]
    assert scalars(tmp_path)["update/loss", 2] == 0.5


def test_header_stores_and_prints_what_decides_comparability(tmp_path, capsys):
    with metrics.Run(tmp_path, resume=False) as run:
        run.header({"policy": {"betas": (0.9, 0.99)}}, {"data": "generated 1.0", "games": 600, "devices": "2 cpu"})
    out = capsys.readouterr().out
    assert [line.split() for line in out.split("\n") if " games " in line] == [["games", "600"]]
    assert [line.split() for line in out.split("\n") if "history" in line] == [["history", "not", "stated"]]
    assert "2 cpu" in out
    assert json.loads((tmp_path / "config.json").read_text()) == {"policy": {"betas": [0.9, 0.99]}}
    assert json.loads((tmp_path / "header.json").read_text())["facts"]["games"] == 600


def test_a_config_that_changes_on_resume_is_recorded(tmp_path, capsys):
    with metrics.Run(tmp_path, resume=False) as run:
        run.header({"policy": {"learning_rate": 1e-3}, "seed": 1}, {})
        run.log(8, "update", {})
    for rate in (1e-3, 1e-4):
        with metrics.Run(tmp_path, resume=True) as run:
            run.header({"policy": {"learning_rate": rate}, "seed": 1}, {})
    assert json.loads((tmp_path / "header.json").read_text())["config_changes"] == [
        {"tick": 8, "key": "policy.learning_rate", "was": 1e-3, "now": 1e-4}
    ]
    assert "config.policy.learning_rate was 0.001, is 0.0001 from tick 8 on" in capsys.readouterr().out


def test_trajectories_are_stored_once_as_text(tmp_path):
    strange = "a \u2028 line \x85 separator"
    with metrics.Run(tmp_path, resume=False) as run:
        run.write_trajectories(1, "update", [trajectory(observation=strange), trajectory(dense=math.nan)])
    path = tmp_path / "trajectories.jsonl"
    path.write_bytes(path.read_bytes()[:-20])  # the crash tore the second one
    with metrics.Run(tmp_path, resume=True) as run:
        run.write_trajectories(1, "update", [trajectory(observation=strange), trajectory(dense=math.nan)])
        run.write_trajectories(2, "update", [trajectory()])
    stored = jsonl.read(path)
    assert [(line["tick"], line["index"]) for line in stored] == [(1, 0), (1, 1), (2, 0)]
    assert stored[0]["steps"][0]["observation"] == strange and stored[0]["steps"][0]["dense_reward"] == 0.5
    assert stored[1]["steps"][0]["dense_reward"] is None
    step = stored[0]["steps"][0]
    assert (step["action"], step["well_formed"], step["admissible"]) == ("go", True, False)
    assert "tokens" not in path.read_text()
