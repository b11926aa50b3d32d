"""V15 and V15b, worked by hand: iStar's step advantages, their gate, and the ablation arms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rspo_jax.algorithms import advantages_istar, spans

compare = jax.jit(advantages_istar.step_advantage, static_argnums=(3, 4))

# Group 0 has steps 2, 1, 3 with these rewards; group 1 is one trajectory of two steps.
NAN = np.nan
REWARDS = np.array([[0.2, 0.1, NAN], [0.1, NAN, NAN], [-0.2, 0, 0.1], [0.3, 0.1, NAN]])
MASK = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]], bool)
GROUP = np.array([0, 0, 0, 1])


def step_advantage(form, baseline, rewards=REWARDS):
    return compare(rewards, MASK, GROUP, form, baseline)


def test_v15_all_steps_of_the_group():
    # Group 0: mean 0.05, deviations 0.15, 0.05 | 0.05 | -0.25, -0.05, 0.05, sum of squares 0.095, std sqrt(0.019).
    deviation = np.array([[0.15, 0.05, 0], [0.05, 0, 0], [-0.25, -0.05, 0.05], [0.1, -0.1, 0]])
    np.testing.assert_allclose(step_advantage("centered", "group"), deviation, rtol=1e-5)
    std = np.sqrt([[0.019], [0.019], [0.019], [0.02]])
    np.testing.assert_allclose(step_advantage("z_score", "group"), deviation / (std + 1e-6), rtol=1e-5)
    scale = np.array([[6 / 5], [6 / 5], [6 / 5], [2]])
    np.testing.assert_allclose(step_advantage("leave_one_out", "group"), deviation * scale, rtol=1e-5)


def test_v15_first_row_baseline_of_the_released_code():
    # First steps 0.2, 0.1, -0.2: mean 1/30, K = 3, so 1.5 (r - 1/30). One trajectory has nothing to compare with.
    expected = [[0.25, 0.1, 0], [0.1, 0, 0], [-0.35, -0.05, 0.1], [0, 0, 0]]
    np.testing.assert_allclose(step_advantage("leave_one_out", "first_row"), expected, rtol=1e-5)


def test_first_row_z_score_over_equal_first_steps_is_zero():
    rewards = np.array([[0.2, 0.1, NAN], [0.2, NAN, NAN], [0.2, 0, 0.1], [0.3, 0.1, NAN]])
    np.testing.assert_array_equal(step_advantage("z_score", "first_row", rewards), 0.0)
    # Without the division the other steps still compare: 1.5 (r - 0.2).
    expected = [[0, -0.15, 0], [0, 0, 0], [0, -0.3, -0.15], [0, 0, 0]]
    np.testing.assert_allclose(step_advantage("leave_one_out", "first_row", rewards), expected, rtol=1e-5)


def test_merged_arm_is_one_leave_one_out_of_outcome_and_reward():
    # 1 + r | 0 + r: first rows 1.2, 0.1, -0.2, mean 11/30; 1.5 (x - 11/30).
    scores = np.array([[1.0], [0], [0], [1]]) + 1.0 * REWARDS
    expected = [[1.25, 1.1, 0], [-0.4, 0, 0], [-0.85, -0.55, -0.4], [0, 0, 0]]
    np.testing.assert_allclose(step_advantage("leave_one_out", "first_row", scores), expected, rtol=1e-5)


def test_token_level_arm_compares_tokens():
    # Three rows of one trajectory each; token rewards 1, 2 | 3 | 6 in one group of K = 4, mean 3: 4/3 (x - 3).
    rewards = np.array([[1.0, 2], [NAN, 3], [6, NAN]])
    mask = np.array([[1, 1], [0, 1], [1, 0]], bool)
    trajectory, group = np.array([0, 1, 2]), np.array([0, 0, 0])
    out = compare(rewards, mask, group[trajectory], "leave_one_out", "group")
    np.testing.assert_allclose(out, [[-8 / 3, -4 / 3], [0, 0], [4, 0]], rtol=1e-6)


def test_step_rewards_are_sums_over_the_step_and_0_for_equal_models():
    layout = spans.Layout(np.array([[1, 0, 1, 1]], bool), np.array([0]), np.array([[0, 0, 1, 1]]))
    prm, old = np.array([[-1.0, NAN, -2, -3]]), np.array([[-1.5, 8, -2, -2]])
    np.testing.assert_allclose(advantages_istar.step_rewards(prm, old, layout, 0.05, (1, 3)), [[0.025, -0.05, 0]], rtol=1e-6)
    np.testing.assert_array_equal(advantages_istar.token_rewards(old, old, layout.action_mask, 0.05), 0.0)


def test_divide_by_largest():
    out = advantages_istar.divide_by_largest(REWARDS, MASK)  # the largest is 0.3
    np.testing.assert_allclose(out, np.where(MASK, np.nan_to_num(REWARDS), 0) / 0.300001, rtol=1e-6)
    np.testing.assert_array_equal(advantages_istar.divide_by_largest(np.zeros((1, 3)), np.ones((1, 3), bool)), 0.0)


def test_v15b_noise_of_an_untrained_prm_is_held_back():
    noise = REWARDS * 1e-4  # as large as bfloat16 rounding makes it
    step = step_advantage("z_score", "group", noise)
    assert np.abs(step).max() > 1  # what the gate is for
    episode = jnp.where(MASK, 0.5, 0.0)
    np.testing.assert_array_equal(advantages_istar.combine(episode, step, 1.0, np.array(0)), episode)
    np.testing.assert_array_equal(advantages_istar.combine(episode, step * np.nan, 1.0, np.array(0)), episode)
    np.testing.assert_allclose(advantages_istar.combine(episode, step, 0.5, np.array(1)), episode + 0.5 * step)


def test_identity_5_alpha_0_is_the_base_estimator():
    episode = jnp.where(MASK, 0.5, 0.0)
    np.testing.assert_array_equal(advantages_istar.combine(episode, step_advantage("z_score", "group"), 0.0, 3), episode)


def test_unknown_options_are_named():
    with pytest.raises(ValueError, match="config.istar.baseline='last'"):
        step_advantage("z_score", "last")
    with pytest.raises(ValueError, match="config.advantage_form='std'"):
        step_advantage("std", "group")
