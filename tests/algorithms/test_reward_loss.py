"""V18: the regression PRM of RSPO."""

import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax.algorithms import reward_loss

MLP = jnp.array([[0.2, -0.1, 0.5], [1, 7, -7], [-0.3, -0.4, 9]])  # garbage on padding
MASK = jnp.array([[1, 1, 1], [1, 0, 0], [1, 1, 0]], bool)
OUTCOME = jnp.array([1.0, 0, 1])


def test_v18_regression():
    rewards = jnp.tanh(MLP)
    np.testing.assert_allclose(rewards[0], [0.197375, -0.099668, 0.462117], rtol=1e-5)
    np.testing.assert_allclose(reward_loss.predicted_return(rewards, MASK), [0.559824, 0.761594, -0.671262], rtol=1e-5)
    np.testing.assert_allclose(reward_loss.regression(rewards, MASK, OUTCOME).mean(), 1.18897, rtol=1e-5)


def test_v18_gradient():
    gradient = jax.grad(lambda x: reward_loss.regression(jnp.tanh(x), MASK, OUTCOME).mean())(MLP)
    expected = [[-0.282018, -0.290535, -0.230783], [0.213233, 0, 0], [-1.01962, -0.953331, 0]]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_an_episode_without_steps_predicts_zero():
    np.testing.assert_array_equal(reward_loss.predicted_return(jnp.full((1, 2), jnp.nan), jnp.zeros((1, 2), bool)), [0.0])
