"""V02, V03, V05 of the specification and V04, worked by hand: the three layouts of PPO's advantages."""

import jax
import numpy as np
import pytest

from rspo_jax.algorithms import advantages, advantages_gae, masking, spans

token_gae, turn_gae = jax.jit(advantages_gae.tokens), jax.jit(advantages_gae.turns)
whiten, at_last_tokens = jax.jit(masking.whiten), jax.jit(spans.at_last_tokens)

V02_REWARDS = np.array([[0, 0, 1, 0], [0, 0.5, 0, 0]])
V02_VALUES = np.array([[0.1, 0.2, 0.3, np.nan], [0.5, 0.4, -50, 7]])
V02_MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
V02 = {
    (1.0, 1.0): ([[0.9, 0.8, 0.7, 0], [0, 0.1, 0, 0]], [[1, 1, 1, 0], [0.5, 0.5, 0, 0]],
                 [[0.956183, 0.717137, 0.478091, 0], [-1.19523, -0.956183, 0, 0]]),
    (0.99, 0.95): ([[0.808407, 0.75535, 0.7, 0], [-0.00995, 0.1, 0, 0]], [[0.908407, 0.95535, 1, 0], [0.49005, 0.5, 0, 0]],
                   [[0.860335, 0.725144, 0.58411, 0], [-1.22487, -0.944716, 0, 0]]),
    (0.9, 0.0): ([[0.08, 0.07, 0.7, 0], [-0.14, 0.1, 0, 0]], [[0.18, 0.27, 1, 0], [0.36, 0.5, 0, 0]],
                 [[-0.259411, -0.291046, 1.70199, 0], [-0.95539, -0.19614, 0, 0]]),
}


@pytest.mark.parametrize("gamma, lambda_", V02)
def test_v02_padding_does_not_leak(gamma, lambda_):
    advantage, returns = token_gae(V02_REWARDS, V02_VALUES, spans.row_local(V02_MASK), gamma, lambda_)
    expected, expected_returns, whitened = V02[gamma, lambda_]
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(returns, expected_returns, rtol=1e-5)
    np.testing.assert_allclose(whiten(advantage, V02_MASK), whitened, rtol=1e-5, atol=1e-7)


def test_v03_observation_tokens_are_skipped():
    mask = np.array([[1, 1, 0, 0, 1, 1]], bool)
    layout = spans.Layout(mask, np.zeros(1, int), np.array([[0, 0, 0, 0, 1, 1]]))
    rewards, values = np.array([[0, 0, 0, 0, 0, 1.0]]), np.array([[0.2, 0.3, 9, 9, 0.5, 0.6]])
    advantage, returns = token_gae(rewards, values, layout, 0.9, 0.8)
    np.testing.assert_allclose(advantage, [[0.348035, 0.38616, 0, 0, 0.328, 0.4]], rtol=2e-6)
    np.testing.assert_allclose(returns, [[0.548035, 0.68616, 0, 0, 0.828, 1]], rtol=2e-6)


def test_v03_in_one_row_a_step():
    # The same two steps as rows, the later one first: whole-trajectory GAE joins them, row-local GAE does not.
    mask = np.array([[0, 1, 1], [1, 1, 0]], bool)
    rewards, values = np.array([[0, 0, 1.0], [0, 0, 0]]), np.array([[9, 0.5, 0.6], [0.2, 0.3, 9]])
    layout = spans.Layout(mask, np.zeros(2, int), np.array([[1, 1, 1], [0, 0, 0]]))
    joined, _ = token_gae(rewards, values, layout, 0.9, 0.8)
    np.testing.assert_allclose(joined, [[0, 0.328, 0.4], [0.348035, 0.38616, 0]], rtol=2e-6)
    # Alone, row 1 sees delta = 0.9 * 0.3 - 0.2 = 0.07 and -0.3:  A = 0.07 - 0.72 * 0.3 = -0.146.
    apart, _ = token_gae(rewards, values, spans.row_local(mask), 0.9, 0.8)
    np.testing.assert_allclose(apart, [[0, 0.328, 0.4], [-0.146, -0.3, 0]], rtol=2e-6)


