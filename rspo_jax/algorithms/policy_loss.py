"""The policy objective, one action token at a time: clipped surrogate with its centre, dual clip, KL estimators.

RSPO's mixed update is  J = (1 - alpha) J_on + alpha J_off  (RSPO eq. 1). J_on and J_off are the same formula, eq. 3 and 4:
on-policy data has logp_behavior = logp_old, so its clip is centred on 1. The shares (1 - alpha) and alpha arrive in the
token weights (masking.aggregation_weights), so the whole objective is one weighted sum.
"""

import chex
import jax
import jax.numpy as jnp

from rspo_jax.algorithms import masking, spans

LOG_RATIO_LIMIT = 20.0
KL_LIMIT = 10.0
ROW_LOG_RATIO_LIMIT = 10.0
KL_ESTIMATORS = ("k1", "abs", "k2", "k3", "k3_straight")
CLIPS = ("generalized", "standard")
RATIO_LEVELS = ("token", "step_sum", "step_mean", "row")


def log_ratio(logp, logp_behavior, layout, level):
    """Logarithm of the importance ratio of each action token, or of the step or row that the token belongs to.

    | level     | log r of token l                                                    | source               |
    | token     | x_l = logp_l - logp_behavior_l                                      | PPO, the public code |
    | step_sum  | sum of x over the tokens of its step: the step's likelihood ratio   | iStar eq. 6          |
    | step_mean | their mean: length-normalised; wants an epsilon of 3e-4 or so       | after GSPO           |
    | row       | mean of x over all action tokens of its row, at most 10             | GSPO                 |

    All tokens of a span share its ratio and its gradient, so with `row_mean` weights the objective is GSPO's: each token's
    gradient is A r / length. Spans lie within a row, so micro-batches may split a batch between rows. With the results for
    logp and logp_old in their place, and 0 as the behaviour, ratio_and_center makes ratio and centre of spans.

    Args:
        logp, logp_behavior: [R, L]; garbage outside the action mask.
        layout: spans.Layout.
        level: one of RATIO_LEVELS.

    Returns:
        [R, L], clamped to +-20, 0 outside the action mask.
    """
    mask = layout.action_mask
    chex.assert_equal_shape([logp, logp_behavior, mask, layout.step])
    x = jnp.where(mask, logp - logp_behavior, 0.0)
    if level == "token":
        total = x
    elif level in ("step_sum", "step_mean"):
        # Numbered by their order in the row, steps are fewer than its tokens.
        span = jnp.maximum(jnp.cumsum(spans.first_tokens(layout), axis=1) - 1, 0)
        total = _span_sums(x, span)
        if level == "step_mean":
            total = total / jnp.maximum(_span_sums(mask.astype(x.dtype), span), 1.0)
    elif level == "row":
        total = jnp.minimum(masking.mean(x, mask, axis=1)[:, None], ROW_LOG_RATIO_LIMIT)
    else:
        raise ValueError(f"config.policy.ratio={level!r} is unknown; use one of {', '.join(RATIO_LEVELS)}.")
    return jnp.where(mask, jnp.clip(total, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), 0.0)


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

    As a loss, k1 pushes nowhere (gradient 1) and k3 is biased (gradient 1 - exp(-x)); k2 has the gradient of the KL on
    policy, x. k3_straight has the value of k3 and the gradient of k2 everywhere.

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
    if estimator == "k3_straight":
        k2 = kl(logp, logp_ref, "k2")
        return jax.lax.stop_gradient(kl(logp, logp_ref, "k3")) + (k2 - jax.lax.stop_gradient(k2))
    raise ValueError(f"config.kl_estimator={estimator!r} is unknown; use one of {', '.join(KL_ESTIMATORS)}.")


def kl_ratio_weighted(logp, logp_behavior, logp_ref):
    """k3 weighted by the differentiable ratio r = pi / pi_behavior, so that it is unbiased off policy too (trl).

        value r k3(x),   gradient d(r k3)/dlogp = r (k3 + 1 - exp(-x)) = r x,   x = logp - logp_ref

    The gradient is taken in its closed form: where k3 is large its two halves cancel, and where it is clamped one of them
    would be missing. It is 0 where the log-ratio is clamped to +-20. On policy this is k3_straight.

    Args:
        logp, logp_behavior, logp_ref: [...].

    Returns:
        [...].
    """
    chex.assert_equal_shape([logp, logp_behavior, logp_ref])
    ratio = jnp.exp(jnp.clip(logp - logp_behavior, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    push = ratio * jax.lax.stop_gradient(logp - logp_ref)
    return jax.lax.stop_gradient(ratio * kl(logp, logp_ref, "k3")) + (push - jax.lax.stop_gradient(push))


def _span_sums(values, span):
    """Sum of values, [R, L], over the tokens with the same span number, [R, L] in 0..L-1, at each of these tokens."""
    def one_row(values, span):
        return jax.ops.segment_sum(values, span, num_segments=values.shape[0])[span]

    return jax.vmap(one_row)(values, span)  # by vmap, because rows may be sharded and a plain scatter would be ambiguous
