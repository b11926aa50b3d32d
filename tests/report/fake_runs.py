"""Trajectories and whole workdirs that look like those of real runs, written through `metrics.Run` itself."""

import math
import pathlib

import numpy as np

from rspo_jax import metrics, types
from rspo_jax.report import summary

TYPES = ("pick_and_place", "pick_two_obj", "look_at_obj", "pick_heat", "pick_cool", "pick_clean")
HOSTILE = '</script><img src=x onerror="document.title=1"><!--data--> &amp; \u2028 [bold] "quoted"'
UPDATES, EVAL_EVERY, EPISODES, PANEL = 60, 10, 64, 132


def make_step(number: int, dense: float, valid: bool = True) -> types.Step:
    tokens = np.arange(12 + number, dtype=np.int32)
    return types.Step(
        observation=f"You arrive at shelf {number}. On the shelf {number}, you see a mug 1, and a vase 2.",
        response=f"<think>The mug may be on shelf {number}.</think><action>go to shelf {number + 1}</action>",
        action=f"go to shelf {number + 1}" if valid else "",
        prompt_tokens=tokens,
        response_tokens=tokens,
        logp_sampler=-np.ones(len(tokens), np.float32),
        logp_behavior=-np.ones(len(tokens), np.float32),
        well_formed=valid,
        admissible=valid,
        outcome_reward=0.0,
        dense_reward=dense,
    )


def make_trajectory(random: np.random.Generator, rate: float, policy: str, update: int) -> types.Trajectory:
    success = bool(random.random() < rate)
    length = int(random.integers(4, 12)) if success else 20
    kind = TYPES[int(random.integers(len(TYPES)))]
    error = not success and random.random() < 0.05
    dense = random.normal(0.05 if success else -0.02, 0.08, length)
    return types.Trajectory(
        task_id=f"{kind}-{random.integers(40):03d}",
        task_type=kind,
        task=HOSTILE if random.random() < 0.1 else "put a hot mug in the cabinet.",
        group=int(random.integers(8)),
        seed=int(random.integers(1000)),
        policy=policy,
        update=update,
        steps=tuple(make_step(i, float(d), random.random() > 0.1) for i, d in enumerate(dense)),
        outcome=float(success),
        success=success,
        termination="success" if success else "error: timeout" if error else "step_cap",
        seconds=length * 0.2,
    )


def update_values(random: np.random.Generator, update: int, rspo: bool, trajectories: list) -> dict[str, float]:
    progress = update / UPDATES
    values = summary.rollout_summary(trajectories, TYPES)
    values |= {
        "updates": update, "episodes": EPISODES * update * (2 if rspo else 1), "loop": (update - 1) // 3,
        "loss": 0.02 * random.normal(), "policy_loss": 0.02 * random.normal(), "grad_norm": 0.4 + 0.1 * random.random(),
        "entropy": 1.1 - 0.6 * progress + 0.03 * random.normal(), "kl_ref": 0.05 * progress + 0.002 * random.random(),
        "ratio_mean": 1 + 0.002 * random.normal(), "ratio_max": math.exp(1 + 4 * random.random()),
        "clip_fraction_on": 0.01 + 0.01 * random.random(), "logp_gap": 0.004 * random.random(), "zero_variance_groups": 0.25,
        "seconds/env": 3 + random.random(), "seconds/sample": 9 + random.random(), "seconds/score": 1.5,
        "seconds/update": 6 + random.random(), "seconds/total": 20.0,
    }  # fmt: skip
    if rspo:
        values["ratio_mean_off"] = 1.1 + 0.05 * random.normal()
        values["clip_fraction_off"] = 0.2 + 0.1 * random.random() if update % 7 else math.nan
        values |= {"center_below_epsilon": 0.08 * random.random(), "center_above_inverse_epsilon": 0.03 * random.random()}
    return values


def write_run(workdir: pathlib.Path, algorithm: str, seed: int, updates: int = UPDATES) -> None:
    """A run of 60 updates with an evaluation every 10: RSPO with an explorer and a harvest every 3, or plain GRPO."""
    random, rspo = np.random.default_rng(seed), algorithm == "rspo"
    facts = {
        "data": "generated 1.0", "split": "train", "games": 600, "history": "full", "step_cap": 20,
        "evaluation_games": {"valid_seen": 132, "valid_unseen": 132}, "temperature": 1.0, "evaluation_temperatures": (0.0, 0.4),
        "seed": seed, "model": "tiny Qwen2.5, 1.1 M parameters",
    }  # fmt: skip
    config = {"seed": seed, "algorithm": algorithm, "policy": {"learning_rate": 3e-4 if rspo else 1e-4, "betas": (0.9, 0.99)}}
    if rspo:
        config["off_policy_fraction"] = 0.125
    with metrics.Run(workdir, resume=False, total_updates=updates) as run:
        run.header(config, facts)
        for update in range(1, updates + 1):
            run._start -= 20  # these updates take no time; pretend that each took 20 s
            rate = 0.2 + (0.6 if rspo else 0.4) / (1 + math.exp(-8 * (update / UPDATES - 0.45)))
            trajectories = [make_trajectory(random, rate, "agent", update) for _ in range(EPISODES)]
            if rspo:
                harvest = [make_trajectory(random, rate * 0.9, "explorer", update) for _ in range(EPISODES)]
                run.log(update, "explorer", update_values(random, update, False, harvest) | {"updates": update - update % 3})
                run.write_trajectories(update, "explorer", harvest[:1] if update % 5 == 0 else [])
                if update % 3 == 0:
                    values = {"updates": update, "kl_from_agent": 0.02 * random.random(), "seconds/env": 3.0}
                    run.log(update // 3, "harvest", summary.rollout_summary(harvest, TYPES) | values)
            run.log(update, "update", update_values(random, update, rspo, trajectories))
            run.write_trajectories(update, "update", trajectories[:2] if update % 5 == 0 else [])
            if update % EVAL_EVERY == 0:
                for split, temperature in (("valid_seen", 0.4), ("valid_unseen", 0.4), ("valid_unseen", 0.0)):
                    _log_eval(run, random, update, split, temperature, rate - 0.05 * (split == "valid_unseen"))


def _log_eval(run: metrics.Run, random: np.random.Generator, update: int, split: str, temperature: float, rate: float) -> None:
    played = summary.rollout_summary([make_trajectory(random, rate, "agent", update) for _ in range(PANEL)], TYPES)
    low, high = summary.wilson(played["success"] * PANEL, PANEL)
    kept = {name: value for name, value in played.items() if name.split("/")[0] in ("success", "count", "steps")}
    values = {"updates": update, "split": split, "temperature": temperature, "low": low, "high": high} | kept
    run.log(update, f"eval/{split}/{temperature}", values)
