"""V18, the regression PRM of RSPO, and V15, iStar's trajectory preference, worked by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rspo_jax.algorithms import reward_loss

MLP = np.array([[0.2, -0.1, 0.5], [1, 7, -7], [-0.3, -0.4, 9]])  # garbage on padding
MASK = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0]], bool)
OUTCOME = np.array([1.0, 0, 1])


def test_v18_regression():
    rewards = jnp.tanh(MLP)
    np.testing.assert_allclose(rewards[0], [0.197375, -0.099668, 0.462117], rtol=1e-5)
    np.testing.assert_allclose(reward_loss.predicted_return(rewards, MASK), [0.559824, 0.761594, -0.671262], rtol=1e-5)
    np.testing.assert_allclose(reward_loss.regression(rewards, MASK, OUTCOME).mean(), 1.18897, rtol=1e-5)


def test_v18_gradient():
    gradient = jax.grad(lambda x: reward_loss.regression(jnp.tanh(x), MASK, OUTCOME).mean())(MLP)
    expected = [[-0.282018, -0.290535, -0.230783], [0.213233, 0, 0], [-1.01962, -0.953331, 0]]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_an_episode_without_steps_predicts_zero():
    np.testing.assert_array_equal(reward_loss.predicted_return(np.full((1, 2), np.nan), np.zeros((1, 2), bool)), [0.0])


# V15: group 0 has one success, step logits 0.2, 0.1, and two failures, 0.1 and -0.2, 0, 0.1; group 1 a success alone.
# The last two rows are an unscored episode of group 0 and padding.
STEP_LOGITS = np.array([[0.2, 0.1, 9], [0.1, -9, 9], [-0.2, 0, 0.1], [0.3, 0.1, 7], [5, 5, 5], [np.nan] * 3])
STEPS = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0]], bool)
POSITIVE = np.array([1, 0, 0, 1, 0, 0], bool)
NEGATIVE = np.array([0, 1, 1, 0, 0, 0], bool)
GROUP = np.array([0, 0, 0, 1, 0, 0])


@functools.partial(jax.jit, static_argnums=1)
def preference(step_logits, aggregation="sum"):
    logits = reward_loss.trajectory_logits(step_logits, STEPS, aggregation)
    return reward_loss.preference(logits, POSITIVE, NEGATIVE, GROUP)


def test_v15_sum_over_steps():
    # z = 0.3 | 0.1, -0.1: margins 0.2 and 0.4. softplus(-0.2) = 0.598139, softplus(-0.4) = 0.513015.
    loss, pairs = preference(STEP_LOGITS)
    assert int(pairs) == 2
    np.testing.assert_allclose(loss, (0.598139 + 0.513015) / 2, rtol=1e-6)
    # sigma(-0.2) = 0.450166 and sigma(-0.4) = 0.401312, each over 2 pairs.
    logits = reward_loss.trajectory_logits(STEP_LOGITS, STEPS, "sum")
    weights = reward_loss.preference_weights(logits, POSITIVE, NEGATIVE, GROUP)
    np.testing.assert_allclose(weights, [-0.425739, 0.225083, 0.200656, 0, 0, 0], rtol=2e-6)
    np.testing.assert_allclose(reward_loss.preference_accuracy(logits, POSITIVE, NEGATIVE, GROUP), 1.0)
    np.testing.assert_allclose(reward_loss.preference_accuracy(-logits, POSITIVE, NEGATIVE, GROUP), 0.0)
    np.testing.assert_allclose(reward_loss.preference_margin(logits, POSITIVE, NEGATIVE, GROUP), 0.3, rtol=1e-6)


def test_v15_mean_over_steps():
    # z = 0.15 | 0.1, -1/30: margins 0.05 and 0.183333. log(1 + exp(-0.05)) = 0.668460, log(1 + exp(-0.183333)) = 0.605676.
    np.testing.assert_allclose(preference(STEP_LOGITS, "mean")[0], np.log1p(np.exp([-0.05, -0.55 / 3])).mean(), rtol=1e-6)


@pytest.mark.parametrize("aggregation", reward_loss.LOGITS)
def test_v15_gradient_in_closed_form_by_autodiff_and_by_differences(aggregation):
    logits = reward_loss.trajectory_logits(STEP_LOGITS, STEPS, aggregation)
    weights = np.asarray(reward_loss.preference_weights(logits, POSITIVE, NEGATIVE, GROUP))[:, None] * STEPS
    if aggregation == "mean":
        weights = weights / np.maximum(STEPS.sum(axis=1, keepdims=True), 1)
    gradient = jax.grad(lambda x: preference(x, aggregation)[0])(STEP_LOGITS)
    np.testing.assert_allclose(gradient, weights, rtol=1e-5, atol=1e-8)
    with jax.enable_x64(True):
        for i, t in ((0, 1), (1, 0), (2, 2), (3, 0), (4, 1)):
            step = np.zeros_like(STEP_LOGITS)
            step[i, t] = 1e-6
            difference = (preference(STEP_LOGITS + step, aggregation)[0] - preference(STEP_LOGITS - step, aggregation)[0]) / 2e-6
            np.testing.assert_allclose(weights[i, t], difference, rtol=1e-5, atol=1e-9)


def test_without_a_pair_loss_weights_and_count_are_zero():
    for positive, negative in ((POSITIVE, np.zeros(6, bool)), (np.zeros(6, bool), NEGATIVE), (GROUP == 1, NEGATIVE)):
        logits = reward_loss.trajectory_logits(STEP_LOGITS, STEPS, "sum")
        loss, pairs = reward_loss.preference(logits, positive, negative, GROUP)
        assert (float(loss), int(pairs)) == (0.0, 0)
        np.testing.assert_array_equal(reward_loss.preference_weights(logits, positive, negative, GROUP), 0.0)
        assert reward_loss.preference_margin(logits, positive, negative, GROUP) == 0.0


def test_identity_6_log_2_at_the_start_and_the_sign_of_swapped_labels():
    zero = np.zeros(6)
    np.testing.assert_allclose(reward_loss.preference(zero, POSITIVE, NEGATIVE, GROUP)[0], np.log(2), rtol=1e-6)
    scored = POSITIVE | NEGATIVE
    weights = reward_loss.preference_weights(zero, POSITIVE, NEGATIVE, GROUP)
    np.testing.assert_allclose(reward_loss.preference_weights(zero, scored & ~POSITIVE, scored & ~NEGATIVE, GROUP), -weights)


def test_extreme_margins_stay_finite():
    logits = np.array([-500.0, 500, 500, 0, 0, 0])
    assert np.isfinite(reward_loss.preference(logits, POSITIVE, NEGATIVE, GROUP)[0])
    np.testing.assert_allclose(reward_loss.preference(logits, POSITIVE, NEGATIVE, GROUP)[0], 1000.0)
    np.testing.assert_allclose(reward_loss.cross_entropy(logits[:2], np.array([True, False])), [500, 500])


def test_unknown_logit_is_named():
    with pytest.raises(ValueError, match="config.istar.logit='max'"):
        reward_loss.trajectory_logits(STEP_LOGITS, STEPS, "max")
