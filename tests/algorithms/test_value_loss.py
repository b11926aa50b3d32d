"""V06: the clipped value loss."""

import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax.algorithms import masking, value_loss

VALUES = np.array([[1.0, 2, 0], [0, 3, 5]])
RETURNS = np.array([[2.0, 2, 0], [1, 0, 0]])
OLD = np.array([[0.2, 1.9, 0], [0, 2, 0]])
MASK = np.array([[1, 1, 0], [1, 1, 0]], bool)


def test_v06_with_and_without_the_half():
    for factor, expected in ((1.0, 2.9225), (0.5, 1.46125)):
        loss = masking.mean(value_loss.clipped(VALUES, OLD, RETURNS, 0.5, factor), MASK)
        np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(masking.mean(value_loss.is_clipped(VALUES, OLD, RETURNS, 0.5), MASK), 0.25)


def test_gradient_stops_where_the_clipped_loss_counts():
    # Token (0, 0) has moved from 0.2 to 1, towards its return 2, by more than 0.5. The others: 2 (v - R).
    gradient = jax.grad(lambda v: jnp.sum(jnp.where(MASK, value_loss.clipped(v, OLD, RETURNS, 0.5, 1.0), 0.0)))(VALUES)
    np.testing.assert_allclose(gradient, [[0, 0, 0], [-2, 6, 0]])


def test_a_value_that_runs_away_from_its_return_is_not_held():
    # From 0 to 1 while the return is -1: the unclipped loss 4 is larger than the clipped 2.25, and pulls back.
    np.testing.assert_allclose(value_loss.clipped(np.array(1.0), np.array(0.0), np.array(-1.0), 0.5, 1.0), 4.0)
