"""What a set of trajectories amounts to, in numbers. Every episode that was started is in the denominators."""

import collections
import math
from collections.abc import Iterable, Sequence

import numpy as np

from rspo_jax import types

TERMINATIONS = ("success", "failure", "step_cap", "token_cap", "error")


def rollout_summary(trajectories: Sequence[types.Trajectory], task_types: Sequence[str]) -> dict[str, float]:
    """The metrics of a rollout or an evaluation.

    An empty set, and a task type of which no episode was played, have success nan and count 0.

    Args:
      trajectories: every episode that was started, those that an error ended included.
      task_types: the types to report; each is always present in the answer.

    Returns:
      count, success (share of episodes), outcome_return, steps and episode_seconds (means over episodes);
      dense_return (mean over episodes of the sum of the scored steps; episodes without a scored step are left out);
      response_tokens, well_formed, admissible (means over steps); identical_states, identical_share (see below);
      success/<type>, count/<type>; termination/<reason> and errors/<kind> (numbers of episodes).

    Raises:
      ValueError: a task type or a termination that is not known.
    """
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    states, share = identical_states(trajectories)
    return {
        "count": len(trajectories),
        "success": mean(t.success for t in trajectories),
        "outcome_return": mean(t.outcome for t in trajectories),
        "dense_return": mean(r for t in trajectories if not math.isnan(r := dense_return(t))),
        "steps": mean(len(t.steps) for t in trajectories),
        "episode_seconds": mean(t.seconds for t in trajectories),
        "response_tokens": mean(len(s.response_tokens) for s in steps),
        "well_formed": mean(s.well_formed for s in steps),
        "admissible": mean(s.admissible for s in steps),
        "identical_states": states,
        "identical_share": share,
        **_by_type(trajectories, task_types),
        **_terminations(trajectories),
    }


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean in float64; nan of nothing."""
    array = np.array(list(values), dtype=np.float64)
    return float(array.mean()) if array.size else math.nan


def dense_return(trajectory: types.Trajectory) -> float:
    """Sum of the dense rewards of the steps that were scored; nan where none was."""
    scored = [step.dense_reward for step in trajectory.steps if not math.isnan(step.dense_reward)]
    return float(sum(scored)) if scored else math.nan


def identical_states(trajectories: Sequence[types.Trajectory]) -> tuple[int, float]:
    """How often the same state came up again: what step-level groups (GiGPO) can be built from.

    A state is (task id, observation). Returns the number of states that were seen at least twice, and the share of all
    steps that started in one of them (nan without steps).
    """
    seen = collections.Counter((t.task_id, step.observation) for t in trajectories for step in t.steps)
    repeated = [times for times in seen.values() if times >= 2]
    total = seen.total()
    return len(repeated), sum(repeated) / total if total else math.nan


def auc(score: np.ndarray, positive: np.ndarray) -> float:
    """Probability that a success is scored above a failure, ties counting one half; nan without both kinds."""
    wins = np.sign(score[positive][:, None] - score[~positive][None, :])
    return float((wins.mean() + 1) / 2) if wins.size else math.nan


def dense_calibration(trajectories: Sequence[types.Trajectory]) -> dict[str, float]:
    """How the dense return goes with the verdict, over the scored episodes.

    Returns:
      dense_outcome_correlation (Pearson; nan where either does not vary), dense_auc (see auc), dense_return_success and
      dense_return_failure (means; nan without such an episode).
    """
    scored = [t for t in trajectories if not math.isnan(dense_return(t))]
    dense, outcome = np.array([dense_return(t) for t in scored]), np.array([t.outcome for t in scored])
    success = np.array([t.success for t in scored], bool)
    varies = len(scored) > 1 and dense.std() > 0 and outcome.std() > 0
    return {"dense_outcome_correlation": float(np.corrcoef(dense, outcome)[0, 1]) if varies else math.nan,
            "dense_auc": auc(dense, success), "dense_return_success": mean(dense[success]),
            "dense_return_failure": mean(dense[~success])}


def group_shares(trajectories: Sequence[types.Trajectory]) -> dict[str, float]:
    """What groups leave to compare: zero_variance_groups (share whose outcomes are all equal), single_member_groups (share with
    one episode that no error ended), action_diversity (see there; mean over groups of several)."""
    groups: dict[int, list[types.Trajectory]] = {}
    for t in trajectories:
        groups.setdefault(t.group, []).append(t)
    members = [[t for t in group if not t.termination.startswith("error")] for group in groups.values()]
    return {"zero_variance_groups": mean(len({t.outcome for t in group}) == 1 for group in groups.values()),
            "single_member_groups": mean(len(group) == 1 for group in members),
            "action_diversity": mean(action_diversity(group) for group in members if len(group) > 1)}


def action_diversity(group: Sequence[types.Trajectory]) -> float:
    """Mean edit distance between the action sequences of two episodes, over the longer one: 0 for the same, 1 for nothing in
    common; nan of fewer than two episodes."""
    actions = [[step.action for step in t.steps] for t in group]
    return mean(_edit_distance(one, other) / max(len(one), len(other), 1)
                for index, one in enumerate(actions) for other in actions[:index])


def wilson(successes: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson score interval of a success rate (Wilson 1927), 95 % by default.

        (p + z^2/2n  -+  z sqrt(p (1 - p) / n + z^2/4n^2)) / (1 + z^2/n)

    Unlike p -+ z sqrt(p (1 - p) / n) it stays inside [0, 1] and has a width at p = 0 and p = 1.

    Returns: (low, high); both nan where count is 0.
    """
    if count == 0:
        return math.nan, math.nan
    p = successes / count
    centre = p + z * z / (2 * count)
    half = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return max(0.0, (centre - half) / (1 + z * z / count)), min(1.0, (centre + half) / (1 + z * z / count))


def _edit_distance(one, other):
    """Fewest insertions, deletions and replacements that make one sequence the other (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        above, row[0] = row[0], i
        for j, right in enumerate(other, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (left != right))
    return row[-1]


def _by_type(trajectories: Sequence[types.Trajectory], task_types: Sequence[str]) -> dict[str, float]:
    unknown = sorted({t.task_type for t in trajectories} - set(task_types))
    if unknown:
        raise ValueError(f"task types {unknown} are not among {list(task_types)}; list every type that can be played.")
    answer = {}
    for name in task_types:
        successes = [t.success for t in trajectories if t.task_type == name]
        answer |= {f"success/{name}": mean(successes), f"count/{name}": len(successes)}
    return answer


def _terminations(trajectories: Sequence[types.Trajectory]) -> dict[str, int]:
    reasons = collections.Counter(t.termination.split(":")[0] for t in trajectories)
    unknown = sorted(set(reasons) - set(TERMINATIONS))
    if unknown:
        raise ValueError(f"termination {unknown[0]!r} is none of {', '.join(TERMINATIONS[:-1])} and 'error: <kind>'.")
    errors = collections.Counter(
        t.termination.partition(":")[2].strip() for t in trajectories if t.termination.startswith("error")
    )
    return {f"termination/{reason}": reasons[reason] for reason in TERMINATIONS} | {
        f"errors/{kind}": number for kind, number in sorted(errors.items())
    }
