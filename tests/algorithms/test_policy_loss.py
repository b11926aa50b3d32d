"""V09, V11, V16 and V16b of the specification, and the limit cases of the clipped surrogate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rspo_jax.algorithms import masking, policy_loss


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
                                  lambda: masking.aggregation_weights(jnp.ones((1, 1), bool), jnp.zeros(1, jnp.int32), "sum", 4)])
def test_unknown_options_are_named(call):
    with pytest.raises(ValueError, match="config.*is unknown"):
        call()
