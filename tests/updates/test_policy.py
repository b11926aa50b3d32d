"""The policy update on a small tabular policy: identity checks, exact micro-batching, and what must not move anything."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tabular import OPTIONS, L, R, V, batch, episodes, rows, score, table

from rspo_jax.algorithms import masking, policy_loss, spans
from rspo_jax.rollout import batching
from rspo_jax.updates import accumulate, policy

every_level = pytest.mark.parametrize("ratio", policy_loss.RATIO_LEVELS)


def update_of(optimizer, score=score, options=OPTIONS):
    return accumulate.make_update(policy.make_policy_gradient(score, options), optimizer)


def run(microbatches, params=None, options=OPTIONS):
    optimizer = optax.adam(0.1)
    state = accumulate.new_state(params or table(), optimizer)
    return update_of(optimizer, options=options)(state, microbatches)


@functools.cache
def value_and_grad(options):
    return jax.jit(jax.value_and_grad(policy.make_loss(score, options), has_aux=True))


def gradient(data, params=None, options=OPTIONS):
    return value_and_grad(options)(params or table(2), data)[1]["table"]


def test_order_of_rows_changes_nothing():
    np.testing.assert_allclose(gradient(rows(batch(), np.array([5, 2, 0, 1, 4, 3]))), gradient(batch()), atol=1e-6)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e30])
def test_garbage_in_padding_changes_neither_value_nor_gradient(garbage):
    data = batch()
    padded = jax.tree.map(lambda x: jnp.concatenate([x, x[:2]]), data)
    padded = dataclasses.replace(padded, action_mask=padded.action_mask.at[R:].set(False))
    for name in ("advantage", "logp_old", "logp_behavior", "logp_ref", "weight"):
        values = jnp.where(padded.action_mask, getattr(padded, name), garbage)
        padded = dataclasses.replace(padded, **{name: values})  # the weight too, which may be garbage here
    np.testing.assert_allclose(gradient(padded), gradient(data), atol=1e-6)
    assert np.isfinite(run([padded])[1]["loss"])


def test_a_batch_without_action_tokens_has_zero_loss_and_gradient():
    empty = dataclasses.replace(batch(), action_mask=jnp.zeros((R, L), bool))
    np.testing.assert_array_equal(gradient(empty), 0.0)
    assert policy.summarize(run([empty])[1])["loss"] == 0.0


def test_on_policy_gradient_is_reinforce():
    # At pi = pi_old = pi_B the ratio is 1: the gradient is that of sum weight A logp (check 7).
    plain = dataclasses.replace(OPTIONS, kl_coef=0.0, entropy_coef=0.0)
    data = dataclasses.replace(batch(), logp_behavior=batch().logp_old)
    scale = data.weight * data.advantage * data.action_mask
    reinforce = jax.grad(lambda p: -jnp.sum(scale * score(p, data.tokens)[0]))(table())
    np.testing.assert_allclose(gradient(data, table(), plain), reinforce["table"], atol=1e-6)


def test_alpha_zero_is_the_base_algorithm_bit_for_bit():
    # Check 2: rows of the buffer with weight 0 add exactly nothing.
    with_buffer, base = batch(alpha=0.0), rows(batch(alpha=0.0), slice(0, 4))
    np.testing.assert_array_equal(gradient(rows(with_buffer, slice(0, 6))), gradient(base))


def test_behavior_equal_to_old_makes_the_off_policy_term_the_on_policy_one():
    data = dataclasses.replace(batch(), logp_behavior=batch().logp_old)
    swapped = dataclasses.replace(data, off_policy=~data.off_policy)
    without_dual = dataclasses.replace(OPTIONS, dual_clip=np.inf)
    np.testing.assert_array_equal(gradient(data, options=without_dual), gradient(swapped, options=without_dual))


@pytest.mark.parametrize("ratio, estimator", [
    ("token", "k3"), ("step_sum", "k2"), ("step_mean", "abs"), ("row", "k1"), ("token", "k3_ratio_weighted")])
def test_gradient_matches_finite_differences(ratio, estimator):
    # k3_straight is none of them: its gradient is not that of its value.
    options = dataclasses.replace(OPTIONS, ratio=ratio, kl_estimator=estimator)
    with jax.enable_x64(True):
        data = jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, batch())
        # Away from the kinks of the clip and of the minimum, which a difference quotient would straddle.
        params = jax.tree.map(lambda x: x.astype(jnp.float64) + 0.01, table(2))
        exact = gradient(data, params, options)
        for i, j in [(0, 1), (2, 2), (4, 0)]:
            shift = jnp.zeros((V, V)).at[i, j].set(1e-6)
            high, low = (value_and_grad(options)({"table": params["table"] + sign * shift}, data)[0][0] for sign in (1, -1))
            np.testing.assert_allclose((high - low) / 2e-6, exact[i, j], rtol=1e-6, atol=1e-9)


def loss_by_loops(params, data, options):
    """The objective's surrogate, token by token, in numpy."""
    data, logp = jax.device_get(data), np.asarray(score(params, data.tokens)[0], np.float64)
    total = 0.0
    for r, l in zip(*np.nonzero(data.action_mask), strict=True):
        mask = data.action_mask[r].copy()
        if options.ratio == "token":
            mask[:] = np.arange(L) == l
        elif options.ratio != "row":
            mask &= data.step[r] == data.step[r, l]
        reduce = np.sum if options.ratio == "step_sum" else np.mean
        ratio, center = (np.exp(reduce((x[r] - data.logp_behavior[r])[mask])) for x in (logp, data.logp_old))
        advantage, off = float(data.advantage[r, l]), data.off_policy[r]
        clipped = np.clip(ratio, center - options.epsilon_low, center + options.epsilon_high)
        surrogate = min(ratio * advantage, clipped * advantage)
        if advantage < 0:
            surrogate = max(surrogate, (options.off_dual_clip if off else options.dual_clip) * advantage)
        total += data.weight[r, l] * surrogate
    return -total


