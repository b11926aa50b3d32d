"""Thirty games made once for all tests of ALFWorld, and the real games where they are present."""

import os
import pathlib

import pytest

from envs.alfworld import generate

PROJECT = pathlib.Path(__file__).parents[3]
MADE = {"train": 18, "valid_seen": 6, "valid_unseen": 6}


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> pathlib.Path:
    """A folder with 30 generated games, five of each task type."""
    folder = tmp_path_factory.mktemp("alfworld") / "made"
    generate.make_games(str(folder), MADE, seed=7, workers=2)
    return folder


@pytest.fixture(scope="session")
def real() -> pathlib.Path:
    """The folder of real 2.1.1 games; tests that need it are skipped where it is absent."""
    folder = pathlib.Path(os.environ.get("RSPO_SHARED_DATA", PROJECT.parent / "shared" / "data")) / "alfworld"
    if not folder.is_dir():
        pytest.skip(f"no real ALFWorld games in {folder} (set RSPO_SHARED_DATA)")
    return folder
