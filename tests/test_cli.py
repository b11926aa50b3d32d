"""What the command line refuses, in one sentence and before anything is loaded."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def rspo(*arguments, **environment):
    return subprocess.run([sys.executable, "-m", "rspo_jax.cli", *arguments], capture_output=True, text=True, cwd=ROOT,
                          timeout=120, env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment)


@pytest.mark.parametrize("arguments, says", [
    (["--config.loop.updtes=3"], "config.loop.updtes is unknown: 'updtes' is none of .*did you mean 'updates'"),
    (["--config.lop.updates=3"], "config.lop.updates is unknown.*did you mean 'loop'"),
    (["--config.loop.updates=many"], "--config.loop.updates=many"),
    (["--config.loop.updates=-1"], "config.loop.updates=-1 is not allowed; use a positive number"),
    (["--config.loop.group_size=1"], "config.loop.group_size=1 must be at least 2"),
    (["--config.optimizer.learning_rate=nan"], "config.optimizer.learning_rate is nan"),
    (["--config.rspo.off_policy_fraction=0.3"], "config.rspo.off_policy_fraction=0.3 of config.loop.tasks_per_update=2"),
    (["--config.pool.options.data=nowhere"], "nowhere.*rspo envs make alfworld"),
    (["--config.model.directory=nowhere"], "nowhere"),
    (["extra"], "left-over arguments \\['extra'\\]"),
    (["--confg=x"], "Unknown command line flag 'confg'"),
])
def test_mistakes_are_named(tmp_path, arguments, says):
    done = rspo("train", "--config=configs/rspo.py:alfworld,smoke", f"--workdir={tmp_path / 'run'}", *arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(says, done.stderr, re.DOTALL), done.stderr


def test_unknown_variants_and_missing_flags(tmp_path):
    done = rspo("train", "--config=configs/rspo.py:webshop", f"--workdir={tmp_path}")
    assert done.returncode == 2 and "unknown variant 'webshop'; use one of alfworld" in done.stderr
    done = rspo("train", "--config=configs/rspo.py")
    assert done.returncode == 2 and "--workdir is missing" in done.stderr


def test_help_lists_the_commands():
    done = rspo("--help")
    assert done.returncode == 0 and all(name in done.stdout for name in ("train", "sft", "prm", "eval", "play", "report", "envs"))
    assert rspo("trian").returncode == 2
