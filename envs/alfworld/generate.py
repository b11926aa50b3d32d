"""Makes games in the official layout, each proved by playing its oracle's plan to the win in the engine."""

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
from collections.abc import Mapping

from envs.alfworld import blueprint, check, data, engine, oracle, problem, simulator

MAX_ATTEMPTS = 100  # for one game; on average one draw in ten is thrown away
SHORTEST_PLAN = 4  # shorter ones are thrown away
MANIFEST = "games.json"  # what was asked for; written last, so a folder that has it is whole


def make_games(out: str, games: int | Mapping[str, int], seed: int, workers: int) -> dict[str, int]:
    """Writes games below the new folder `out` and returns their number by split.

    Args:
      out: folder to make. It appears when all games are in it; until then they are in `<out>.partial`, and a call
        that was stopped is continued by the same call.
      games: number of games of each split, or a mapping from split to number. The six task types take turns.
      seed: the same seed gives the same bytes, whatever the number of workers and of games.
      workers: spawned processes; 1 makes the games in this process.

    Raises:
      FileExistsError: where `out` exists, or `<out>.partial` holds other games than these.
    """
    wanted = dict(games) if isinstance(games, Mapping) else dict.fromkeys(data.SPLITS, games)
    if not set(wanted) <= set(data.SPLITS) or min(wanted.values(), default=0) < 0 or not any(wanted.values()):
        raise ValueError(f"games={games!r}: give a positive number, or a number for some of {', '.join(data.SPLITS)}")
    if workers < 1:
        raise ValueError(f"workers={workers}: at least 1 is needed")
    folder, partial = pathlib.Path(out), pathlib.Path(f"{out}.partial")
    if folder.exists():
        raise FileExistsError(f"{folder} exists: use the games in it, or choose another folder")
    partial.mkdir(parents=True, exist_ok=True)
    jobs = _left(partial, wanted, seed)
    if workers == 1:
        for job in jobs:
            _make(job)
    else:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
            for _ in pool.map(_make, jobs, chunksize=4):
                pass
    (partial / MANIFEST).write_text(json.dumps({"seed": seed, "games": wanted}, sort_keys=True) + "\n", encoding="utf-8")
    os.rename(partial, folder)
    return wanted


def _left(partial: pathlib.Path, wanted: Mapping[str, int], seed: int) -> list[tuple[str, str, int, int]]:
    """The jobs whose games are not yet in the folder. The translation is a game's last file."""
    jobs = {
        (split, _trial(seed, number)): (str(partial), split, number, seed)
        for split in data.SPLITS
        for number in range(wanted.get(split, 0))
    }
    for trial in partial.glob("*/*/*"):
        game = trial.parent.parent.name, trial.name
        if game not in jobs:
            raise FileExistsError(f"{partial} holds {trial.relative_to(partial)}, which was not asked for: remove {partial}")
    finished = {(file.parents[2].name, file.parent.name) for file in partial.glob(f"*/*/*/{data.TRANSLATION}")}
    return [job for game, job in jobs.items() if game not in finished]


def _trial(seed: int, number: int) -> str:
    return f"trial_S{seed}_{number:05d}"


def _make(job: tuple[str, str, int, int]) -> None:
    out, split, number, seed = job
    for attempt in range(MAX_ATTEMPTS):
        game = blueprint.draw(seed, split, number, attempt)
        if game is not None and _write(pathlib.Path(out) / split, game, _trial(seed, number)):
            return
    raise RuntimeError(f"no game {number} of {split} with seed {seed} in {MAX_ATTEMPTS} attempts; choose another seed")


def _write(folder: pathlib.Path, game: blueprint.Blueprint, trial: str) -> bool:
    """Proves a game and writes its files; False, and no file, where it is too short to be a task."""
    domain, grammar = problem.logic()
    text = problem.pddl(game, trial)
    source = data.GameFile(domain, grammar, text, game.task, walkthrough=())
    translation = simulator.translate(domain, text)
    playable = data.build(source, translation)
    walkthrough = oracle.plan(oracle.goal(text), playable)
    if len(walkthrough) < SHORTEST_PLAN:
        return False
    check.replay(playable, walkthrough)
    name = f"{game.task_type}-{game.target}-None-{game.parent or game.toggle}-{game.scene.number}"
    trial_folder = folder / name / trial
    trial_folder.mkdir(parents=True, exist_ok=True)  # a stopped call may have left it unfinished
    record = {
        "pddl_domain": domain,
        "grammar": grammar.replace(engine.UNKNOWN_TASK, game.task),
        "pddl_problem": text,
        "solvable": True,
        "walkthrough": walkthrough,
    }
    (trial_folder / data.GAME).write_text(json.dumps(record), encoding="utf-8")
    (trial_folder / "initial_state.pddl").write_text(text, encoding="utf-8")
    (trial_folder / "traj_data.json").write_text(json.dumps(problem.traj_data(game, trial)), encoding="utf-8")
    data.store_translation(trial_folder, source, translation)
    return True
