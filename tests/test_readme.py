"""The README names what exists: every function of the equation map, and every config of the papers' rows."""

import importlib
import pathlib
import re

import pytest

from rspo_jax.train import settings

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def rows(first, last):
    """Lines of a table between two of its cells."""
    section = README[README.index(first) : README.index(last)]
    return [line for line in section.split("\n") if line.startswith("| ") and not line.startswith("| ---")]


MAP = sorted({name for line in rows("| equation |", "## Rows of the papers")
              for name in re.findall(r"`((?:algorithms|updates|models|train)\.[a-z_.]+)`", line)})
PRESETS = sorted({(name, words) for line in rows("| paper row |", "| flag of verl-agent |")
                  for name, words in re.findall(r"(base|rspo|istar|spear)\.py:([a-z_,]+)", line)})
KEYS = sorted(set(re.findall(r"config((?:\.[a-z_]+)+)", README)))


@pytest.mark.parametrize("name", MAP)
def test_every_function_of_the_equation_map_exists(name):
    module, function = name.rsplit(".", 1)
    assert callable(vars(importlib.import_module(f"rspo_jax.{module}"))[function])


def test_the_map_covers_both_papers():
    text = "\n".join(rows("| equation |", "## Rows of the papers"))
    assert len(MAP) > 30 and all(f"RSPO eq. {n}" in text for n in (1, 3, 5, 6, 7)) and text.count("iStar eq.") == 6


@pytest.mark.parametrize("name, words", PRESETS)
def test_every_row_of_the_papers_has_a_valid_config(name, words):
    settings.read(importlib.import_module(f"configs.{name}").get_config(words).to_dict())


@pytest.mark.parametrize("key", KEYS)
def test_every_key_that_is_named_exists(key):
    built = {name: importlib.import_module(f"configs.{name}").get_config(words)
             for name, words in (("base", "alfworld,ppo"), ("rspo", "alfworld"), ("istar", "alfworld"), ("spear", "alfworld"))}
    found = False
    for config in built.values():
        for part in key.strip(".").split("."):
            config = config.get(part) if hasattr(config, "get") else None
        found |= config is not None
    assert found, key
