"""Two whole runs share these: a few games, a model made from nothing, and a compilation cache."""

import os
import pathlib
import subprocess
import sys

import pytest

from envs import alfworld

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="session")
def games(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "alfworld"
    alfworld.make_games(str(folder), {"train": 12, "valid_seen": 6, "valid_unseen": 6}, seed=3, workers=1)
    return folder


@pytest.fixture(scope="session")
def rspo(games, tmp_path_factory):
    """rspo("train", workdir, "config.a.b=c", ...) starts the command on the smoke variant."""
    cache = tmp_path_factory.mktemp("compiled")

    def start(command, workdir, *overrides, config="rspo"):
        arguments = [sys.executable, "-m", "rspo_jax.cli", command, f"--config=configs/{config}.py:alfworld,smoke",
                     f"--workdir={workdir}", f"--config.pool.options.data={games}", *(f"--{each}" for each in overrides)]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(cache),
                                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        return subprocess.Popen(arguments, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    return start
