"""A family for the tests of the pool: environments that do as they are told by their actions and task ids."""

import os
import sys
import time

from envs import protocol


def make(fail="", **options):
    if fail == "raise":
        raise FileNotFoundError("SCRIPTED_DATA=/nowhere does not exist; run: scripted make")
    if fail == "hang":
        time.sleep(60)
    if fail == "exit":
        print("the engine's last words", file=sys.stderr, flush=True)
        os._exit(3)
    if fail == "exit when replaced":  # the first worker leaves a mark, its successor finds it
        with open(options["mark"], "a+") as mark:
            if mark.tell():
                raise RuntimeError("the data are gone")
            mark.write("x")
    return Scripted(options)


class Scripted:
    def __init__(self, options):
        self._options = options
        self._resets = 0

    def tasks(self, split):
        if split == "hang":
            time.sleep(60)
        if split not in ("train", "other"):
            raise ValueError(f"unknown split {split!r}; splits are train, other")
        return [protocol.Task(f"{split}/{number}", "counting") for number in range(3)]

    def reset(self, task_id, seed):
        self._resets += 1
        self._count = seed
        word, _, argument = task_id.partition(" ")
        if word == "die":  # the first time only, as a mark in a file tells
            with open(argument, "a+") as mark:
                if not mark.tell():
                    mark.write("x")
                    mark.flush()
                    os.kill(os.getpid(), 9)
        if word == "die-always":
            os.kill(os.getpid(), 9)
        if word == "hang":
            time.sleep(60)
        return protocol.Observation(text=f"reset {self._resets}", task=task_id, admissible=("count", "é\u2028\ud800"))

    def step(self, action):
        self._count += 1
        word, _, argument = action.partition(" ")
        if word == "sleep":
            time.sleep(float(argument))
        elif word == "raise":
            return {}[argument]
        elif word == "exit":
            sys.exit("an engine that wants out")
        elif word == "kill":
            os.kill(os.getpid(), 9)
        elif word == "spin":  # as native code that keeps the interpreter's lock
            sys.setswitchinterval(1e6)
            while True:
                pass
        elif word == "print":
            os.write(1, b"x" * int(argument))
        elif word == "win":
            return protocol.Observation(text="", reward=1.0, done=True, success=True)
        elif word == "ask":
            facts = {"pid": os.getpid(), "jax": "jax" in sys.modules, "rspo_jax": "rspo_jax" in sys.modules, "argv": sys.argv[1:],
                     "hash": hash("a set element"), "niceness": os.getpriority(os.PRIO_PROCESS, 0), "options": self._options}
            return protocol.Observation(text=str(facts[argument]))
        elif word == "echo":
            return protocol.Observation(text=argument)
        elif word == "unserialisable":
            return protocol.Observation(text=b"bytes")
        return protocol.Observation(text=str(self._count), reward=float("nan"))

    def close(self):
        if "closed" in self._options:
            with open(self._options["closed"], "a") as file:
                file.write("closed\n")
