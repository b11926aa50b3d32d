"""SPEAR's buffer and bonus; the formulas are tested in tests/algorithms/test_self_imitation.py."""

import dataclasses
import types as python_types

import numpy as np
from episodes import episode, opened

from rspo_jax.rollout import replay
from rspo_jax.train import learn, session, spear


def item(outcome, update=0):
    return replay.Item(dataclasses.replace(episode(0, outcome), update=update), np.ones(6, np.float32))


def test_what_reaches_the_median_and_is_young_enough_is_imitated():
    # Median of 0.2, 0.5, 0.6 is 0.5.
    buffer = [item(1.0), item(0.4), item(0.5), item(1.0, update=4)]
    kept = spear.worth_imitating(buffer, [0.2, 0.5, 0.6], update=6, tolerance=6)
    np.testing.assert_allclose([each.advantage for each in kept], [[0.5] * 6, [0.0] * 6, [0.5] * 6], atol=1e-7)
    kept = spear.worth_imitating(buffer, [0.2, 0.5, 0.6], update=6, tolerance=5)
    assert [each.trajectory.update for each in kept] == [4]
    assert spear.worth_imitating([], [0.5], 0, 5) == spear.worth_imitating(buffer, [], 0, 5) == []


def test_the_bonus_is_on_the_score_and_not_on_the_steps():
    options = python_types.SimpleNamespace(bonus_coef=2.0, horizon=200)
    rewards = spear.with_bonus(options, [episode(0, 1.0, steps=3)], 100)  # halfway: 2 * 0.5 * 0.3
    np.testing.assert_allclose(rewards.returns, [1.3], rtol=1e-5)
    np.testing.assert_allclose(rewards.steps, [[0.0, 0.0, 1.0]])


def test_a_replay_is_a_power_of_two_and_the_same_after_a_resume():
    space = opened()
    space.settings.spear = python_types.SimpleNamespace(replay_episodes=5)
    kept = [item(float(number)) for number in range(7)]
    one, other = (spear._part(space, session.Progress(updates=3), kept) for _ in range(2))
    assert len(one) == 4 and [a.trajectory.outcome for a in one] == [b.trajectory.outcome for b in other]


def test_only_replayed_episodes_weigh_one():
    space = opened()
    space.settings.rspo = None
    assert learn.off_policy_share(space.settings, 3) == 0.0
