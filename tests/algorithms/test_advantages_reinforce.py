"""V08: REINFORCE++ and its baseline form."""

import jax
import numpy as np
import pytest

from rspo_jax.algorithms import advantages, advantages_reinforce, spans

reinforce_pp, whitened_baseline = jax.jit(advantages_reinforce.reinforce_pp), jax.jit(advantages_reinforce.whitened_baseline)
discounted_sum, at_last_tokens = jax.jit(spans.discounted_sum), jax.jit(spans.at_last_tokens)

REWARDS = np.array([[0, 0, 1], [0, -1, np.nan], [0.5, 0, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]], bool)
V08 = {
    1.0: ([[1, 1, 1], [-1, -1, 0], [0.5, 0, 0]], [[0.759555, 0.759555, 0.759555], [-1.26592, -1.26592, 0], [0.253185, 0, 0]]),
    0.9: ([[0.81, 0.9, 1], [-0.9, -1, 0], [0.5, 0, 0]],
          [[0.642503, 0.740235, 0.848827], [-1.21442, -1.32301, 0], [0.305867, 0, 0]]),
}


@pytest.mark.parametrize("gamma", V08)
def test_v08_token_returns(gamma):
    returns, expected = V08[gamma]
    layout = spans.row_local(MASK)
    np.testing.assert_allclose(discounted_sum(REWARDS, layout, gamma), returns, rtol=1e-6)
    np.testing.assert_allclose(reinforce_pp(REWARDS, layout, gamma), expected, rtol=5e-6)


def test_v08_baseline():
    mask = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 0]], bool)
    scores, group = np.array([1.0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 2])
    group_centered = jax.jit(advantages.group_centered, static_argnums=(4, 5))
    centered = group_centered(scores[:, None], scores, np.ones((5, 1), bool), group, "trajectory", "raw")
    np.testing.assert_allclose(centered[:, 0], [0.5, -0.5, 0, 0, 1])
    a, b, c, d = 0.486562, -1.65431, -0.583874, 1.557
    expected = [[a, a, a], [b, 0, 0], [c, c, 0], [c, c, c], [d, d, 0]]
    out = whitened_baseline(centered, spans.row_local(mask))
    np.testing.assert_allclose(out, expected, rtol=5e-6)


def test_returns_pass_through_observations():
    # A reset at the masked token, as in the public code, would leave the first two tokens without return.
    mask = np.array([[1, 1, 0, 1]], bool)
    layout = spans.row_local(mask)
    np.testing.assert_allclose(discounted_sum(np.array([[0, 0, 7.0, 1]]), layout, 0.5), [[0.25, 0.5, 0, 1]])


def test_equal_returns_give_exactly_zero():
    rewards = at_last_tokens(np.full((3, 1), 9.9), spans.row_local(MASK))
    np.testing.assert_array_equal(reinforce_pp(rewards, spans.row_local(MASK), 1.0), 0.0)
