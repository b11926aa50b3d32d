"""The warm start that is shipped: small, made by `rspo sft`, and (slow) as good as one that is rebuilt from nothing."""

import functools
import json
import pathlib

import pytest
from whole_runs import ROOT, finish, metrics, start

from configs import sections
from envs import alfworld
from rspo_jax import tokenizer as chat

SHIPPED = pathlib.Path(sections.WARM_START) / "alfworld"


def test_it_is_small_and_complete():
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 2_000_000
    names = {path.name for path in SHIPPED.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


def test_its_tokenizer_is_the_one_that_the_words_make(tmp_path):
    chat.build_small(alfworld.words(), alfworld.phrases(), tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (SHIPPED / path.name).read_bytes(), path.name


def test_its_architecture_is_the_one_that_the_config_asks_for():
    config = json.loads((SHIPPED / "config.json").read_text())
    wanted = sections.alfworld_tiny().sft.model
    assert {name: config[name] for name in wanted} == wanted.to_dict()


@pytest.mark.rebuild
def test_a_rebuilt_one_is_as_good(tmp_path):
    """Ten minutes: `make test-warm-start`. Same games, seeds and processor give the same weights; else it must be as good."""
    run = functools.partial(start, cache=tmp_path / "compiled", variant="alfworld", config="base")
    finish(run("sft", tmp_path / "sft", games=ROOT / "data" / "alfworld-sft"), timeout=1800)
    rebuilt = tmp_path / "sft" / "model"
    success = {}
    for name, directory in (("rebuilt", rebuilt), ("shipped", SHIPPED)):
        finish(run("eval", tmp_path / name, f"config.model.directory={directory}", games=ROOT / "data" / "alfworld"), timeout=600)
        success[name] = metrics(tmp_path / name / "eval-1")["eval/valid_unseen/0.4", 0]
    same = (rebuilt / "model.safetensors").read_bytes() == (SHIPPED / "model.safetensors").read_bytes()
    print(*(f"{name} {values['success']:.1%}" for name, values in success.items()), f"the same bytes: {same}")
    assert same or success["shipped"]["low"] <= success["rebuilt"]["success"] <= success["shipped"]["high"]
