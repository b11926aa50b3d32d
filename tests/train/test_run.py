"""Whole runs from the command line: what is written, that a stopped run resumes exactly, and that GRPO runs too."""

import json
import math
import signal

import jax
import numpy as np
import pytest
from whole_runs import finish, metrics, stop_at

from rspo_jax import checkpoint, sharding
from rspo_jax.models import hf
from rspo_jax.train import learn, session, settings
from rspo_jax.updates import accumulate

LONG = ("config.loop.updates=4", "config.rspo.updates_per_phase=2", "config.evaluation.every=4",
        "config.policy.entropy_coef=0.01")


@pytest.fixture(scope="module")
def uninterrupted(rspo, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run") / "whole"
    output = finish(rspo("train", workdir, *LONG))
    return workdir, output


def test_a_run_leaves_everything_in_its_workdir(uninterrupted):
    workdir, output = uninterrupted
    names = {path.name for path in workdir.iterdir()}
    assert {"config.json", "header.json", "metrics.jsonl", "trajectories.jsonl", "tensorboard", "checkpoints", "prm", "model",
            "summary.json"} <= names
    summary = json.loads((workdir / "summary.json").read_text())
    evaluation = summary["evaluations"]["valid_unseen/0.4"]
    assert evaluation["before"]["count"]["all"] == evaluation["after"]["count"]["all"] == 6
    assert summary["updates"] == 4 and "success on valid_unseen/0.4" in output
    assert {"update/update", "update/prefill", "explorer/update", "harvest/score"} <= set(summary["seconds"])


def test_phases_and_counts(uninterrupted):
    lines = metrics(uninterrupted[0])
    kinds = [kind for kind, _ in lines]
    # Two loops of: k = 2 dense updates, one harvest, k = 2 updates.
    assert {kind: kinds.count(kind) for kind in ("explorer", "harvest", "update")} == {"explorer": 4, "harvest": 2, "update": 4}
    # PRM 8, then on-policy (1 - 1/2) * 2 tasks * 4 and a harvest of 2 * 4: 8 + 4 + 4 + 8 + 4 + 4, then + 24.
    assert lines["update", 2]["episodes"] == 32 and lines["update", 4]["episodes"] == 56
    assert all(line["logp_gap_max"] < 1e-4 for (kind, _), line in lines.items() if kind in ("update", "explorer"))
    assert all(line["ratio_max"] < 1.001 for (kind, _), line in lines.items() if kind == "explorer")


@pytest.mark.parametrize("kind, tick", [("explorer", 1), ("update", 3)])
def test_a_stopped_run_resumes_exactly(rspo, uninterrupted, tmp_path, kind, tick):
    workdir = tmp_path / "run"
    process = rspo("train", workdir, *LONG)
    stop_at(process, workdir, kind, tick, signal.SIGTERM)
    assert "the same command resumes" in finish(process)
    assert ("update", 4) not in metrics(workdir)
    assert "resuming from checkpoint" in finish(rspo("train", workdir, *LONG))
    assert metrics(workdir) == metrics(uninterrupted[0])


def test_phase_one_leaves_the_agent_bit_identical(rspo, tmp_path):
    # Identity check 4: what the checkpoint after the harvest holds of Agent A is what it started from.
    process = rspo("train", tmp_path, *LONG)
    stop_at(process, tmp_path, "harvest", 0, signal.SIGTERM)
    finish(process)
    with jax.set_mesh(sharding.make_mesh(1, 1)):
        config = json.loads((tmp_path / "config.json").read_text())
        read = settings.read(config | {"policy": config["policy"] | {"off_dual_clip": math.inf}})
        _, initial = hf.load(read.model.directory, "float32")
        optimizer = session.make_optimizer(read.optimizer, read.optimizer.learning_rate)
        state = learn.Learner(accumulate.new_state(initial, optimizer), None)
        with checkpoint.Checkpointer(tmp_path / "checkpoints", keep=2) as checkpoints:
            arrays, host = checkpoints.restore(checkpoints.latest(), {"agent": state})
    assert host["progress"]["phase"] == "agent" and host["progress"]["updates"] == 0
    jax.tree.map(np.testing.assert_array_equal, arrays["agent"], state)


def test_an_explorer_that_takes_no_step_harvests_like_the_agent(rspo, tmp_path):
    # Identity check 3: pi_B = pi_A, so the centre of the clip is 1.
    finish(rspo("train", tmp_path, "config.rspo.explorer_learning_rate=0.0", "config.policy.entropy_coef=0.01"))
    assert metrics(tmp_path)["harvest", 0]["log_ratio_max"] < 1e-5


def test_a_killed_run_resumes_exactly(rspo, uninterrupted, tmp_path):
    workdir = tmp_path / "run"
    process = rspo("train", workdir, *LONG)
    stop_at(process, workdir, "harvest", 1, signal.SIGKILL)
    process.communicate()
    finish(rspo("train", workdir, *LONG))
    assert metrics(workdir) == metrics(uninterrupted[0])


def test_a_finished_run_is_not_run_again(rspo, uninterrupted):
    before = metrics(uninterrupted[0])
    assert "success on valid_unseen/0.4" in finish(rspo("train", uninterrupted[0], *LONG))
    assert metrics(uninterrupted[0]) == before


def test_eval_and_play_take_the_newest_checkpoint(rspo, uninterrupted):
    output = finish(rspo("eval", uninterrupted[0], *LONG))
    assert "eval/valid_unseen/0.4 at 4" in output
    assert "step 1" in finish(rspo("play", uninterrupted[0], *LONG, "game=1", "temperature=0"))


def test_eval_takes_a_hugging_face_directory(rspo, uninterrupted, tmp_path):
    output = finish(rspo("eval", tmp_path / "other", f"config.model.directory={uninterrupted[0] / 'model'}"))
    lines, whole = metrics(tmp_path / "other" / "eval-1"), metrics(uninterrupted[0])
    assert lines["eval/valid_unseen/0.4", 0]["success"] == whole["eval/valid_unseen/0.4", 4]["success"], output


@pytest.mark.parametrize("overrides, config", [
    ((), "base"),
    (("config.dialogue.history=window(2)", "config.sampler.max_tokens=512"), "rspo"),
    (("config.policy.kl_coef=0.01", "config.rspo.dense_advantage=process", "config.rspo.reward_noise=0.3",
      "config.rspo.replay=variance", "config.advantage.statistics=step", "config.loop.minibatches=1"), "rspo"),
], ids=["base", "window", "options"])
def test_other_configurations_run(rspo, tmp_path, overrides, config):
    finish(rspo("train", tmp_path / "run", *overrides, config=config))
    assert ("update", 2) in metrics(tmp_path / "run")


def test_sft_makes_a_model_that_train_can_start_from(rspo, tmp_path):
    finish(rspo("sft", tmp_path / "sft"))
    model = tmp_path / "sft" / "model"
    assert (model / "model.safetensors").stat().st_size < 2_000_000
    finish(rspo("eval", tmp_path / "eval", f"config.model.directory={model}"))
