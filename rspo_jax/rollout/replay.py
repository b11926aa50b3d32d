"""RSPO's buffer: the explorer's harvest, relabelled with outcome rewards, and how the agent draws from it.

Advantages are those of the full harvest group (all N siblings on that task) at harvest time. Over the selected set they
would all be 0, because a reward-ordered selection is all success.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from rspo_jax import types

STRATEGIES = ("reward", "proportional", "variance", "random")


@dataclasses.dataclass(frozen=True)
class Item:
    trajectory: types.Trajectory
    advantage: np.ndarray  # of each sampled token, by outcome, against the full harvest group


def rank(outcome: np.ndarray, advantage: np.ndarray, group: np.ndarray, strategy: str, rng: np.random.Generator) -> np.ndarray:
    """Order in which a harvest is drawn from, best first.

    reward: outcome descending, ties by advantage descending, then random (the default of RSPO, table 2).
    proportional: without replacement, with probability proportional to the outcome; failures last.
    variance: groups by the variance of their outcomes descending, then as `reward`.
    random: uniformly.

    Args:
        outcome, advantage, group: [B]; advantage is the trajectory's mean over its tokens.
        strategy: one of STRATEGIES.

    Returns:
        [B] int, a permutation.
    """
    shuffled = rng.permutation(len(outcome))
    if strategy == "random":
        return shuffled
    if strategy == "reward":
        keys = (-advantage[shuffled], -outcome[shuffled])
    elif strategy == "variance":
        variance = np.array([outcome[group == g].var() for g in group])
        keys = (-advantage[shuffled], -outcome[shuffled], -variance[shuffled])
    elif strategy == "proportional":
        # Efraimidis and Spirakis: sorting u^(1/w) draws without replacement with probability proportional to w.
        weight = np.maximum(outcome[shuffled], 1e-12)
        keys = (np.log(rng.uniform(1e-12, 1.0, len(shuffled))) / -weight,)
    else:
        raise ValueError(f"config.rspo.replay={strategy!r} is unknown; use one of {', '.join(STRATEGIES)}.")
    return shuffled[np.lexsort(keys)]


def order(buffer: Sequence[Item], strategy: str, rng: np.random.Generator) -> list[Item]:
    """The items worth a slot, in the order in which they are drawn, without replacement inside a loop.

    Groups that all succeed or all fail teach nothing about success: they are left out. A buffer without any success gives no
    items: the update then runs on-policy alone.
    """
    outcomes: dict[int, set[float]] = {}
    for item in buffer:
        outcomes.setdefault(item.trajectory.group, set()).add(item.trajectory.outcome)
    useful = [item for item in buffer if len(outcomes[item.trajectory.group]) > 1]
    if not any(item.trajectory.success for item in useful):
        return []
    outcome = np.array([item.trajectory.outcome for item in useful])
    advantage = np.array([item.advantage.mean() for item in useful])
    group = np.array([item.trajectory.group for item in useful])
    return [useful[index] for index in rank(outcome, advantage, group, strategy, rng)]


def item_to_json(item: Item) -> dict:
    """An item as JSON has it, for a checkpoint."""
    return {"trajectory": types.trajectory_to_json(item.trajectory), "advantage": item.advantage.tolist()}


def item_from_json(raw: dict) -> Item:
    return Item(types.trajectory_from_json(raw["trajectory"]), np.array(raw["advantage"], np.float32))
