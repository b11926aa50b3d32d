"""V14: PRIME's cross-entropy and its combination of process and outcome."""

import jax
import numpy as np
import pytest

from rspo_jax.algorithms import advantages, advantages_prime, advantages_reinforce, reward_loss, spans

process_leave_one_out = jax.jit(advantages_prime.leave_one_out, static_argnums=3)
divide_by_largest_return = jax.jit(advantages_prime.divide_by_largest_return)

Q = np.array([[2, -1, 3, 99], [0, 1, 99, 99], [-2, -2, -1, -1], [1, 99, 99, 99.0]])
MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]], bool)
OUTCOME = np.array([1.0, 1, 0, 0])
GROUP = np.zeros(4, int)
LAYOUT = spans.row_local(MASK)
NORMED = [[0.333332, -0.166666, 0.499998, 0], [0, 0.166666, 0, 0], [-0.333332, -0.333332, -0.166666, -0.166666],
          [0.166666, 0, 0, 0]]
PROCESS = {
    "code": [[0.370369, -0.296295, 0.592591, 0], [-0.0740738, 0.148148, 0, 0], [-0.518517, -0.518517, -0.296295, -0.296295],
             [0.148148, 0, 0, 0]],
    "paper": [[0.333332, -0.166666, 0.499998, 0], [-0.0462961, 0.12037, 0, 0], [-0.490739, -0.490739, -0.324073, -0.324073],
              [0.148148, 0, 0, 0]],
}


def cross_entropy(q):
    return reward_loss.cross_entropy(reward_loss.predicted_return(0.05 * q, MASK), OUTCOME > 0)


def test_v14_cross_entropy():
    logits = reward_loss.predicted_return(0.05 * Q, MASK)
    np.testing.assert_allclose(logits, [0.2, 0.05, -0.3, 0.05], rtol=1e-6)
    np.testing.assert_allclose(cross_entropy(Q), [0.598139, 0.66846, 0.554355, 0.71846], rtol=2e-6)
    np.testing.assert_allclose(cross_entropy(Q).mean(), 0.634853, rtol=1e-6)
    a, b, c, d = -0.00562708, -0.00609378, 0.00531947, 0.00640622
    gradient = [[a, a, a, 0], [b, b, 0, 0], [c, c, c, c], [d, 0, 0, 0]]
    np.testing.assert_allclose(jax.grad(lambda q: cross_entropy(q).mean())(Q), gradient, rtol=2e-6)
    # In two passes: dL/dz of each trajectory, times dz/dq = 0.05.
    weights = reward_loss.cross_entropy_weights(logits, OUTCOME > 0) * 0.05 / 4
    np.testing.assert_allclose(np.where(MASK, weights[:, None], 0), gradient, rtol=2e-6)


@pytest.mark.parametrize("source", advantages_prime.SOURCES)
def test_v14_process_leave_one_out(source):
    normed = divide_by_largest_return(0.05 * Q, LAYOUT)
    np.testing.assert_allclose(normed, NORMED, rtol=3e-6)
    np.testing.assert_allclose(process_leave_one_out(normed, LAYOUT, GROUP, source), PROCESS[source], rtol=1e-5)


def test_v14_advantage():
    leave_one_out = jax.jit(advantages.leave_one_out, static_argnums=(4, 5))
    outcome = leave_one_out(OUTCOME[:, None], OUTCOME, np.ones((4, 1), bool), GROUP, "trajectory", "zero")
    outcome = jax.jit(spans.at_last_tokens)(outcome, LAYOUT)
    np.testing.assert_allclose(outcome, [[0, 0, 2 / 3, 0], [0, 2 / 3, 0, 0], [0, 0, 0, -2 / 3], [-2 / 3, 0, 0, 0]], rtol=1e-6)
    normed = divide_by_largest_return(0.05 * Q, LAYOUT)
    rewards = 5 * process_leave_one_out(normed, LAYOUT, GROUP, "code") + 5 * outcome
    returns = [[6.66666, 4.81481, 6.29629, 0], [3.7037, 4.07407, 0, 0], [-11.4815, -8.88887, -6.29629, -4.81481],
               [-2.5926, 0, 0, 0]]
    np.testing.assert_allclose(jax.jit(spans.discounted_sum)(rewards, LAYOUT, 1.0), returns, rtol=5e-6)
    expected = [[1.11297, 0.838841, 1.05815, 0], [0.674363, 0.729189, 0, 0], [-1.57351, -1.18973, -0.805945, -0.586641],
                [-0.257684, 0, 0, 0]]
    np.testing.assert_allclose(jax.jit(advantages_reinforce.reinforce_pp)(rewards, LAYOUT, 1.0), expected, rtol=5e-6)


def test_two_rows_of_one_trajectory_share_its_mean():
    # Trajectory 0 has the tokens 1, 2 | 3 in two rows, mean 2; trajectory 1 has 4. Paper form, K = 2: r - the other mean.
    layout = spans.Layout(np.array([[1, 1], [1, 0], [1, 0]], bool), np.array([0, 0, 1]), np.array([[0, 0], [1, 0], [0, 0]]))
    rewards = np.array([[1.0, 2], [3, np.nan], [4, np.nan]])
    out = process_leave_one_out(rewards, layout, np.zeros(2, int), "paper")
    np.testing.assert_allclose(out, [[-3, -2], [-1, 0], [2, 0]])
    # Code form: r 2 / 1 - (2 + 4) / 1.
    out = process_leave_one_out(rewards, layout, np.zeros(2, int), "code")
    np.testing.assert_allclose(out, [[-4, -2], [0, 0], [2, 0]])


@pytest.mark.parametrize("source", advantages_prime.SOURCES)
def test_a_group_of_one_gets_zero(source):
    np.testing.assert_array_equal(process_leave_one_out(Q, LAYOUT, np.arange(4), source), 0.0)


def test_unknown_source_is_named():
    with pytest.raises(ValueError, match="config.prime.source='blog'"):
        process_leave_one_out(Q, LAYOUT, GROUP, "blog")
