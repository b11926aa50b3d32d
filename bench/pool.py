"""Environment steps per second of the pool, as one line of JSON per case.

    python bench/pool.py                                   # an environment that costs nothing: the pool's own limit
    python bench/pool.py --alfworld DIRECTORY              # also with the ALFWorld games that `rspo envs make` wrote there
    python bench/pool.py --workers 2 --slots 64 --seconds 5
"""

import argparse
import json
import pathlib
import time

from envs import pool, protocol


class Echo:
    """An environment that costs nothing."""

    def tasks(self, split):
        return [protocol.Task("echo", "echo")]

    def reset(self, task_id, seed):
        return protocol.Observation(text="ready", task="say anything")

    def step(self, action):
        return protocol.Observation(text=action)

    def close(self):
        pass


def make():
    return Echo()


def measure(options, split, seconds):
    """Steps all slots in one batch, again and again, with admissible actions in turn; finished episodes start anew."""
    began = time.perf_counter()
    with pool.Pool(options) as games:
        started = time.perf_counter()
        tasks = games.tasks(split)
        group = [slot // (8 * options.workers) * options.workers + games.worker_of(slot) for slot in range(options.slots)]
        task = [tasks[index % len(tasks)].id for index in group]  # groups of 8 play one game in one worker, as in training
        games.send({slot: pool.Reset(task[slot], 0) for slot in range(options.slots)})
        seen = games.receive(range(options.slots))
        ready = time.perf_counter()
        batches = 0
        while time.perf_counter() - ready < seconds:
            batches += 1
            games.send({slot: pool.Reset(task[slot], 0) if observation.done else pool.Step(_choose(observation, batches + slot))
                        for slot, observation in seen.items()})
            seen = games.receive(range(options.slots))
        elapsed = time.perf_counter() - ready
    return {"family": options.family, "workers": options.workers, "slots": options.slots, "start_s": round(started - began, 2),
            "first_resets_s": round(ready - started, 2), "steps_per_s": round(batches * options.slots / elapsed),
            "ms_per_batch": round(1000 * elapsed / batches, 2), "errors": games.errors}


def _choose(observation, number):
    actions = observation.admissible or ("an action",)
    return actions[number % len(actions)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slots", type=int, default=128, help="a multiple of the workers")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case")
    parser.add_argument("--alfworld", help="a folder of games")
    args = parser.parse_args()
    families = {pathlib.Path(__file__).stem: {}}  # this file, which Python put on the path that workers inherit
    if args.alfworld:
        families["envs.alfworld"] = {"data": args.alfworld}
    for family, options in families.items():
        case = pool.PoolOptions(family=family, options=options, workers=args.workers, slots=args.slots, start_timeout=60.0,
                                reset_timeout=60.0, step_timeout=60.0)
        print(json.dumps(measure(case, "train", args.seconds)), flush=True)


if __name__ == "__main__":
    main()
