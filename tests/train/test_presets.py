"""The smoke variant of every preset, and every arm, for two updates, in one process: each line is one run."""

import importlib
import math
import pathlib

import jax
import pytest
from whole_runs import metrics

from rspo_jax.train import commands

BASES = ["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "dapo", "gigpo", "ppo"]
RUNS = [("base", base, {}) for base in BASES] + [("rspo", base, {}) for base in BASES] + [
    ("rspo", "grpo", {"rspo.arm": "dense_only"}),
    ("rspo", "grpo", {"rspo.arm": "own_replay", "rspo.dense_signal": "none"}),
    ("rspo", "grpo", {"rspo.dense_signal": "environment", "policy.clip": "standard", "rspo.replay": "random"}),
    ("base", "reinforce_pp", {"advantage.kl_coef": 0.01, "advantage.overlong": {"buffer": 4, "factor": 1.0}}),
    ("rspo", "grpo,implicit", {}),
    *(("istar", base, {}) for base in ("grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "dapo")),
    *(("istar", f"rloo,{arm}", {}) for arm in ("token", "merged", "environment", "prime")),
    ("istar", "rloo", {"istar.logit": "mean", "istar.baseline": "first_row", "istar.divide_by_largest": True,
                       "policy.ratio": "step_sum"}),
    ("spear", "grpo", {}),
    ("spear", "gigpo", {}),
    ("base", "ppo", {"critic.level": "turn", "critic.bootstrap_on_truncation": True}),
    ("base", "ppo", {"critic.level": "row", "dialogue.history": "window(2)", "sampler.max_tokens": 512}),
    ("base", "gigpo", {"advantage.gigpo.form": "centered", "advantage.gigpo.anchor_similarity": 0.9}),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.mark.parametrize("file, base, changes", RUNS, ids=[f"{f}:{b}" + "".join(f"-{v}" for v in c.values()) for f, b, c in RUNS])
def test_a_preset_runs(file, base, changes, compiled, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent)  # for the workers
    config = importlib.import_module(f"configs.{file}").get_config(f"alfworld,{base},smoke")
    config.pool.options = {}
    config.data.max_steps = 4
    config.update_from_flattened_dict({"pool.family": "coin", "evaluation.splits": ("valid_unseen",),
                                       "evaluation.temperatures": (0.4,), **changes})
    commands.train(config.to_dict(), str(tmp_path))
    lines = metrics(tmp_path)
    assert ("update", 2) in lines and (tmp_path / "model" / "model.safetensors").exists()
    for update in (1, 2):
        assert math.isfinite(lines["update", update]["policy_loss"])
        if file == "istar":
            assert 0 < lines["update", update]["prm/loss"] < 1 and lines["update", update]["prm/updates"] == update
        if file == "spear" and update == 2:
            assert lines["update", 2]["replay/replayed"] == 1
        assert lines["update", update]["grad_norm"] > 0 and lines["update", update]["skipped_updates"] == 0
