"""V12: GiGPO with exact anchors, and its limit cases."""

import jax
import numpy as np
import pytest

from rspo_jax.algorithms import advantages, advantages_gigpo, anchors

OBSERVATIONS = [["s0", "s1", "s2"], ["s0", "s1", "s1", "s0"], ["s0", "s3"], ["s0"], ["s0"]]
GROUP = [0, 0, 0, 1, 1]
STEPS = np.array([len(line) for line in OBSERVATIONS])
MASK = np.arange(4) < STEPS[:, None]
REWARDS = np.full((5, 4), np.nan, np.float32)
REWARDS[MASK] = [0, 0, 10, 0, 0, 0, 0, 0, 10, 0, 0]
RETURNS = np.array([10, 0, 10, 0, 0], np.float32)
INVALID = np.zeros((5, 4), bool)

EPISODE = {"z_score": jax.jit(advantages.group_relative, static_argnums=(4, 5)),
           "centered": jax.jit(advantages.group_centered, static_argnums=(4, 5))}
step_returns = jax.jit(advantages_gigpo.step_returns)
step_advantage = jax.jit(advantages_gigpo.step_advantage, static_argnums=3)
V12 = {
    ("z_score", "trajectory"): [1.39842, 1.73205, 0.57735, -2.02016, -1.73205, -1.73205, -2.02016, 1.48719, 0.57735, 0, 0],
    ("z_score", "step"): [1.66435, 1.99797, 0.843274, -1.91955, -1.63144, -1.63144, -1.91955, 1.75311, 0.843274, 0, 0],
    ("centered", "trajectory"): [7.72708, 9.66667, 3.33333, -11.2979, -9.83333, -9.83333, -11.2979, 8.20208, 3.33333, 0, 0],
    ("centered", "step"): [8.83819, 10.7778, 4.44444, -10.1868, -8.72222, -8.72222, -10.1868, 9.31319, 4.44444, 0, 0],
}
V12_STEP = {
    "z_score": [0.821074, 1.1547, 0, -0.865456, -0.57735, -0.57735, -0.865456, 0.909839, 0, 0, 0],
    "centered": [4.39375, 6.33333, 0, -4.63125, -3.16667, -3.16667, -4.63125, 4.86875, 0, 0, 0],
}


def padded(ids):
    out = np.zeros((5, 4), np.int32)
    out[MASK] = np.concatenate(ids)
    return np.asarray(out)


def step_part(form, ids, invalid=INVALID):
    returns = step_returns(np.asarray(REWARDS), np.asarray(invalid), np.asarray(MASK), 0.95, 0.1)
    return step_advantage(returns, padded(ids), np.asarray(MASK), form)


def episode_part(form, statistics):
    scores = np.broadcast_to(RETURNS[:, None], MASK.shape)
    return EPISODE[form](scores, np.asarray(RETURNS), np.asarray(MASK), np.array(GROUP), statistics, "raw")


def test_v12_step_returns():
    returns = step_returns(np.asarray(REWARDS), np.asarray(INVALID), np.asarray(MASK), 0.95, 0.1)
    np.testing.assert_allclose(returns[MASK], [9.025, 9.5, 10, 0, 0, 0, 0, 9.5, 10, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("form, statistics", V12)
def test_v12_gigpo(form, statistics):
    step = step_part(form, anchors.exact(OBSERVATIONS, GROUP))
    np.testing.assert_allclose(step[MASK], V12_STEP[form], rtol=5e-6)
    out = advantages_gigpo.combine(episode_part(form, statistics), step, 1.0)
    np.testing.assert_allclose(out[MASK], V12[form, statistics], rtol=5e-6)
    np.testing.assert_array_equal(out[~MASK], 0.0)


def test_penalty_comes_after_discounting_and_stays_on_its_step():
    # The worked sample of the specification: 3 steps, success at the third, the second malformed.
    returns = step_returns(np.array([[0.0, 0, 10]]), np.array([[False, True, False]]), np.ones((1, 3), bool),
                                            0.95, 0.1)
    np.testing.assert_allclose(returns, [[9.025, 9.4, 10]], rtol=1e-6)


def test_identity_8_distinct_observations_or_omega_0_leave_the_episode_part():
    distinct = [[f"{i}.{t}" for t in range(n)] for i, n in enumerate(STEPS)]
    np.testing.assert_array_equal(step_part("z_score", anchors.exact(distinct, GROUP)), 0.0)
    episode = episode_part("z_score", "trajectory")
    step = step_part("z_score", anchors.exact(OBSERVATIONS, GROUP))
    np.testing.assert_array_equal(advantages_gigpo.combine(episode, step, 0.0), episode)
