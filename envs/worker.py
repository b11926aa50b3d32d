"""One worker process of the pool (`envs.pool`): it hosts many slots and plays them one request at a time.

A worker reads lines of JSON from a socket, each a list of requests `[kind, slot, *arguments]`, and writes one line
`[slot, value, error, message, traceback]` for each request, in their order and as soon as it is ready. JSON, because actions
were written by a model: nothing that reaches this process is ever unpickled or evaluated. Its escapes also carry lone
surrogates, U+2028 and NaN unharmed.

Started as `python -P -m envs.worker SOCKET LIFELINE` (two inherited file descriptors). It imports the environment family and
nothing of the trainer; in particular the trainer's main module, and with it JAX, is not imported, as multiprocessing would.
"""

import contextlib
import dataclasses
import fcntl
import functools
import importlib
import json
import operator
import os
import signal
import socket
import sys
import traceback

from envs import protocol

OBSERVATION_FIELDS = tuple(field.name for field in dataclasses.fields(protocol.Observation))
_values = operator.attrgetter(*OBSERVATION_FIELDS)


class Slots:
    """The environments of one worker. Each is made when its slot is first used, and made anew after it raised."""

    def __init__(self):
        self._environments = {}

    def start(self, slot, family, options):
        """Imports the family and makes one environment, so that missing data are found before anything is played."""
        self._make = functools.partial(importlib.import_module(family).make, **options)
        self._environment(slot)

    def tasks(self, slot, split):
        return [[task.id, task.type] for task in self._environment(slot).tasks(split)]

    def reset(self, slot, task_id, seed):
        return _values(self._environment(slot).reset(task_id, seed))

    def step(self, slot, action):
        return _values(self._environment(slot).step(action))

    def discard(self, slot):
        """Forgets an environment that raised: whatever state it is in, the next episode does not start from it."""
        _close(self._environments.pop(slot, None))

    def close(self):
        for environment in self._environments.values():
            _close(environment)

    def _environment(self, slot):
        if slot not in self._environments:
            self._environments[slot] = self._make()
        return self._environments[slot]


KINDS = {"start": Slots.start, "tasks": Slots.tasks, "reset": Slots.reset, "step": Slots.step}


def answer(slots, request):
    """Carries out one request; returns its answer as JSON. What the environment raises is an answer too."""
    kind, slot, *arguments = request
    try:
        return json.dumps([slot, KINDS[kind](slots, slot, *arguments), "", "", ""])
    except BaseException as error:  # also SystemExit: an engine that calls sys.exit() fails its episode, not its neighbours'
        if kind in ("reset", "step"):
            slots.discard(slot)
        return json.dumps([slot, None, type(error).__name__, str(error), traceback.format_exc()])


def serve(channel):
    """Answers until the pool closes its end."""
    slots = Slots()
    with contextlib.suppress(ConnectionError):  # closed while an answer was on its way: the same end, met a little earlier
        for line in channel.makefile("rb"):
            for request in json.loads(line):
                channel.sendall(answer(slots, request).encode() + b"\n")
    slots.close()


def die_with_pool(lifeline):
    """Lets the kernel kill this process when the pool's end of a pipe closes, that is when the trainer is gone, however it went.

    This works while an engine hangs in native code, where no Python thread could watch a pipe. PR_SET_PDEATHSIG would too,
    but it fires when the *thread* that started the worker ends. Elsewhere than on Linux the end of the socket must do.
    """
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def main():
    channel, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    del sys.argv[1:]  # engines read it
    die_with_pool(lifeline)
    for number in (signal.SIGINT, signal.SIGTERM):  # the trainer's, which still collects the running episodes and saves
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(PermissionError):  # an unprivileged worker of a niced trainer stays as nice as that
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    try:
        serve(channel)
    finally:
        os._exit(0)  # without the interpreter's exit, in which ALFWorld's planner library crashes


def _close(environment):
    """Closes an environment, if there is one; one that cannot be closed has its traceback in the worker's output."""
    if environment is None:
        return
    try:
        environment.close()
    except Exception:
        traceback.print_exc()


if __name__ == "__main__":
    main()
