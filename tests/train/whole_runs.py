"""What tests do with a command that runs in another process."""

import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]


def start(command, workdir, *overrides, games, cache, config="rspo", variant="alfworld,smoke"):
    """The process of an `rspo` command on the CPU; overrides are flags without their dashes."""
    arguments = [sys.executable, "-m", "rspo_jax.cli", command, f"--config=configs/{config}.py:{variant}",
                 f"--workdir={workdir}", f"--config.pool.options.data={games}", *(f"--{each}" for each in overrides)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(cache),
                                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return subprocess.Popen(arguments, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process, code=0, timeout=300):
    """Waits for a command and returns what it printed."""
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == code, output
    return output


def metrics(workdir):
    """The lines of metrics.jsonl, as far as they are written to their end, without what a clock wrote."""
    lines = [json.loads(line) for line in (pathlib.Path(workdir) / "metrics.jsonl").read_text().split("\n")[:-1]]
    return {(line["kind"], line["tick"]): {name: value for name, value in line.items() if "seconds" not in name}
            for line in lines}


def stop_at(process, workdir, kind, tick, number):
    """Sends a signal as soon as a line of metrics is written."""
    deadline = time.monotonic() + 200
    file = pathlib.Path(workdir) / "metrics.jsonl"
    while not (file.exists() and (kind, tick) in metrics(workdir)):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.02)
    process.send_signal(number)
