"""Signals become a request; a second Ctrl-C does not."""

import os
import signal
import subprocess
import sys
import time

import pytest

from rspo_jax import interrupt

LOOP = """
import time
from rspo_jax import interrupt
with interrupt.Stop() as stop:
    print("ready", flush=True)
    while not stop.requested:
        time.sleep(0.01)
    print("requested", stop.requested, flush=True)
    time.sleep(float({seconds}))  # saving
    print("left", flush=True)
"""


def loop(seconds):
    process = subprocess.Popen([sys.executable, "-c", LOOP.format(seconds=seconds)], text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_the_loop_leave_by_itself(number):
    with loop(seconds=0.0) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
    assert out == f"requested {number.name}\nleft\n" and process.returncode == 0
    assert f"{number.name}: saving and leaving" in err


def test_second_interrupt_leaves_at_once():
    with loop(seconds=30.0) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "requested SIGINT\n"
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=10)
    assert process.returncode == -signal.SIGINT and time.monotonic() - start < 1


def test_repeated_terminations_and_a_late_interrupt_do_not_disturb_the_save():
    with loop(seconds=0.5) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "requested SIGTERM\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)  # the first one
        assert process.communicate(timeout=10)[0] == "left\n" and process.returncode == 0


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with interrupt.Stop() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested == "SIGINT"
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
