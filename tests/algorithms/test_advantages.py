"""V07, V07c, V17b, V17c and the edge cases of group-relative advantages. Vectors are those of the specification."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rspo_jax.algorithms import advantages

group_relative, group_centered, leave_one_out = (
    jax.jit(f, static_argnums=(4, 5)) for f in (advantages.group_relative, advantages.group_centered, advantages.leave_one_out))
process = jax.jit(advantages.process)

# V07: trajectories a0..a3 (group 0), b0..b2 (group 1), c0 (group 2), with 2, 1, 3, 2, 2, 1, 1, 2 steps.
RETURNS = np.array([10, 0, 0, 10, 0, 0, 0, 10], np.float32)
GROUP = np.array([0, 0, 0, 0, 1, 1, 1, 2])
STEPS = [2, 1, 3, 2, 2, 1, 1, 2]
STEP_MASK = np.arange(3) < np.array(STEPS)[:, None]
INVALID = np.zeros((8, 3), bool)
INVALID[0, 1] = INVALID[2, 2] = True


def relative(penalty=0.0, statistics="trajectory", singleton="raw", estimator=group_relative):
    scores = advantages.step_scores(jnp.asarray(RETURNS), jnp.asarray(INVALID), penalty)
    out = estimator(scores, jnp.asarray(RETURNS), jnp.asarray(STEP_MASK), jnp.asarray(GROUP), statistics, singleton)
    np.testing.assert_array_equal(np.asarray(out)[~STEP_MASK], 0.0)
    return np.asarray(out)[STEP_MASK]  # one number a row, in the vector's order


def test_v07_trajectory_statistics():
    a = 0.866025
    expected = [a, a, -a, -a, -a, -a, a, a, 0, 0, 0, 0, 9.99999, 9.99999]
    np.testing.assert_allclose(relative()[:12], expected[:12], rtol=2e-6)
    # A group of one: the raw score for parity (10 / (1 + 1e-6)), exactly 0 by our default.
    np.testing.assert_allclose(relative()[12:], expected[12:], rtol=2e-6)
    np.testing.assert_array_equal(relative(singleton="zero")[12:], 0.0)


def test_v07_trajectory_statistics_penalised():
    expected = [0.866025, 0.848705, -0.866025, -0.866025, -0.866025, -0.883346, 0.866025, 0.866025, 0, 0, 0, 0]
    np.testing.assert_allclose(relative(penalty=0.1)[:12], expected, rtol=2e-6)


def test_v07_step_statistics_penalised():
    expected = [0.940056, 0.921348, -0.930702, -0.930702, -0.930702, -0.94941, 0.940056, 0.940056, 0, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(relative(penalty=0.1, statistics="step"), expected, rtol=3e-6)


def test_v07_dr_grpo_and_rloo():
    centered = [5, 5, -5, -5, -5, -5, 5, 5, 0, 0, 0, 0, 10, 10]
    np.testing.assert_allclose(relative(estimator=group_centered), centered, rtol=1e-6)
    rloo = np.where(np.arange(14) < 8, np.array(centered) * 4 / 3, centered)
    np.testing.assert_allclose(relative(estimator=leave_one_out), rloo, rtol=1e-6)
    np.testing.assert_array_equal(relative(estimator=leave_one_out, singleton="zero")[12:], 0.0)


def test_v07_rloo_over_steps_penalised():
    expected = [5.74286, 5.62857, -5.68571, -5.68571, -5.68571, -5.8, 5.74286, 5.74286, 0, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(relative(0.1, "step", estimator=leave_one_out), expected, rtol=2e-6)


def test_rloo_is_the_return_less_the_mean_of_the_others():
    returns = jnp.array([0.3, 0.9, 0.0, 1.0])
    group = jnp.array([0, 0, 1, 0])
    out = leave_one_out(returns[:, None], returns, jnp.ones((4, 1), bool), group, "trajectory", "raw")
    # 0.3 - (0.9 + 1) / 2, 0.9 - (0.3 + 1) / 2, raw, 1 - (0.3 + 0.9) / 2
    np.testing.assert_allclose(out[:, 0], [-0.65, 0.25, 0.0, 0.4], rtol=1e-6)


@pytest.mark.parametrize("estimator", [group_centered, leave_one_out])
def test_equal_returns_give_exactly_zero_without_the_division_too(estimator):
    returns = jnp.full(94, 9.9)
    scores = returns[:, None] - jnp.array([0, 0.1])  # every second step penalised
    out = estimator(scores, returns, jnp.ones((94, 2), bool), jnp.zeros(94, jnp.int32), "trajectory", "zero")
    np.testing.assert_array_equal(out, 0.0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("size", [8, 94, 128])
def test_v07c_equal_returns_give_exactly_zero(size, dtype):
    returns = jnp.full(size, 9.9, dtype)
    mask = jnp.ones((size, 1), bool)
    out = group_relative(returns[:, None], returns, mask, jnp.zeros(size, jnp.int32), "trajectory", "zero")
    np.testing.assert_array_equal(out, 0.0)


def test_a_penalised_step_of_an_equal_group_gets_zero_not_a_division_by_epsilon():
    scores = jnp.array([[1.0, 0.9], [1.0, 1.0]])
    out = group_relative(scores, jnp.ones(2), jnp.ones((2, 2), bool), jnp.zeros(2, jnp.int32), "trajectory", "zero")
    np.testing.assert_array_equal(out, 0.0)


def test_v17b_harvest_advantages_use_the_full_group():
    outcomes = jnp.array([[1, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]], jnp.float32).reshape(16)
    group = jnp.repeat(jnp.arange(4), 4)
    out = group_relative(outcomes[:, None], outcomes, jnp.ones((16, 1), bool), group, "trajectory", "zero")
    expected = [[0.866024, -0.866024, -0.866024, 0.866024], [0] * 4, [0] * 4, [-0.499999, -0.499999, -0.499999, 1.5]]
    np.testing.assert_allclose(out.reshape(4, 4), expected, rtol=2e-6)


def test_process_is_the_reward_to_go_of_z_scores():
    # One group, rewards 1, 3 | 2: mean 2, sample std 1, z = -1, 1 | 0, to go = 0, 1 | 0.
    rewards = jnp.array([[1.0, 3.0], [2.0, jnp.nan]])
    mask = jnp.array([[True, True], [True, False]])
    out = process(rewards, mask, jnp.zeros(2, jnp.int32))
    np.testing.assert_allclose(out, [[0.0, 1.0], [0.0, 0.0]], atol=3e-6)


def test_v17c_process_returns_of_two_groups():
    # Group 0: rewards 1, 3 | 2 as above. Group 1: 0, 1, 2 | 1, mean 1, std sqrt(2 / 3), z = -a, 0, a | 0, to go 0, a, a | 0.
    rewards = jnp.array([[1, 3, jnp.nan], [0, 1, 2], [2, 9, 9], [1, -9, -9]])
    mask = jnp.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 0, 0]], bool)
    a = np.sqrt(1.5)
    out = process(rewards, mask, jnp.array([0, 1, 0, 1]))
    np.testing.assert_allclose(out, [[0, 1, 0], [0, a, a], [0, 0, 0], [0, 0, 0]], rtol=2e-6, atol=1e-6)


def test_process_of_equal_rewards_is_zero():
    out = process(jnp.full((3, 5), 0.1), jnp.ones((3, 5), bool), jnp.zeros(3, jnp.int32))
    np.testing.assert_array_equal(out, 0.0)


@pytest.mark.parametrize("statistics", advantages.STATISTICS)
def test_order_and_padding_change_nothing(statistics):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(8, 3)).astype(np.float32)
    returns = scores.mean(axis=1)

    def call(scores, returns, mask, group):
        return np.asarray(group_relative(scores, returns, mask, group, statistics, "zero"))

    base = call(scores, returns, STEP_MASK, GROUP)
    order = rng.permutation(8)
    np.testing.assert_allclose(call(scores[order], returns[order], STEP_MASK[order], GROUP[order]), base[order], atol=1e-6)
    # Garbage rows of another group and garbage steps.
    wide = np.full((10, 5), np.nan, np.float32)
    wide[:8, :3] = scores
    mask = np.zeros((10, 5), bool)
    mask[:8, :3] = STEP_MASK
    padded = call(wide, np.append(returns, [np.nan, np.nan]).astype(np.float32), mask, np.append(GROUP, [0, 1]))
    np.testing.assert_allclose(padded[:8, :3], base, atol=1e-6)
    np.testing.assert_array_equal(padded[8:], 0.0)


def test_unknown_statistics_are_named():
    with pytest.raises(ValueError, match="config.statistics='row'"):
        group_relative(jnp.zeros((1, 1)), jnp.zeros(1), jnp.ones((1, 1), bool), jnp.zeros(1, jnp.int32), "row", "zero")
