"""V19 and V19b, worked by hand: SPEAR's replay filter, Clip-Cov and schedules."""

import jax
import numpy as np

from rspo_jax.algorithms import self_imitation

covariance_clip, replay_advantage = jax.jit(self_imitation.covariance_clip), jax.jit(self_imitation.replay_advantage)

KEY = jax.random.key(0)


def test_v19_replay_against_the_median_of_recent_groups():
    # Recent group means 0, 0.5, 1, 0.25: median 0.375. The last trajectory is too old, the second too bad.
    recent, filled = np.array([0, 0.5, 1, 0.25, np.nan, 99]), np.array([1, 1, 1, 1, 0, 0], bool)
    returns, age = np.array([1, 0, 0.5, 0.375, 1]), np.array([0, 1, 5, 2, 6])
    advantage, kept = replay_advantage(returns, age, recent, filled, 5)
    np.testing.assert_array_equal(kept, [True, False, True, True, False])
    np.testing.assert_allclose(advantage, [0.625, 0, 0.125, 0, 0])


def test_without_a_baseline_nothing_is_replayed():
    advantage, kept = replay_advantage(np.ones(2), np.zeros(2, int), np.zeros(3), np.zeros(3, bool), 5)
    assert not kept.any()
    np.testing.assert_array_equal(advantage, 0.0)


# Mean log-prob -1.5 and mean advantage 0, so the covariances are 3, 0.5, 0.5, 3 and garbage.
LOGP = np.array([[0.0, -1, np.nan], [-2, -3, 5]])
ADVANTAGE = np.array([[2.0, 1, 9], [-1, -2, np.inf]])
MASK = np.array([[1, 1, 0], [1, 1, 0]], bool)


def clip(band=(1, 5), fraction=0.5, candidates=MASK, key=KEY):
    return np.asarray(covariance_clip(LOGP, ADVANTAGE, candidates, MASK, band, fraction, key))


def test_v19b_tokens_in_the_band():
    np.testing.assert_array_equal(clip(), [[True, False, False], [False, True, False]])
    np.testing.assert_array_equal(clip(band=(0.1, 0.6)), [[False, True, False], [True, False, False]])
    assert not clip(band=(1, 3)).any()  # the band is open


def test_v19b_at_least_one_token_drawn_by_lot():
    chosen = [clip(fraction=2e-4, key=jax.random.key(seed)) for seed in range(20)]
    assert all(c.sum() == 1 for c in chosen)
    assert {tuple(np.flatnonzero(c)) for c in chosen} == {(0,), (4,)}


def test_v19b_tokens_that_the_surrogate_clips_are_no_candidates():
    unclipped = MASK & (np.arange(6).reshape(2, 3) > 0)
    np.testing.assert_array_equal(clip(candidates=unclipped), [[False, False, False], [False, True, False]])


def test_v19b_schedules():
    updates = np.array([0, 50, 100, 200, 500])
    # cos(pi / 4) = 0.707107.
    expected = [0, 0.146447, 0.5, 1, 1]
    np.testing.assert_allclose(self_imitation.imitation_weight(updates, 200), expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(self_imitation.bonus_weight(updates, 200), 1 - np.array(expected), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(self_imitation.length_bonus(np.array([5, 30]), 100, 200), [0.25, 0.5], rtol=1e-6)
