"""Counts of log-ratios by bin, and the quantiles that come out of them."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from rspo_jax.updates import histogram


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.1, 5.0])
def test_quantiles_are_within_half_a_bin(scale):
    values = np.random.default_rng(0).normal(size=(40, 50)).astype(np.float32) * scale
    mask = np.random.default_rng(1).random(values.shape) < 0.7
    counted = histogram.counts(jnp.asarray(np.where(mask, values, np.nan)), jnp.asarray(mask))
    assert counted.shape == (histogram.BINS,) and int(counted.sum()) == mask.sum()
    for share in (0.01, 0.5, 0.95, 0.99, 1.0):
        expected = np.quantile(values[mask], share, method="inverted_cdf")
        np.testing.assert_allclose(histogram.quantile(counted, share), expected, rtol=0.06, atol=6e-6)


def test_counts_add_up_and_zero_stays_zero():
    values, mask = jnp.array([[0.0, 0.0, 0.0, 1.0]]), jnp.ones((1, 4), bool)
    twice = histogram.counts(values, mask) + histogram.counts(values, mask)
    assert histogram.quantile(twice, 0.75) == 0.0
    np.testing.assert_allclose(histogram.quantile(twice, 0.76), 1.0, rtol=0.06)


def test_the_ends_and_nothing_at_all():
    ends = histogram.counts(jnp.array([[-100.0, 20.0, 100.0]]), jnp.ones((1, 3), bool))
    assert (int(ends[0]), int(ends[-1])) == (1, 2)
    np.testing.assert_allclose(histogram.quantile(ends, 1.0), 20.0, rtol=0.06)
    assert math.isnan(histogram.quantile(histogram.counts(jnp.ones((1, 2)), jnp.zeros((1, 2), bool)), 0.5))
