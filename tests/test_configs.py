"""Every config is complete and valid, every key is read, and a wrong one is named with its full path."""

import dataclasses
import importlib
import pathlib

import pytest

from rspo_jax.train import settings

CONFIGS = ["rspo", "base", "istar", "spear"]
VARIANTS = ["alfworld", "alfworld,smoke"]


def config(name, variant="alfworld"):
    return importlib.import_module(f"configs.{name}").get_config(variant)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_valid_and_locked(name, variant):
    built = config(name, variant)
    assert built.is_locked
    assert settings.read(built.to_dict()).rspo is None or name == "rspo"


def test_every_config_file_is_tested():
    folder = pathlib.Path(importlib.import_module("configs").__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - {"__init__", "sections", "bases", "variants"} == set(CONFIGS)


def test_configs_share_nothing():
    one, other = config("rspo"), config("rspo")
    one.rspo.prm.width = 7
    assert other.rspo.prm.width != 7


def test_rspo_with_the_papers_defaults_splits_a_batch_of_sixteen_tasks():
    built = config("rspo")
    built.loop.tasks_per_update = 16
    read = settings.read(built.to_dict())
    # V17: B = 16, N = 8, alpha = 1/8: 14 tasks = 112 episodes on-policy and 16 replayed.
    assert (read.on_policy_tasks, read.off_policy_episodes) == (14, 16)
    read = settings.read(config("base").to_dict())
    assert (read.on_policy_tasks, read.off_policy_episodes) == (read.loop.tasks_per_update, 0)


@pytest.mark.parametrize("path, value, says", [
    ("loop.extra", 1, "config.loop.extra is unknown"),
    ("rspo.prm.widht", 1, "config.rspo.prm.widht is unknown; did you mean config.rspo.prm.width"),
    ("loop.updates", 1.5, "config.loop.updates=1.5 must be of type int"),
    ("loop.updates", True, "config.loop.updates=True must be of type int"),
    ("model", "qwen", "config.model='qwen' must be a section"),
    ("pool.slots", 7, "config.pool.slots=7 must be even"),
    ("advantage.statistics", "batch", "config.advantage.statistics='batch' is not allowed; use one of trajectory, step"),
    ("advantage.estimator", "grop", "config.advantage.estimator='grop' is not allowed; use one of grpo, dr_grpo, rloo"),
    ("advantage.gigpo.anchor_similarity", 0.0, "config.advantage.gigpo.anchor_similarity=0.0 is not allowed"),
    ("advantage.overlong", {"buffer": 99, "factor": 1.0}, "config.advantage.overlong.buffer=99 is more than"),
    ("evaluation.temperatures", (-1.0,), "config.evaluation.temperatures"),
    ("microbatch.widths", (256,), "config.microbatch.widths=.* must reach config.sampler.max_tokens=640"),
    ("loop.minibatches", 15, "config.loop.minibatches=15 is more than the 14 on-policy tasks"),
])
def test_wrong_keys_types_and_values_are_named(path, value, says):
    raw = config("rspo").to_dict()
    section, *keys = [raw, *path.split(".")]
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    with pytest.raises(ValueError, match=says):
        settings.read(raw)


def test_a_critic_goes_with_gae_and_with_nothing_else():
    raw = config("base", "alfworld,ppo").to_dict()
    assert settings.read(raw).critic.level == "row"
    with pytest.raises(ValueError, match="config.advantage.estimator=gae does not go with config.critic, which is None"):
        settings.read(raw | {"critic": None})
    with pytest.raises(ValueError, match="config.advantage.estimator=grpo does not go with config.critic, which is there"):
        settings.read(config("base").to_dict() | {"critic": raw["critic"]})


def test_unknown_variants_are_answered_with_those_that_exist():
    for arg in ("alfworld,smok", "webshop", "alfworld,rloo,grpo"):
        with pytest.raises(ValueError, match="use one of alfworld, then optionally one of grpo, dr_grpo"):
            config("base", arg)


def test_a_missing_key_is_named():
    raw = config("rspo").to_dict()
    del raw["loop"]["group_size"]
    with pytest.raises(ValueError, match="config.loop.group_size is missing"):
        settings.read(raw)


def test_options_have_no_defaults_of_their_own():
    def check(kind):
        for field in dataclasses.fields(kind):
            assert field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING, (kind, field.name)
            if dataclasses.is_dataclass(field.type):
                check(field.type)

    check(settings.Settings)
