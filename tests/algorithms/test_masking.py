"""V01: masked mean, variance and whitening."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rspo_jax.algorithms import masking

variance, whiten = jax.jit(masking.variance), jax.jit(masking.whiten)

VALUES = np.array([[1, 2, 3, np.nan], [-1, 0, np.inf, 7]])
MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)


def test_v01_masked_statistics():
    np.testing.assert_allclose(masking.mean(VALUES, MASK), 1.0)
    np.testing.assert_allclose(variance(VALUES, MASK), 2.5)
    expected = [[0, 0.632456, 1.26491, 0], [-1.26491, -0.632456, 0, 0]]
    np.testing.assert_allclose(whiten(VALUES, MASK), expected, rtol=5e-6, atol=1e-8)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_entries_have_no_spread(count):
    mask = np.arange(3) < count
    values = jnp.where(mask, 9.9, np.nan)
    np.testing.assert_array_equal(variance(values, mask), 0.0)
    np.testing.assert_array_equal(whiten(values, mask), 0.0)


@pytest.mark.parametrize("size", [8, 94, 128])
def test_equal_entries_whiten_to_exactly_zero(size):
    np.testing.assert_array_equal(whiten(np.full(128, 9.9), np.arange(128) < size), 0.0)


def test_variance_of_large_values_with_a_small_spread():
    # 10000 + (-1, 0, 1): a one-pass float32 variance, E[x^2] - E[x]^2, would be 0 or 8.
    np.testing.assert_allclose(variance(np.array([9999.0, 10000, 10001]), np.ones(3, bool)), 1.0)
