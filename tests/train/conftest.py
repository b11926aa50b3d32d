"""Whole runs share a few games and a compilation cache."""

import functools

import pytest
from whole_runs import start

from envs import alfworld


@pytest.fixture(scope="session")
def games(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "alfworld"
    alfworld.make_games(str(folder), {"train": 12, "valid_seen": 6, "valid_unseen": 6}, seed=3, workers=1)
    return folder


@pytest.fixture(scope="session")
def rspo(games, tmp_path_factory):
    """rspo("train", workdir, "config.a.b=c", ...) starts the command on the smoke variant of a config."""
    return functools.partial(start, games=games, cache=tmp_path_factory.mktemp("compiled"))
