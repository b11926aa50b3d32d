"""GiGPO's anchor states (eq. 4 and 6): which steps of a group stood before the same observation. Host side, plain Python.

The observation is the environment's own text, without history and without the list of admissible actions; never the
prompt. Two groups never share an anchor, whatever they saw. A trajectory that comes back to a state counts each time.
"""

import difflib
from collections.abc import Hashable, Sequence


def exact(observations: Sequence[Sequence[Hashable]], group: Sequence[int]) -> list[list[int]]:
    """Anchor id of each step by equality of the observations.

    Args:
        observations: one sequence a trajectory, with the observation before each of its steps.
        group: each trajectory's group.

    Returns:
        ids like `observations`, numbered from 0 in the order in which they first occur, so below the number of steps.
    """
    ids: dict[tuple[int, Hashable], int] = {}
    return [[ids.setdefault((g, seen), len(ids)) for seen in line] for line, g in zip(observations, group, strict=True)]


def similar(observations: Sequence[Sequence[str]], group: Sequence[int], threshold: float) -> list[list[int]]:
    """Anchor id of each step by likeness: it joins the first cluster of its group whose first member is like it.

    Likeness is difflib's ratio, as in the public code, junk heuristic included; the result depends on the order of the
    trajectories. The quick ratios are upper bounds of the ratio, so they only save time.

    Args:
        observations, group: as in `exact`, the observations text.
        threshold: smallest ratio that counts as like; 0.95 in the public code.

    Returns:
        as `exact`.
    """
    if not 0 < threshold < 1:
        raise ValueError(f"config.advantage.anchor_similarity={threshold} must lie between 0 and 1; use exact anchors for 1.")
    clusters: dict[int, list[tuple[int, difflib.SequenceMatcher]]] = {}
    known: dict[tuple[int, str], int] = {}
    count = 0
    ids = []
    for line, g in zip(observations, group, strict=True):
        ids.append([])
        for seen in line:
            if (g, seen) not in known:
                anchor = next((number for number, first in clusters.get(g, []) if _like(first, seen, threshold)), count)
                if anchor == count:
                    clusters.setdefault(g, []).append((count, difflib.SequenceMatcher(None, "", seen)))
                    count += 1
                known[g, seen] = anchor
            ids[-1].append(known[g, seen])
    return ids


def _like(first: difflib.SequenceMatcher, seen: str, threshold: float) -> bool:
    first.set_seq1(seen)
    return first.real_quick_ratio() >= threshold and first.quick_ratio() >= threshold and first.ratio() >= threshold
