"""Shares, minibatches and the reward swap, without a model."""

import dataclasses
import types as python_types

import numpy as np
import pytest
from episodes import episode, malformed, opened, settings

from configs import sections
from rspo_jax import types
from rspo_jax.rollout import batching, collect
from rspo_jax.train import estimate, learn, prm, rspo, session
from rspo_jax.updates.policy import PolicyOptions

ALPHA = 0.25


def mixed(on=6, off=4, full_history=True):
    batch = batching.pad([episode(i, 1.0, steps=1 + i % 3) for i in range(on + off)], full_history)
    batch.off_policy[:] = batch.trajectory >= on
    return batch


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean", "row_mean"])
@pytest.mark.parametrize("full_history", [True, False])
def test_both_terms_of_every_minibatch_have_their_shares(aggregation, full_history):
    batch = mixed(full_history=full_history)
    parts = learn.split_minibatches(batch, 2)
    assert sorted(np.concatenate(parts)) == list(np.flatnonzero(batch.action_mask.any(axis=1)))
    for rows in parts:
        part = learn.weighted(batching.take(batch, rows), ALPHA, settings(aggregation=aggregation))
        assert len(np.unique(part.trajectory[part.off_policy])) == 2
        np.testing.assert_allclose(part.weight[~part.off_policy].sum(), 1 - ALPHA, rtol=1e-5)
        np.testing.assert_allclose(part.weight[part.off_policy].sum(), ALPHA, rtol=1e-5)
        assert not part.weight[~part.action_mask].any()


def test_with_one_term_only_it_weighs_one():
    for batch in (mixed(off=0), mixed(on=0)):
        np.testing.assert_allclose(learn.weighted(batch, ALPHA, settings()).weight.sum(), 1.0, rtol=1e-5)


def test_a_thin_harvest_weighs_as_much_less():
    assert learn.off_policy_share(settings(), 4) == ALPHA
    assert learn.off_policy_share(settings(), 1) == ALPHA / 4
    assert learn.off_policy_share(settings(), 0) == 0.0


def test_both_layouts_weigh_one_step_episodes_alike():
    trajectories = [episode(i, 1.0, steps=1) for i in range(4)]
    by_trajectory = settings(aggregation="trajectory_mean")
    row, steps = (learn.weighted(batching.pad(trajectories, full), 0.0, by_trajectory) for full in (True, False))
    np.testing.assert_array_equal(row.weight, steps.weight)


def test_an_environment_error_is_not_a_failure_of_its_siblings_baseline():
    killed = dataclasses.replace(episode(0, 0.0), termination="error: killed")
    rollout = collect.Rollout([*[episode(0, 1.0)] * 7, killed], {})
    advantage = estimate.outcome_advantages(opened(), rollout.trainable).tokens
    assert len(advantage) == 7 and not np.concatenate(advantage).any()


def test_rows_without_advantage_are_not_computed_but_count():
    batch = batching.pad([episode(0, 1.0), episode(0, 0.0), episode(1, 1.0), episode(1, 1.0)], True)
    batch.advantage[:2] = 1.0
    batch = learn.weighted(batch, 0.0, settings())
    options = PolicyOptions(**sections.base_algorithm().policy)
    moved = learn.moving(batch, options)
    np.testing.assert_array_equal(moved.tokens, batch.tokens[:2])
    np.testing.assert_allclose(moved.weight.sum(), 0.5, rtol=1e-5)
    for term in ("kl_coef", "entropy_coef"):  # every row has a gradient then
        assert learn.moving(batch, dataclasses.replace(options, **{term: 0.1})) is batch


def test_dense_advantages_do_not_look_at_the_outcome():
    # Dense returns 2 and 0: mean 1, sample standard deviation sqrt(2). The outcomes are the other way round.
    pair = [episode(0, 0.0, dense=1.0), episode(0, 1.0, dense=0.0)]
    np.testing.assert_allclose(estimate.dense_advantages(opened(), pair).tokens, [[2**-0.5] * 6, [-(2**-0.5)] * 6], rtol=1e-5)


def harvest(opened, played):
    return rspo.harvest(opened, session.Progress(), played, estimate.outcome_advantages(opened, played).tokens)


def test_the_harvest_is_relabelled_with_outcomes():
    # The PRM likes the failure; the buffer puts the success first, with its outcome advantage.
    played = [episode(0, 0.0, dense=0.9), episode(0, 1.0, dense=-0.9), episode(1, 1.0), episode(1, 1.0)]
    buffer = harvest(opened(), played)
    assert [item.trajectory.success for item in buffer] == [True, False]
    np.testing.assert_allclose(buffer[0].advantage, [2**-0.5] * 6, rtol=1e-5)


def test_a_group_that_all_succeeds_is_left_out_whatever_its_penalties():
    played = [malformed(episode(0, 1.0), 0), episode(0, 1.0), episode(1, 1.0), episode(1, 0.0)]
    buffer = harvest(opened(statistics="step"), played)
    assert {item.trajectory.group for item in buffer} == {1}


def test_step_ends_are_the_last_action_token_of_each_step():
    batch = batching.pad([episode(0, 1.0, steps=2), episode(1, 1.0, steps=1)], True)
    ends, exists = prm._step_ends(batch, 3)
    # Rows read 2 prompt tokens, then 3 sampled ones, per step.
    np.testing.assert_array_equal(ends[:2], [[4, 9, 0], [4, 0, 0]])
    np.testing.assert_array_equal(exists[:2], [[True, True, False], [True, False, False]])
    assert not exists[2:].any()


def test_step_ends_of_a_row_that_fills_its_width():
    batch = batching.take(batching.pad([episode(0, 1.0, steps=1)], True), np.array([0]))
    full = types.TrajectoryBatch(**{name: x[:, :5] if x.ndim == 2 else x for name, x in vars(batch).items()})
    np.testing.assert_array_equal(prm._step_ends(full, 1)[0], [[4]])


def test_a_dense_return_that_rises_while_success_falls_is_told():
    notes = []
    space = python_types.SimpleNamespace(run=python_types.SimpleNamespace(note=notes.append))
    progress = session.Progress()
    history = [(1.0, 0.5), (2.0, 0.4), (3.0, 0.3), (2.0, 0.2), (3.0, 0.1)]
    found = [learn.hacking(space, progress, "harvest 1", *pair)["gamed_in_a_row"] for pair in history]
    assert found == [0, 1, 2, 0, 1] and len(notes) == 1 and "rose to 3 while success fell to 30.0%" in notes[0]
