import pathlib

import fake_runs
import pytest


@pytest.fixture(scope="session")
def workdirs(tmp_path_factory) -> list[pathlib.Path]:
    """Two seeds of RSPO and one run of GRPO."""
    root = tmp_path_factory.mktemp("runs")
    for algorithm, seed in (("rspo", 0), ("rspo", 1), ("grpo", 0)):
        fake_runs.write_run(root / f"{algorithm}-seed{seed}", algorithm, seed)
    return [root / "rspo-seed0", root / "rspo-seed1", root / "grpo-seed0"]
