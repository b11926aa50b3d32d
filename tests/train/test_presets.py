"""Two updates of the smoke variant of every preset and arm that no other whole run plays, in one process: a line is a run."""

import importlib
import math
import pathlib

import pytest
from whole_runs import metrics

from rspo_jax import generation
from rspo_jax.train import commands, learn, session
from rspo_jax.updates import policy

pytestmark = pytest.mark.presets

RUNS = [
    *(("base", base, {}) for base in ("dr_grpo", "rloo", "reinforce_pp_baseline", "dapo", "gspo", "gigpo", "ppo")),
    ("base", "reinforce_pp", {"advantage.kl_coef": 0.01, "advantage.overlong": {"buffer": 4, "factor": 1.0}}),
    ("base", "gigpo", {"advantage.gigpo.form": "centered", "advantage.gigpo.anchor_similarity": 0.9}),
    ("base", "ppo", {"critic.level": "turn", "critic.bootstrap_on_truncation": True}),
    ("base", "ppo", {"dialogue.history": "window(2)"}),
    *(("rspo", base, {}) for base in ("rloo", "reinforce_pp", "dapo", "gigpo")),
    ("rspo", "grpo", {"rspo.arm": "dense_only"}),
    ("rspo", "grpo", {"rspo.dense_signal": "environment", "policy.clip": "standard", "rspo.replay": "random"}),
    *(("istar", base, {}) for base in ("grpo", "reinforce_pp_baseline", "dapo")),
    *(("istar", f"rloo,{arm}", {}) for arm in ("token", "merged", "environment", "prime")),
    ("istar", "reinforce_pp", {"istar.logit": "mean", "istar.baseline": "first_row", "istar.divide_by_largest": True,
                               "policy.ratio": "step_sum"}),
    ("spear", "gigpo", {}),
]


def once(make, key):
    """`make`, called once for each key(*args): what was made before is used again."""
    made = {}

    def cached(*args):
        place = key(*args)
        if place not in made:
            made[place] = make(*args)
        return made[place]

    return cached


@pytest.fixture(scope="module")
def compiled():
    """Nearly all runs have the same model and the same loss: what they trace and compile is kept between them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "Sampler", once(generation.Sampler, lambda *args: repr(args)))
        patch.setattr(session, "make_score", once(
            session.make_score, lambda settings, *rest: repr((settings.model, *rest))))
        patch.setattr(policy, "make_policy_gradient", once(
            policy.make_policy_gradient, lambda score, options: (score.__wrapped__, options)))
        yield


def names(runs):
    return [f"{file}:{words}" + "".join(f"-{value}" for value in changes.values()) for file, words, changes, *_ in runs]


@pytest.fixture
def train(compiled, monkeypatch):
    """train(file, words, changes, workdir) runs a smoke variant on the coin environment, and returns its metrics."""
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent)  # for the workers

    def run(file, words, changes, workdir):
        config = importlib.import_module(f"configs.{file}").get_config(f"alfworld,{words},smoke")
        config.pool.options = {}
        config.update_from_flattened_dict({
            "pool.family": "coin", "data.max_steps": 4, "evaluation.splits": ("valid_unseen",), "evaluation.temperatures": (0.4,),
            "loop.group_size": 8,  # at one half of successes, one group in 128 has nothing to compare
            "sampler.max_tokens": 256, "sampler.read_sizes": (256,), "microbatch.widths": (256,), **changes})
        if config.rspo:
            config.rspo.prm.episodes = 16
        commands.train(config.to_dict(), str(workdir))
        return metrics(workdir)

    return run


@pytest.mark.parametrize("file, words, changes", RUNS, ids=names(RUNS))
def test_a_preset_runs(file, words, changes, train, tmp_path):
    lines = train(file, words, changes, tmp_path)
    assert (tmp_path / "model" / "model.safetensors").exists()
    for update in (1, 2):
        line = lines["update", update]
        assert math.isfinite(line["policy_loss"]) and line["grad_norm"] > 0 and line["skipped_updates"] == 0
        if file == "istar":
            assert 0 < line["prm/loss"] < 1 and line["prm/updates"] == update
    if file == "spear":
        assert lines["update", 2]["replay/replayed"] == 1


# The states that an algorithm has beside the policy's, each lost if a checkpoint left it out; and where the run is broken off.
RESUMED = [
    ("rspo", "ppo", {}, ("harvest", 1)),  # the explorer's critic too
    ("rspo", "grpo,implicit", {}, ("update", 2)),
    ("rspo", "grpo", {"rspo.arm": "own_replay", "rspo.dense_signal": "none"}, ("update", 2)),
    ("istar", "rloo", {}, ("update", 2)),
    ("spear", "grpo", {"spear.replay_episodes": 4}, ("update", 2)),
]


@pytest.mark.parametrize("file, words, changes, where", RESUMED, ids=names(RESUMED))
def test_a_broken_run_resumes_exactly(file, words, changes, where, train, tmp_path, monkeypatch):
    whole = train(file, words, changes, tmp_path / "whole")
    record = learn.record

    def broken(session, kind, tick, *rest):
        if (kind, tick) == where:
            raise ZeroDivisionError("a bug")
        record(session, kind, tick, *rest)

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(learn, "record", broken)
        train(file, words, changes, tmp_path / "run")
    assert where not in metrics(tmp_path / "run")
    assert train(file, words, changes, tmp_path / "run") == whole
