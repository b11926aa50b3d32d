"""The policy update on a small tabular policy: identity checks, exact micro-batching, and what must not move anything."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rspo_jax import types
from rspo_jax.algorithms import masking
from rspo_jax.updates import accumulate, policy

V, R, L = 5, 6, 4
OPTIONS = policy.PolicyOptions(epsilon_low=0.2, epsilon_high=0.2, clip="generalized", dual_clip=3.0, off_dual_clip=np.inf,
                               kl_coef=0.1, kl_estimator="k3", entropy_coef=0.01)


def score(params, tokens):
    """A bigram policy: log-softmax of a row of a table by the previous token."""
    logits = jax.nn.log_softmax(params["table"], axis=-1)
    previous = jnp.roll(tokens, 1, axis=1)
    logp = logits[previous, tokens]
    entropy = -jnp.sum(jnp.exp(logits) * logits, axis=-1)[previous]
    return logp, entropy


def table(seed=0):
    return {"table": jnp.asarray(np.random.default_rng(seed).normal(size=(V, V)), jnp.float32)}


def batch(seed=0, alpha=0.25):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, V, (R, L)).astype(np.int32)
    mask = rng.random((R, L)) < 0.7
    mask[:, 0], mask[:, 1] = False, True
    off = np.arange(R) >= 4
    old = np.asarray(score(table(), tokens)[0])
    behavior = np.where(off[:, None], old + rng.normal(size=(R, L)) * 0.3, old)
    sides = [jnp.asarray(mask & side[:, None]) for side in (~off, off)]
    on_weight, off_weight = (np.asarray(masking.aggregation_weights(side, jnp.arange(R), "token_mean", L)) for side in sides)
    weight = (1 - alpha) * on_weight + alpha * off_weight
    arrays = dict(tokens=tokens, action_mask=mask, step=np.zeros_like(tokens), trajectory=np.arange(R, dtype=np.int32),
                  off_policy=off, advantage=rng.normal(size=(R, L)), weight=weight, logp_old=old, logp_behavior=behavior,
                  logp_ref=np.asarray(score(table(1), tokens)[0]))
    return types.TrajectoryBatch(**{k: jnp.asarray(v, jnp.float32) if v.dtype == np.float64 else jnp.asarray(v)
                                    for k, v in arrays.items()})


def rows(data, index):
    return jax.tree.map(lambda x: x[index], data)


def update_of(optimizer, score=score, options=OPTIONS):
    return accumulate.make_update(policy.make_policy_gradient(score, options), optimizer)


def run(microbatches, params=None, options=OPTIONS):
    optimizer = optax.adam(0.1)
    state = accumulate.new_state(params or table(), optimizer)
    return update_of(optimizer, options=options)(state, microbatches)


def gradient(data, params=None, options=OPTIONS):
    loss = policy.make_loss(score, options)
    return jax.grad(lambda p: loss(p, data)[0])(params or table(2))["table"]


def test_micro_batches_change_nothing():
    whole, metrics = run([batch()], table(2))
    parts, part_metrics = run([rows(batch(), slice(0, 2)), rows(batch(), slice(2, 3)), rows(batch(), slice(3, 6))], table(2))
    np.testing.assert_allclose(whole.params["table"], parts.params["table"], atol=1e-6)
    for name, value in metrics.items():
        np.testing.assert_allclose(part_metrics[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_order_of_rows_changes_nothing():
    np.testing.assert_allclose(gradient(rows(batch(), np.array([5, 2, 0, 1, 4, 3]))), gradient(batch()), atol=1e-6)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e30])
def test_garbage_in_padding_changes_neither_value_nor_gradient(garbage):
    data = batch()
    padded = jax.tree.map(lambda x: jnp.concatenate([x, x[:2]]), data)
    padded = dataclasses.replace(padded, action_mask=padded.action_mask.at[R:].set(False))
    for name in ("advantage", "logp_old", "logp_behavior", "logp_ref", "weight"):
        values = jnp.where(padded.action_mask, getattr(padded, name), garbage)
        padded = dataclasses.replace(padded, **{name: values})
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


def test_gradient_matches_finite_differences():
    with jax.enable_x64(True):
        data = jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, batch())
        # Away from the kinks of the clip and of the minimum, which a difference quotient would straddle.
        params = jax.tree.map(lambda x: x.astype(jnp.float64) + 0.01, table())
        loss = policy.make_loss(score, OPTIONS)
        exact = gradient(data, params)
        for i, j in [(0, 1), (2, 2), (4, 0)]:
            shift = jnp.zeros((V, V)).at[i, j].set(1e-6)
            high, low = (loss({"table": params["table"] + sign * shift}, data)[0] for sign in (1, -1))
            np.testing.assert_allclose((high - low) / 2e-6, exact[i, j], rtol=1e-6, atol=1e-9)


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


@pytest.mark.parametrize("key, value", [("epsilon_low", 0.0), ("clip", "ppo"), ("kl_coef", -1.0), ("kl_estimator", "k4"),
                                        ("dual_clip", float("nan"))])
def test_options_out_of_range_are_named(key, value):
    with pytest.raises(ValueError, match=f"config.policy.{key}"):
        dataclasses.replace(OPTIONS, **{key: value})
