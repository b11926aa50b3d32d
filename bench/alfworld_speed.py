"""ALFWorld on the stock engine against envs.alfworld, on the same games: one line of JSON.

    python bench/alfworld_speed.py DIR          # games that `rspo envs make alfworld` wrote, or official ones

Each case runs in a process of its own, so that memory is that case's. Actions are random admissible ones. A group of
8 slots plays one game, as in training: members share what the engine remembers, and differ in what they do.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

STEPS = 30


def timed(function, *arguments):
    began = time.perf_counter()
    result = function(*arguments)
    return result, 1000 * (time.perf_counter() - began)


def megabytes():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def fast(folder, slots):
    """First resets, seen resets, steps and memory of `slots` slots in one process, 8 to a game."""
    import envs.alfworld as alfworld

    games = [alfworld.make(folder) for _ in range(slots)]
    tasks = games[0].tasks("train")
    first, seen, steps, rng = [], [], [], random.Random(0)
    took = 0.0
    for episode in range(2):
        observations = []
        for slot, game in enumerate(games):
            task = tasks[(slot // 8 + episode * ((slots + 7) // 8)) % len(tasks)]
            observation, ms = timed(game.reset, task.id, 0)
            (seen if slot % 8 else first).append(ms)
            observations.append(observation)
        for _ in range(STEPS):
            for slot, game in enumerate(games):
                observations[slot], ms = timed(game.step, rng.choice(observations[slot].admissible or ("look",)))
                steps.append(ms)
                took += ms / 1000
    return {"slots": slots, "first_reset_ms": statistics.mean(first), "seen_reset_ms": statistics.mean(seen or [0]),
            "step_ms": statistics.mean(steps), "slowest_step_ms": max(steps), "steps_per_s": len(steps) / took, "mb": megabytes()}


def stock(folder, slots):
    """The same of textworld's own engine with ALFWorld's wrapper; each slot loads its game for itself."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["ALFWORLD_DATA"] = home  # importing alfworld makes this folder
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.core import EnvInfos
        from textworld.envs import PddlEnv

    from envs.alfworld import data

    files = [pathlib.Path(folder) / task.id / data.GAME for task in data.tasks(pathlib.Path(folder), "train")]
    resets, steps, rng, games = [], [], random.Random(0), []
    for slot in range(slots):
        game = AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True)))
        state, ms = timed(lambda game=game, slot=slot: (game.load(str(files[slot // 8 % len(files)])), game.reset())[1])
        resets.append(ms)
        games.append((game, state))
    for _ in range(STEPS // 5):
        for slot, (game, state) in enumerate(games):
            (state, *_), ms = timed(game.step, rng.choice(state["admissible_commands"]))
            steps.append(ms)
            games[slot] = game, state
    return {"slots": slots, "load_and_reset_ms": statistics.mean(resets), "step_ms": statistics.mean(steps),
            "steps_per_s": 1000 / statistics.mean(steps), "mb": megabytes()}


CASES = {"fast_8": (fast, 8), "fast_64": (fast, 64), "stock_8": (stock, 8)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", help="folder with train/")
    parser.add_argument("--case", choices=CASES, help="run one case in this process")
    options = parser.parse_args()
    if options.case:
        function, slots = CASES[options.case]
        print(json.dumps({name: round(value, 3) for name, value in function(options.directory, slots).items()}))
        return
    results = {}
    for case in CASES:
        command = [sys.executable, __file__, options.directory, "--case", case]
        results[case] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
