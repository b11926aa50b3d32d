"""V17b: order of the harvest, and what is not worth a slot."""

import types as python_types

import numpy as np
import pytest

from rspo_jax.rollout import replay

OUTCOME = np.array([1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1], float)
GROUP = np.repeat(np.arange(4), 4)
ADVANTAGE = np.array([0.866024, -0.866024, -0.866024, 0.866024, *[0.0] * 8, -0.499999, -0.499999, -0.499999, 1.5])


class Unshuffled:
    """A generator whose permutation is the identity, so that random ties are in the vector's order."""

    def permutation(self, size):
        return np.arange(size)


def test_v17b_reward_then_advantage():
    order = replay.rank(OUTCOME, ADVANTAGE, GROUP, "reward", Unshuffled())
    expected = [15, 0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 1, 2]
    np.testing.assert_array_equal(order, expected)


def items():
    made = []
    for outcome, advantage, group in zip(OUTCOME, ADVANTAGE, GROUP, strict=True):
        trajectory = python_types.SimpleNamespace(outcome=outcome, success=outcome == 1, group=group)
        made.append(replay.Item(trajectory, np.full(2, advantage)))
    return made


def test_groups_that_teach_nothing_are_left_out():
    drawn = replay.order(items(), "reward", np.random.default_rng(0))
    assert [item.trajectory.success for item in drawn] == [True] * 3 + [False] * 5
    assert drawn[0].advantage[0] == 1.5 and {item.trajectory.group for item in drawn} == {0, 3}


def test_a_harvest_without_success_gives_nothing():
    failures = [item for item in items() if not item.trajectory.success]
    assert replay.order(failures, "reward", np.random.default_rng(0)) == []


def test_ties_are_random():
    firsts = {replay.rank(OUTCOME, np.zeros(16), GROUP, "reward", np.random.default_rng(seed))[0] for seed in range(40)}
    assert firsts == set(np.flatnonzero(OUTCOME == 1))


def test_variance_puts_the_mixed_groups_first():
    order = replay.rank(OUTCOME, ADVANTAGE, GROUP, "variance", np.random.default_rng(0))
    # Variances: 1/4, 0, 0, 3/16.
    assert set(order[:4]) == set(range(4)) and order[4] == 15


def test_proportional_draws_successes_before_failures():
    order = replay.rank(OUTCOME, ADVANTAGE, GROUP, "proportional", np.random.default_rng(0))
    assert set(order[:7]) == set(np.flatnonzero(OUTCOME == 1))


def test_unknown_strategy_is_named():
    with pytest.raises(ValueError, match="config.rspo.replay='best'"):
        replay.rank(OUTCOME, ADVANTAGE, GROUP, "best", np.random.default_rng(0))