@every_level
def test_ratio_levels_against_loops(ratio):
    options = dataclasses.replace(OPTIONS, ratio=ratio, epsilon_low=0.1, epsilon_high=0.3, dual_clip=1.2, off_dual_clip=1.5)
    for seed in range(2):
        (_, (sums, _)), _ = value_and_grad(options)(table(2), batch(seed))
        np.testing.assert_allclose(sums["policy_loss"], loss_by_loops(table(2), batch(seed), options), rtol=1e-5)


@every_level
def test_the_clip_is_centred_on_the_old_policy_at_every_level(ratio):
    # At pi = pi_old the ratio is its centre, off policy too: nothing is clipped, and each token pushes with its ratio.
    options = dataclasses.replace(OPTIONS, ratio=ratio, epsilon_low=1e-3, epsilon_high=1e-3, dual_clip=np.inf)
    (_, (sums, maxima)), _ = value_and_grad(options)(table(), batch())
    assert sums["clipped_on"] == sums["clipped_off"] == 0 < sums["tokens_off"]
    assert maxima["ratio_max"] > 1.0
    (_, (sums, _)), _ = value_and_grad(dataclasses.replace(options, clip="standard"))(table(), batch())
    assert sums["clipped_off"] > 0


@every_level
def test_micro_batches_change_nothing_at_any_level(ratio):
    options = dataclasses.replace(OPTIONS, ratio=ratio, kl_estimator="k3_ratio_weighted")
    calculate = policy.make_policy_gradient(score, options)
    whole, parts = (calculate(table(2), [rows(batch(), part) for part in split])
                    for split in ([slice(None)], [slice(0, 1), slice(1, 3), slice(3, 6)]))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), parts, whole)


@every_level
def test_both_layouts_agree_on_one_step_episodes(ratio):
    # With several steps, whose rows differ, all levels but "row" agree as well: this policy looks at one token only.
    options = dataclasses.replace(OPTIONS, ratio=ratio)
    for steps in (1,) if ratio == "row" else (1, 3):
        found = []
        for full_history in (True, False):
            data = batching.pad(episodes(steps), full_history)
            layout = spans.Layout(data.action_mask, data.trajectory, data.step)
            data.advantage[:] = spans.spread(np.random.default_rng(1).normal(size=(4, steps)), layout)
            data.weight[:] = masking.aggregation_weights(data.action_mask, data.trajectory, "trajectory_mean", 64)
            found.append(gradient(data, options=options))
        np.testing.assert_allclose(*found, atol=1e-6)
        assert np.abs(found[0]).max() > 1e-3


