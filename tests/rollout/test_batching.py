"""Trajectories to padded rows and back: nothing is cut, moved or counted twice."""

import dataclasses

import numpy as np
import pytest

from rspo_jax import types
from rspo_jax.rollout import batching


def step(prompt, response, reward=0.0):
    return types.Step("see", "say", "do", np.array(prompt, np.int32), np.array(response, np.int32),
                      np.array(response, np.float32) / 10, np.array(response, np.float32) / 10, True, True, reward, 0.5)


def trajectory(steps, group=0):
    return types.Trajectory("game", "pick", "do it", group, 0, "agent", 0, tuple(steps), 1.0, True, "success", 0.1)


TWO = [trajectory([step([1, 2], [3]), step([4], [5, 6])]), trajectory([step([7], [8, 9])], group=4)]


def test_full_history_is_one_row_a_trajectory():
    batch = batching.pad(TWO, full_history=True)
    np.testing.assert_array_equal(batch.tokens[:2, :6], [[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]])
    np.testing.assert_array_equal(batch.action_mask[:2, :6], [[0, 0, 1, 0, 1, 1], [0, 1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(batch.step[:2, :6], [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]])
    np.testing.assert_allclose(batch.logp_behavior[:2, :6], [[0, 0, 0.3, 0, 0.5, 0.6], [0, 0.8, 0.9, 0, 0, 0]])
    np.testing.assert_array_equal(batch.trajectory[:2], [0, 1])


def test_shapes_of_whole_batches_are_rounded_up_with_rows_that_hold_nothing():
    batch = batching.pad(TWO, full_history=True)
    assert batch.tokens.shape == (batching.ROW_MULTIPLE, batching.LENGTH_MULTIPLE)
    assert batch.action_mask.sum() == 5 and not batch.action_mask[2:].any() and not batch.action_mask[:, 6:].any()


def test_window_history_is_one_row_a_step():
    batch = batching.pad(TWO, full_history=False)
    np.testing.assert_array_equal(batch.tokens[:3, :3], [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    np.testing.assert_array_equal(batch.step[:3, :3], [[0, 0, 0], [0, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(batch.trajectory[:3], [0, 0, 1])


def test_split_and_merge_keep_every_row_once():
    rng = np.random.default_rng(0)
    many = [trajectory([step(rng.integers(1, 9, rng.integers(1, 30)), [9, 9])]) for _ in range(13)]
    batch = batching.pad(many, full_history=True)
    parts = batching.split(batch, batching.MicrobatchOptions(tokens=80, widths=(8, 16, 40), multiple=1))
    assert sorted(np.concatenate([index for index, _ in parts])) == list(range(13))
    assert {part.tokens.shape for _, part in parts} <= {(10, 8), (5, 16), (2, 40)}
    assert sum(part.action_mask.sum() for _, part in parts) == batch.action_mask.sum()
    np.testing.assert_array_equal(batching.merge([(i, part.tokens) for i, part in parts], batch.tokens), batch.tokens)


def test_rows_of_a_micro_batch_spread_over_the_devices():
    options = batching.MicrobatchOptions(tokens=100, widths=(8, 24), multiple=4)
    assert (options.rows(8), options.rows(24)) == (12, 4)
    with pytest.raises(ValueError, match="config.microbatch.tokens=90 must be at least 96"):
        batching.MicrobatchOptions(tokens=90, widths=(8, 24), multiple=4)


def test_a_row_that_does_not_fit_is_an_error_not_a_cut():
    batch = batching.pad([trajectory([step(range(20), [1])])], full_history=True)
    with pytest.raises(ValueError, match="A row of 21 tokens does not fit config.microbatch.widths"):
        batching.split(batch, batching.MicrobatchOptions(tokens=32, widths=(16,), multiple=1))


@pytest.mark.parametrize("full_history", [True, False])
def test_trainer_logps_return_to_their_steps(full_history):
    batch = batching.pad(TWO, full_history)
    filled = batching.with_logp_behavior(TWO, batch, batch.tokens.astype(np.float32))
    for before, after in zip(TWO, filled, strict=True):
        for old, new in zip(before.steps, after.steps, strict=True):
            np.testing.assert_array_equal(new.logp_behavior, old.response_tokens)
            assert dataclasses.replace(new, logp_behavior=old.logp_behavior).response == old.response


def test_step_arrays_and_groups():
    np.testing.assert_array_equal(batching.step_mask(TWO), [[True, True], [True, False]])
    np.testing.assert_array_equal(batching.step_array(TWO, "dense_reward"), [[0.5, 0.5], [0.5, 0.0]])
    np.testing.assert_array_equal(batching.group_index(TWO), [0, 1])


def test_an_episode_without_steps_has_no_row():
    batch = batching.pad([trajectory([]), *TWO], full_history=True)
    np.testing.assert_array_equal(batch.trajectory[batch.action_mask.any(axis=1)], [1, 2])
    np.testing.assert_array_equal(batching.step_mask([trajectory([]), *TWO]).sum(axis=1), [0, 2, 1])
