"""V09, V10, V11, V16 and V16b of the specification, and the limit cases of the clipped surrogate."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rspo_jax import sharding
from rspo_jax.algorithms import masking, policy_loss, spans

log_ratio = jax.jit(policy_loss.log_ratio, static_argnums=3)


@functools.partial(jax.jit, static_argnames="clip")
def surrogate(logp, old, behavior, advantage, low=0.2, high=0.2, limit=np.inf, clip="generalized"):
    ratio, center = policy_loss.ratio_and_center(logp, old, behavior, clip)
    return policy_loss.dual_clip(policy_loss.clipped_surrogate(ratio, center, advantage, low, high), advantage, limit)


V09_LOGP = jnp.array([[-1, -1.75, -0.9, -0.9], [-0.2, -0.05, -3.1, -4]])
V09_OLD = jnp.array([[-1, -2, -0.5, -1], [-1.5, -0.2, -3, -9]])
V09_ADVANTAGE = jnp.array([[1.0, 1, 1, 1], [-2, -2, -2, 0]])
V09_MASK = jnp.array([[True, True, True, False]] * 2)
# (epsilon_high, dual clip) -> loss by aggregation, loss of each token, gradient of the token mean.
AGGREGATIONS = ("token_mean", "row_sum", "row_mean", "sum_over_length", "dr_grpo")
V09 = {
    (0.2, np.inf): ([1.4336, 4.30081, 1.4336, 2.1504, 1.0752], [[-1, -1.2, -0.67032], [7.33859, 2.32367, 1.80967]],
                    [[-0.166667, 0, -0.11172, 0], [1.2231, 0.387278, 0.301612, 0]]),
    (0.2, 3.0): ([1.2105, 3.63151, 1.2105, 1.81576, 0.907878], [[-1, -1.2, -0.67032], [6, 2.32367, 1.80967]],
                 [[-0.166667, 0, -0.11172, 0], [0, 0.387278, 0.301612, 0]]),
    (0.28, 3.0): ([1.19717, 3.59151, 1.19717, 1.79576, 0.897878], [[-1, -1.28, -0.67032], [6, 2.32367, 1.80967]],
                  [[-0.166667, 0, -0.11172, 0], [0, 0.387278, 0.301612, 0]]),
}


@pytest.mark.parametrize("high, limit", V09)
def test_v09_ppo_clip_dual_clip_clip_higher_and_aggregations(high, limit):
    losses, per_token, gradient = V09[high, limit]

    def token_losses(logp):
        return -surrogate(logp, V09_OLD, V09_OLD, V09_ADVANTAGE, 0.2, high, limit)

    def loss(logp, aggregation):
        weight = masking.aggregation_weights(V09_MASK, jnp.arange(2), aggregation, max_length=4)
        return jnp.sum(weight * token_losses(logp))

    np.testing.assert_allclose(token_losses(V09_LOGP)[:, :3], per_token, rtol=5e-6)
    for aggregation, value in zip(AGGREGATIONS, losses, strict=True):
        np.testing.assert_allclose(loss(V09_LOGP, aggregation), value, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(loss)(V09_LOGP, "token_mean"), gradient, rtol=5e-6, atol=1e-7)


def test_aggregation_weights_by_hand():
    # Rows of 3, 1 and 2 action tokens and an empty one; rows 0 and 1 belong to one trajectory.
    mask = jnp.array([[1, 1, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0]], bool)
    trajectory = jnp.array([0, 0, 1, 2])
    np.testing.assert_allclose(masking.aggregation_weights(mask, trajectory, "token_mean", 4), mask / 6)
    by_trajectory = mask * np.array([1 / 8, 1 / 8, 1 / 4, 0])[:, None]
    np.testing.assert_allclose(masking.aggregation_weights(mask, trajectory, "trajectory_mean", 4), by_trajectory)
    by_row = mask * np.array([1 / 9, 1 / 3, 1 / 6, 0])[:, None]
    np.testing.assert_allclose(masking.aggregation_weights(mask, trajectory, "row_mean", 4), by_row)
    np.testing.assert_array_equal(masking.aggregation_weights(jnp.zeros((2, 3), bool), jnp.arange(2), "trajectory_mean", 4), 0)


V10_OLD = np.array([[-1, -1, -1, -1], [-2, -1, -0.5, 0], [-0.3, -0.4, 0, 0]], np.float32)
V10_LOGP = np.array([[-0.9996, -0.9998, -1.0001, -0.9997], [-1.9994, -0.9997, -0.4988, 9], [-0.3008, -0.4006, 9, np.nan]],
                    np.float32)
V10_LOGP_X100 = np.array([[-0.96, -0.98, -1.01, -0.97], [-1.94, -0.97, -0.38, 900], [-0.38, -0.46, 900, np.inf]], np.float32)
V10_MASK = jnp.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]], bool)
V10_ADVANTAGE = jnp.array([[1.0], [0.5], [-1.5]]) * V10_MASK


def level_loss(logp, level, low, high):
    """Mean over rows of the clipped loss at a ratio level; on policy, so behaviour = old."""
    layout = spans.row_local(V10_MASK)
    of_span = log_ratio(logp, V10_OLD, layout, level)
    zero = jnp.zeros_like(of_span)
    ratio, center = policy_loss.ratio_and_center(of_span, zero, zero, "generalized")
    weight = masking.aggregation_weights(layout.action_mask, jnp.arange(len(logp)), "row_mean", 4)
    return -jnp.sum(weight * policy_loss.clipped_surrogate(ratio, center, V10_ADVANTAGE, low, high)), ratio


def test_v10_gspo():
    value_and_grad = jax.jit(jax.value_and_grad(level_loss, has_aux=True), static_argnums=1)
    (loss, ratio), gradient = value_and_grad(jnp.asarray(V10_LOGP), "row", 3e-4, 4e-4)
    np.testing.assert_allclose(ratio[:, 0], [1.0002, 1.0007, 0.9993], rtol=1e-6)
    # float32 log-probs of size 1 carry 1e-7, which is what is left of a sum of terms of size 1.
    np.testing.assert_allclose(loss, -0.00028334, atol=2e-7)
    np.testing.assert_allclose(gradient, [[-0.08335] * 4, [0] * 4, [0] * 4], rtol=1e-5)


@pytest.mark.parametrize("level, ratios, expected", [
    ("step_sum", [1.08329, 1.23368, 0.869358], -0.126417),
    ("step_mean", [1.0202, 1.07251, 0.932394], -0.0526216),
    ("row", [1.0202, 1.07251, 0.932394], -0.0526216)])
def test_v10_step_ratios(level, ratios, expected):
    loss, ratio = jax.jit(level_loss, static_argnums=1)(jnp.asarray(V10_LOGP_X100), level, 0.2, 0.2)
    np.testing.assert_allclose(ratio[:, 0], ratios, rtol=5e-6)
    np.testing.assert_allclose(loss, expected, rtol=5e-6)


def test_ratio_levels_tell_the_steps_of_a_row_apart():
    # One trajectory in a row: steps 3 (tokens x = 0.1, 0.3), 5 (0.2 around an observation, -0.4), 9 (0.6).
    mask = jnp.array([[0, 1, 1, 0, 1, 0, 1, 1, 0]], bool)
    layout = spans.Layout(mask, jnp.array([7]), jnp.array([[0, 3, 3, 0, 5, 0, 5, 9, 0]]))
    x = jnp.array([[jnp.nan, 0.1, 0.3, 8, 0.2, jnp.inf, -0.4, 0.6, 8]])
    expected = {"token": [0.1, 0.3, 0.2, -0.4, 0.6], "step_sum": [0.4, 0.4, -0.2, -0.2, 0.6],
                "step_mean": [0.2, 0.2, -0.1, -0.1, 0.6], "row": [0.16] * 5}
    for level, values in expected.items():
        out = log_ratio(x, jnp.zeros_like(x), layout, level)
        np.testing.assert_allclose(out[mask], values, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(out[~mask], 0.0)
    # The gradient of a span reaches each of its tokens, and no masked one, garbage or not.
    gradient = jax.grad(lambda x: log_ratio(x, jnp.zeros_like(x), layout, "step_mean")[0, 4])(x)
    np.testing.assert_allclose(gradient, [[0, 0, 0, 0, 0.5, 0, 0.5, 0, 0]])


def test_log_ratios_are_bounded_and_gspo_s_from_above_at_10():
    x = jnp.array([[30.0, 30], [-30, -30]])
    for level, high in (("token", 20), ("step_sum", 20), ("step_mean", 20), ("row", 10)):
        out = log_ratio(x, jnp.zeros((2, 2)), spans.row_local(jnp.ones((2, 2), bool)), level)
        np.testing.assert_array_equal(out, [[high, high], [-20, -20]])


def test_identity_9_levels_agree_on_one_token():
    mask = jnp.array([[True, False]])
    values = [log_ratio(jnp.array([[0.3, 9]]), jnp.zeros((1, 2)), spans.row_local(mask), level)
              for level in policy_loss.RATIO_LEVELS]
    np.testing.assert_array_equal(values, [values[0]] * 4)


@pytest.mark.parametrize("level", policy_loss.RATIO_LEVELS)
def test_log_ratios_by_microbatch_and_on_an_explicit_mesh(level):
    layout = spans.row_local(V10_MASK)
    whole = log_ratio(V10_LOGP_X100, V10_OLD, layout, level)
    rows = [log_ratio(V10_LOGP_X100[r : r + 1], V10_OLD[r : r + 1], spans.row_local(V10_MASK[r : r + 1]), level)
            for r in range(3)]
    np.testing.assert_array_equal(np.concatenate(rows), whole)
    mesh = sharding.make_mesh(1, 1)
    with jax.set_mesh(mesh):  # an operation without an unambiguous sharding would raise here
        logp, old, mask = jax.device_put((V10_LOGP_X100, V10_OLD, V10_MASK), sharding.batch_sharding(mesh))
        summed = jax.jit(jax.value_and_grad(lambda x: jnp.sum(log_ratio(x, old, spans.row_local(mask), level))))
        np.testing.assert_allclose(summed(logp)[0], np.sum(whole), rtol=1e-6)


def test_v11_unbiased_forms():
    logp, ref = jnp.array([-1, -2, -0.5, -30]), jnp.array([-1.2, -1.5, -0.5, -1])
    k3, x = [0.0187308, 0.148721, 0, 10], [0.2, -0.5, 0, -29]
    np.testing.assert_allclose(policy_loss.kl(logp, ref, "k3_straight"), k3, rtol=5e-6, atol=1e-7)
    np.testing.assert_allclose(jax.grad(lambda p: policy_loss.kl(p, ref, "k3_straight").sum())(logp), x, rtol=5e-6)
    # On policy the ratio-weighted form is the same; off policy value and gradient are both weighted by the ratio.
    behavior = logp - jnp.log(jnp.array([1.0, 2, 1, 0.5]))
    for b, r in ((logp, 1.0), (behavior, np.array([1.0, 2, 1, 0.5]))):
        value = policy_loss.kl_ratio_weighted(logp, b, ref)
        gradient = jax.grad(lambda p, b=b: policy_loss.kl_ratio_weighted(p, b, ref).sum())(logp)
        np.testing.assert_allclose(value, r * np.array(k3), rtol=5e-6, atol=1e-7)
        np.testing.assert_allclose(gradient, r * np.array(x), rtol=5e-6)


def test_ratio_weighted_gradient_is_that_of_its_value():
    with jax.enable_x64(True):
        logp, behavior, ref = np.array([-1.0, -2, -0.3]), np.array([-1.1, -1.5, -0.9]), np.array([-1.2, -1.5, -2.0])

        total = jax.jit(lambda x: policy_loss.kl_ratio_weighted(x, behavior, ref).sum())
        gradient = jax.jit(jax.grad(total))(logp)
        differences = [(total(logp + e) - total(logp - e)) / 2e-6 for e in 1e-6 * np.eye(3)]
    np.testing.assert_allclose(gradient, differences, rtol=1e-7)


def test_v11_kl_estimators():
    logp, ref = jnp.array([-1, -2, -0.5, -30]), jnp.array([-1.2, -1.5, -0.5, -1])
    expected = {"k1": [0.2, -0.5, 0, -29], "abs": [0.2, 0.5, 0, 29], "k2": [0.02, 0.125, 0, 420.5],
                "k3": [0.0187308, 0.148721, 0, 10]}
    gradients = {"k1": [1, 1, 1, 1], "k2": [0.2, -0.5, 0, -29], "k3": [0.181269, -0.648721, 0, 0]}
    for name, values in expected.items():
        np.testing.assert_allclose(policy_loss.kl(logp, ref, name), values, rtol=5e-6, atol=1e-7)
    for name, values in gradients.items():
        gradient = jax.grad(lambda x, name=name: policy_loss.kl(x, ref, name).sum())(logp)
        np.testing.assert_allclose(gradient, values, rtol=5e-6, atol=1e-7)


V16_LOGP = jnp.array([-0.90469, -1.69315, -1.28768, -3.30259, -7.90776, 0.147402, 0.193922, -1.35667])
V16_OLD = jnp.array([-1, -1.69315, -1.69315, -3.30259, -3.30259, 0.0986123, 0.0986123, -1])
V16_BEHAVIOR = -jnp.ones(8)
V16_ADVANTAGE = jnp.array([1.0, 1, 1, 1, -1, 1, 1, -1])


def test_v16_generalised_clip():
    ratio, center = policy_loss.ratio_and_center(V16_LOGP, V16_OLD, V16_BEHAVIOR, "generalized")
    np.testing.assert_allclose(ratio, [1.1, 0.5, 0.75, 0.1, 0.001, 3.15, 3.3, 0.7], rtol=1e-5)
    np.testing.assert_allclose(center, [1, 0.5, 0.5, 0.1, 0.1, 3, 3, 1], rtol=1e-5)
    loss = -surrogate(V16_LOGP, V16_OLD, V16_BEHAVIOR, V16_ADVANTAGE)
    np.testing.assert_allclose(loss, [-1.1, -0.5, -0.7, -0.1, 0.001, -3.15, -3.2, 0.8], rtol=1e-5)
    np.testing.assert_allclose(loss.mean(), -0.993625, rtol=1e-5)
    gradient = jax.grad(lambda x: -surrogate(x, V16_OLD, V16_BEHAVIOR, V16_ADVANTAGE).sum())(V16_LOGP)
    np.testing.assert_allclose(gradient, [-1.1, -0.5, 0, -0.1, 0.001, -3.15, 0, 0], rtol=1e-5)


def test_v16_standard_clip_is_another_objective():
    loss = -surrogate(V16_LOGP, V16_OLD, V16_BEHAVIOR, V16_ADVANTAGE, clip="standard")
    np.testing.assert_allclose(loss, [-1.1, -0.5, -0.75, -0.1, 0.8, -1.2, -1.2, 0.8], rtol=1e-5)


def test_clip_is_centred_on_old_over_behavior_not_the_inverse():
    # pi_old/pi_B = 0.5, so the interval is [0.3, 0.7]; around 1 both tokens would stop, around the inverse, 2, neither.
    old, behavior = jnp.log(jnp.array([0.25, 0.25])), jnp.log(jnp.array([0.5, 0.5]))
    logp = jnp.log(jnp.array([0.30, 0.40]))  # ratios 0.6, inside, and 0.8, outside
    gradient = jax.grad(lambda x: surrogate(x, old, behavior, jnp.ones(2)).sum())(logp)
    np.testing.assert_allclose(gradient, [0.6, 0.0], rtol=1e-6)


V16B_OLD = jnp.array([[-1, -1.2, -0.8, -0.5], [-2, -1, -1, 0]])
V16B_LOGP = jnp.array([[-0.9, -0.9, -1.1, -0.5], [-2.1, -1.4, -0.8, 3]])
V16B_ADVANTAGE = jnp.array([[1.0, 1, 1, 1], [-1, -1, -1, 0]])
V16B_MASK = jnp.array([[1, 1, 1, 1], [1, 1, 1, 0]], bool)
V16B_BEHAVIOR = jnp.array([[-1, -0.7, -1.5, -0.4], [-1.7, -1, -1.2, 9]])


def test_v16b_mixed_objective_is_one_weighted_sum():
    weight = masking.aggregation_weights(V16B_MASK, jnp.arange(2), "token_mean", 4)
    on = -surrogate(V16B_LOGP, V16B_OLD, V16B_OLD, V16B_ADVANTAGE)
    off = -surrogate(V16B_LOGP, V16B_OLD, V16B_BEHAVIOR, V16B_ADVANTAGE)
    np.testing.assert_allclose(jnp.sum(weight * on), -0.159964, rtol=1e-5)
    np.testing.assert_allclose(jnp.sum(weight * off), -0.192317, rtol=1e-5)
    stacked = jnp.concatenate([on, off])
    mixed = jnp.concatenate([(1 - 0.125) * weight, 0.125 * weight])
    np.testing.assert_allclose(jnp.sum(mixed * stacked), -0.164008, rtol=1e-5)


def test_infinite_dual_clip_leaves_zero_advantages_finite():
    out = policy_loss.dual_clip(jnp.array([0.0, -2.0, 3.0]), jnp.array([0.0, -1.0, 1.0]), jnp.inf)
    np.testing.assert_array_equal(out, [0.0, -2.0, 3.0])


def test_extreme_log_ratios_stay_finite_in_value_and_gradient():
    logp = jnp.array([-500.0, 500.0])
    value, gradient = jax.value_and_grad(lambda x: surrogate(x, jnp.zeros(2), jnp.zeros(2), -jnp.ones(2)).sum())(logp)
    assert np.isfinite(value) and np.isfinite(gradient).all()


@pytest.mark.parametrize("call", [lambda: policy_loss.kl(jnp.zeros(1), jnp.zeros(1), "k9"),
                                  lambda: policy_loss.ratio_and_center(jnp.zeros(1), jnp.zeros(1), jnp.zeros(1), "none"),
                                  lambda: log_ratio(jnp.zeros((1, 1)), jnp.zeros((1, 1)),
                                                                spans.row_local(jnp.ones((1, 1), bool)), "sentence"),
                                  lambda: masking.aggregation_weights(jnp.ones((1, 1), bool), jnp.zeros(1, jnp.int32), "sum", 4)])
def test_unknown_options_are_named(call):
    with pytest.raises(ValueError, match="config.*is unknown"):
        call()


@pytest.mark.parametrize("level", policy_loss.RATIO_LEVELS)
def test_identity_7_on_policy_gradient_is_reinforce(level):
    # At logp = logp_old the ratio is 1 and active: a token's gradient is its weight times its advantage. Where a span
    # shares its ratio, a sum hands each of its tokens the whole span's weight, a mean the span's average.
    logp = jnp.asarray(V10_OLD)
    weight = masking.aggregation_weights(V10_MASK, jnp.arange(3), "row_mean", 4)
    gradient = jax.grad(lambda x: level_loss(x, level, 0.2, 0.2)[0])(logp)
    scale = V10_MASK.sum(axis=1, keepdims=True) if level == "step_sum" else 1.0
    np.testing.assert_allclose(gradient, -weight * V10_ADVANTAGE * scale, rtol=1e-6)