def test_v05_step_rows_of_the_public_ppo():
    mask = np.arange(3) < np.array([3, 2, 1])[:, None]
    scores = advantages.step_scores(np.array([10.0, 10, 0]), np.array([[0], [1], [0]], bool), 0.1)
    layout = spans.row_local(mask)
    rewards = at_last_tokens(scores, layout)
    np.testing.assert_allclose(rewards, [[0, 0, 10], [0, 9.9, 0], [0, 0, 0]])
    values = np.array([[1.0, 2, 3], [4, 5, 0], [6, 0, 0]])
    advantage, returns = token_gae(rewards, values, layout, 1.0, 1.0)
    np.testing.assert_allclose(advantage, [[9, 8, 7], [5.9, 4.9, 0], [-6, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(returns, [[10, 10, 10], [9.9, 9.9, 0], [0, 0, 0]], rtol=1e-6)
    expected = [[0.765333, 0.583111, 0.400889], [0.200444, 0.0182222, 0], [-1.968, 0, 0]]
    np.testing.assert_allclose(whiten(advantage, mask), expected, rtol=1e-5)


# V04: gamma 0.9, lambda 0.5, so 0.45 from step to step. The third step of the second episode does not exist.
V04_REWARDS = np.array([[0, 0, 1], [0, 0, np.nan]])
V04_VALUES = np.array([[0.5, 0.4, 0.6], [0.2, 0.3, 9]])
V04_MASK = np.array([[1, 1, 1], [1, 1, 0]], bool)
V04_FINAL = np.array([7.0, 1.0])


def test_v04_turns_with_a_true_end_and_a_truncation():
    advantage, returns = turn_gae(V04_REWARDS, V04_VALUES, V04_MASK, V04_FINAL, np.array([False, True]), 0.9, 0.5)
    # Ended: delta = 0.36 - 0.5, 0.54 - 0.4, 1 - 0.6 = -0.14, 0.14, 0.4;  A_1 = 0.14 + 0.45 * 0.4, A_0 = -0.14 + 0.45 * 0.32.
    # Cut off in a state of value 1: delta = 0.27 - 0.2, 0.9 - 0.3 = 0.07, 0.6;  A_0 = 0.07 + 0.45 * 0.6.
    np.testing.assert_allclose(advantage, [[0.004, 0.32, 0.4], [0.34, 0.6, 0]], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(returns, [[0.504, 0.72, 1.0], [0.54, 0.9, 0]], rtol=1e-6)


def test_v04_the_cap_as_an_end():
    advantage, _ = turn_gae(V04_REWARDS, V04_VALUES, V04_MASK, V04_FINAL, np.array([False, False]), 0.9, 0.5)
    # The second episode: delta = 0.07, -0.3;  A_0 = 0.07 - 0.45 * 0.3.
    np.testing.assert_allclose(advantage[1], [-0.065, -0.3, 0], rtol=1e-5)


def test_the_last_step_of_a_full_row_is_not_joined_to_the_next_row():
    # Both rows are full: what follows the last entry of row 0 in memory is the first of row 1.
    layout = spans.row_local(np.ones((2, 2), bool))
    advantage, _ = token_gae(np.zeros((2, 2)), np.array([[0, 0], [5.0, 5]]), layout, 1.0, 1.0)
    np.testing.assert_array_equal(advantage, [[0, 0], [-5, -5]])


def test_the_last_token_of_all_is_not_joined_to_the_first():
    advantage, _ = token_gae(np.zeros((1, 2)), np.array([[3.0, 5]]), spans.row_local(np.ones((1, 2), bool)), 1.0, 0.0)
    np.testing.assert_array_equal(advantage, [[2, -5]])
