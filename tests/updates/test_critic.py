"""The critic's update: a value by hand, what the clip stops, which values are fitted, and its metrics."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
import tabular

from rspo_jax.algorithms import masking, spans
from rspo_jax.rollout import batching
from rspo_jax.updates import critic


def test_loss_gradient_and_metrics_by_hand():
    # Values 1, 2 and -1 before tokens that follow 0, 1 and 2. Old values 0, 2, -1 and clip 0.5: the first may be 0.5 at most.
    # Returns 0.9, 1, -1: squared errors 0.01, 1, 0; the clipped one of the first is (0.5 - 0.9)^2 = 0.16, larger, so its
    # gradient is 0. Loss with factor 1: (0.16 + 1 + 0) / 3. Gradient of the second: 2 (2 - 1) / 3.
    params = {"table": jnp.zeros((5, 5)).at[0, :3].set(jnp.array([1.0, 2, -1]))}
    data = critic.ValueBatch(
        tokens=jnp.array([[0, 1, 2, 3]]), action_mask=jnp.array([[False, True, True, True]]),
        returns=jnp.array([[np.nan, 0.9, 1, -1]]), values_old=jnp.array([[np.nan, 0, 2, -1]]),
        weight=jnp.array([[np.nan, 1 / 3, 1 / 3, 1 / 3]]))
    update = critic.make_critic_update(tabular.value, tabular.OPTIMIZERS["sgd"], critic.CriticOptions(clip=0.5, loss_factor=1.0))
    after, metrics = update(tabular.start("sgd", params), [data])
    np.testing.assert_allclose(after.params["table"][0], [1, 2 - 2 / 3, -1, 0, 0], rtol=1e-6)
    found = critic.summarize(metrics)
    returns, gaps = np.array([0.9, 1, -1]), np.array([-0.1, -1, 0])
    expected = {"loss": 1.16 / 3, "grad_norm": 2 / 3, "skipped_updates": 0, "value_clip_fraction": 1 / 3,
                "explained_variance": 1 - gaps.var() / returns.var(), "return_mean": 0.3, "value_mean": 2 / 3}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


def test_only_values_with_weight_are_fitted():
    # A turn critic: the value before the first token of each step. What stands elsewhere is not read.
    data = tabular.values()
    first = spans.first_tokens(spans.Layout(data.action_mask, tabular.TRAJECTORY, tabular.batch().step))
    weight = masking.aggregation_weights(first, jnp.arange(tabular.R), "token_mean", tabular.L)
    turns = dataclasses.replace(data, weight=weight)
    garbage = dataclasses.replace(turns, returns=jnp.where(first, turns.returns, jnp.nan))
    expected, metrics = tabular.gradient("critic", [turns])
    found, garbage_metrics = tabular.gradient("critic", [garbage])
    np.testing.assert_array_equal(found, expected)
    assert metrics["fitted"] == garbage_metrics["fitted"] == tabular.R + tabular.TWO_STEPS.sum()
    # By hand, in numpy: the mean over these tokens.
    values = np.asarray(tabular.value(tabular.table(2), data.tokens))
    near = np.clip(values, data.values_old - 0.5, data.values_old + 0.5)
    loss = 0.5 * np.maximum((values - data.returns) ** 2, (near - data.returns) ** 2)
    np.testing.assert_allclose(metrics["loss"], loss[np.asarray(first)].mean(), rtol=1e-6)


def test_a_perfect_critic_explains_everything_and_a_constant_one_nothing():
    data = tabular.values()
    values = tabular.value(tabular.table(2), data.tokens)
    perfect = critic.summarize(tabular.gradient("critic", [dataclasses.replace(data, returns=values)])[1])
    assert perfect["explained_variance"] == 1.0
    constant = critic.summarize(tabular.gradient("critic", [data], {"table": jnp.full((5, 5), 0.3)})[1])
    np.testing.assert_allclose(constant["explained_variance"], 0.0, atol=1e-6)
    np.testing.assert_allclose(constant["value_mean"], 0.3, rtol=1e-6)


def test_returns_that_do_not_vary_and_no_returns_at_all():
    data = tabular.values()
    for level in (0.0, 1.0, 9.9):
        metrics = critic.summarize(tabular.gradient("critic", [dataclasses.replace(data, returns=jnp.full((6, 4), level))])[1])
        assert math.isnan(metrics["explained_variance"])
        np.testing.assert_allclose(metrics["return_mean"], level, rtol=1e-6)
    empty, metrics = tabular.gradient("critic", [dataclasses.replace(data, action_mask=jnp.zeros((6, 4), bool))])
    np.testing.assert_array_equal(empty, 0.0)
    assert metrics["loss"] == 0.0 and math.isnan(critic.summarize(metrics)["value_clip_fraction"])


def test_both_layouts_agree_and_split_takes_value_batches():
    found = []
    for full_history in (True, False):
        batch = batching.pad(tabular.episodes(3), full_history)
        rng = np.random.default_rng(1)
        layout = spans.Layout(batch.action_mask, batch.trajectory, batch.step)
        returns, old = (np.asarray(spans.spread(rng.normal(size=(4, 3)), layout)) for _ in range(2))
        weight = np.asarray(masking.aggregation_weights(batch.action_mask, batch.trajectory, "trajectory_mean", 64))
        data = critic.ValueBatch(batch.tokens, batch.action_mask, returns, old, weight)
        parts = batching.split(data, batching.MicrobatchOptions(tokens=40, widths=(8, 20), multiple=1))
        assert len(parts) > 1
        found.append(tabular.gradient("critic", [part for _, part in parts])[0])
    np.testing.assert_allclose(*found, atol=1e-6)
    assert np.abs(found[0]).max() > 1e-3


@pytest.mark.parametrize("key, value", [("clip", 0.0), ("loss_factor", -1.0), ("clip", math.nan)])
def test_options_out_of_range_are_named(key, value):
    with pytest.raises(ValueError, match=f"config.critic.{key}"):
        dataclasses.replace(tabular.CRITIC, **{key: value})
