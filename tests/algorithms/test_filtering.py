"""V13 and V13b, worked by hand: overlong penalty, dynamic sampling, and the filters of PRIME and SPEAR."""

import jax
import numpy as np
import pytest

from rspo_jax.algorithms import filtering

mixed_groups, groups_between, widest_groups = (
    jax.jit(f) for f in (filtering.mixed_groups, filtering.groups_between, filtering.widest_groups))

# Groups 0: mixed, 1: all succeed, 2: all fail, 3: one member, 4: mixed only through a trajectory that does not count.
RETURNS = np.array([1, 0, 0, 0, 1, 1, 0, 0, 1, 0, np.nan])
GROUP = np.array([0, 0, 0, 0, 1, 1, 2, 2, 3, 4, 4])
MASK = np.arange(11) < 10


def test_v13_overlong_penalty():
    # Cap 100, buffer 20: free up to 80, then 1/20 a token; beyond the cap it goes on growing.
    lengths = np.array([0, 80, 81, 90, 100, 120])
    np.testing.assert_allclose(filtering.overlong_penalty(lengths, 100, 20, 1.0), [0, 0, -0.05, -0.5, -1, -2])
    np.testing.assert_allclose(filtering.overlong_penalty(lengths, 100, 20, 2.0), [0, 0, -0.1, -1, -2, -4])


def test_a_buffer_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match="config.advantage.overlong.buffer=200"):
        filtering.overlong_penalty(np.array([1]), 100, 200, 1.0)


def test_v13b_only_mixed_groups_stay():
    np.testing.assert_array_equal(mixed_groups(RETURNS, GROUP, MASK), [True] * 4 + [False] * 7)


def test_equal_unrepresentable_returns_are_not_mixed():
    assert not mixed_groups(np.full(94, 9.9), np.zeros(94, int), np.ones(94, bool)).any()


def test_groups_between_bounds_keeps_both_ends():
    # Means 0.25, 1, 0, 1, 0.
    np.testing.assert_array_equal(groups_between(RETURNS, GROUP, MASK, 0.25, 0.8), [True] * 4 + [False] * 7)
    np.testing.assert_array_equal(groups_between(RETURNS, GROUP, MASK, 0.3, 1.0), GROUP % 2 == 1)


def test_widest_groups():
    # Standard deviations of four groups of two: 0, 0.35, 0.71, 0.14.
    returns, group = np.array([1, 1, 0, 0.5, 0, 1, 0.5, 0.7]), np.repeat(np.arange(4), 2)
    mask = np.ones(8, bool)
    for fraction, kept in ((0.75, [1, 2, 3]), (0.5, [1, 2]), (0.49, [2]), (0.0, [2]), (1.0, [0, 1, 2, 3])):
        np.testing.assert_array_equal(widest_groups(returns, group, mask, fraction), np.isin(group, kept))