def test_covariance_clip_takes_a_token_out_of_the_surrogate_and_keeps_the_denominators():
    plain = dataclasses.replace(OPTIONS, kl_coef=0.0, entropy_coef=0.0)
    data = batch()
    logp = score(table(2), data.tokens)[0]
    clipped = policy.covariance_clip(data, logp, plain, (0.0, np.inf), 1.0, jax.random.key(0))
    dropped = np.asarray(clipped.advantage != data.advantage)
    assert 0 < dropped.sum() < data.action_mask.sum() and not clipped.advantage[dropped].any()
    # Chosen were all tokens of positive covariance that the clip leaves a gradient.
    mask = np.asarray(data.action_mask)
    centred = [np.asarray(x) - np.asarray(x)[mask].mean() for x in (data.advantage, logp)]
    ratio, center = np.exp(logp - data.logp_behavior), np.exp(data.logp_old - data.logp_behavior)
    beyond = np.where(data.advantage > 0, ratio > center + 0.2, ratio < center - 0.2)
    np.testing.assert_array_equal(dropped, mask & (centred[0] * centred[1] > 0) & ~beyond)
    # Where nothing but the surrogate is, this equals weight 0.
    weightless = dataclasses.replace(data, weight=jnp.where(dropped, 0.0, data.weight))
    np.testing.assert_array_equal(gradient(clipped, options=plain), gradient(weightless, options=plain))


def test_quantiles_of_log_ratios_and_off_policy_weights():
    # At pi = pi_old, on-policy log-ratios are 0; pi_old / pi_B is exp of the noise that the batch put there.
    metrics = policy.summarize(run([rows(batch(), slice(0, 5)), rows(batch(), slice(5, 6))])[1])
    assert [metrics[f"log_ratio_{label}"] for label in policy.QUANTILES] == [0.0] * 4
    data = batch()
    weights = np.sort(np.exp(data.logp_old - data.logp_behavior)[np.asarray(data.action_mask & data.off_policy[:, None])])
    for label, share in policy.QUANTILES.items():
        expected = weights[int(np.ceil(share * len(weights))) - 1]
        np.testing.assert_allclose(np.log(metrics[f"off_policy_weight_{label}"]), np.log(expected), rtol=0.06, atol=1e-5)
    on_policy = policy.summarize(run([rows(batch(), slice(0, 4))])[1])
    assert np.isnan(on_policy["off_policy_weight_p50"]) and on_policy["log_ratio_p50"] == 0.0


def test_a_non_finite_gradient_moves_nothing():
    data = batch()
    broken = dataclasses.replace(data, advantage=data.advantage.at[0, 1].set(jnp.nan))
    optimizer = optax.adam(0.1)
    state = accumulate.new_state(table(), optimizer)
    before = jax.device_get(state)
    after, metrics = update_of(optimizer)(state, [data, broken])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(after), before)
    assert policy.summarize(metrics)["skipped_updates"] == 1


def test_a_branch_survives_the_donation_of_its_origin():
    optimizer = optax.adam(0.1)
    agent = accumulate.new_state(table(), optimizer)
    expected = jax.device_get(agent)
    explorer = accumulate.branch(agent)
    update_of(optimizer)(explorer, [batch()])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(agent), expected)


def test_two_batches_of_one_shape_trace_once():
    traces = []

    def counting(params, tokens):
        traces.append(tokens.shape)
        return score(params, tokens)

    optimizer = optax.adam(0.1)
    update = update_of(optimizer, counting)
    state = accumulate.new_state(table(), optimizer)
    for seed in range(3):
        state, _ = update(state, [batch(seed), batch(seed + 10)])
    assert len(traces) == 1


@pytest.mark.parametrize("key, value", [("epsilon_low", 0.0), ("clip", "ppo"), ("ratio", "sequence"), ("kl_coef", -1.0),
                                        ("kl_estimator", "k4"), ("dual_clip", float("nan"))])
def test_options_out_of_range_are_named(key, value):
    with pytest.raises(ValueError, match=f"config.policy.{key}"):
        dataclasses.replace(OPTIONS, **{key: value})
