"""The policy objective, one action token at a time: clipped surrogate with its centre, dual clip, KL estimators.

RSPO's mixed update is  J = (1 - alpha) J_on + alpha J_off  (RSPO eq. 1). J_on and J_off are the same formula, eq. 3 and 4:
on-policy data has logp_behavior = logp_old, so its clip is centred on 1. The shares (1 - alpha) and alpha arrive in the
token weights (masking.aggregation_weights), so the whole objective is one weighted sum.
"""

import chex
import jax.numpy as jnp

LOG_RATIO_LIMIT = 20.0
KL_LIMIT = 10.0
KL_ESTIMATORS = ("k1", "abs", "k2", "k3")
CLIPS = ("generalized", "standard")


def ratio_and_center(logp, logp_old, logp_behavior, clip):
    """Importance ratio r = pi / pi_behavior and the centre of its clip (RSPO eq. 4).

    generalized: c = pi_old / pi_behavior, so that the trust region lies around the current agent.
    standard: c = 1, the ordinary clip, for RSPO's ablation.

    Args:
        logp, logp_old, logp_behavior: [...] log-probs of the sampled tokens; log-ratios are clamped to +-20.

    Returns:
        ratio [...], differentiable through logp, and center [...].
    """
    chex.assert_equal_shape([logp, logp_old, logp_behavior])
    if clip not in CLIPS:
        raise ValueError(f"config.clip={clip!r} is unknown; use one of {', '.join(CLIPS)}.")
    ratio = jnp.exp(jnp.clip(logp - logp_behavior, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    center = jnp.exp(jnp.clip(logp_old - logp_behavior, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    return ratio, center if clip == "generalized" else jnp.ones_like(center)


def clipped_surrogate(ratio, center, advantage, epsilon_low, epsilon_high):
    """Clipped surrogate of each action token, to be maximised (RSPO eq. 3 and 4; DAPO's asymmetric clip).

        J = min(r A, clip(r, c - epsilon_low, c + epsilon_high) A)

    The gradient with respect to logp is r A while active, and it is active at pi = pi_old whatever c is. Where c is below
    epsilon_low the lower bound is negative: tokens with A < 0 are then never clipped (update metrics count them).

    Args:
        ratio, center, advantage: [...].
        epsilon_low, epsilon_high: positive numbers.

    Returns:
        [...].
    """
    chex.assert_equal_shape([ratio, center, advantage])
    clipped = jnp.clip(ratio, center - epsilon_low, center + epsilon_high)
    return jnp.minimum(ratio * advantage, clipped * advantage)


def dual_clip(surrogate, advantage, limit):
    """Bounds how hard a token with A < 0 can push:  max(J, limit A)  where A < 0 (dual-clip PPO).

    Args:
        surrogate, advantage: [...].
        limit: number or [...]; `inf` leaves the surrogate as it is.

    Returns:
        [...].
    """
    chex.assert_equal_shape([surrogate, advantage])
    # Where A = 0 the product with an infinite limit would be nan.
    floor = jnp.where(advantage < 0, limit * jnp.where(advantage < 0, advantage, -1.0), -jnp.inf)
    return jnp.maximum(surrogate, floor)


def kl(logp, logp_ref, estimator):
    """Estimate of KL(pi || pi_ref) at each sampled token, with x = logp - logp_ref.

        k1 = x,   abs = |x|,   k2 = x^2 / 2,   k3 = exp(-x) + x - 1, clamped to +-10 (gradient 0 where clamped)

    Args:
        logp, logp_ref: [...].
        estimator: one of KL_ESTIMATORS.

    Returns:
        [...].
    """
    chex.assert_equal_shape([logp, logp_ref])
    x = logp - logp_ref
    if estimator == "k1":
        return x
    if estimator == "abs":
        return jnp.abs(x)
    if estimator == "k2":
        return jnp.square(x) / 2
    if estimator == "k3":
        exponent = jnp.clip(-x, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        return jnp.clip(jnp.exp(exponent) - exponent - 1, -KL_LIMIT, KL_LIMIT)
    raise ValueError(f"config.kl_estimator={estimator!r} is unknown; use one of {', '.join(KL_ESTIMATORS)}.")
