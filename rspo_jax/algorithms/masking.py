"""Reductions over padded axes. Every mean in rspo_jax that could see padding goes through here.

An objective is written as one global weighted sum, `sum(weight * per_token)`. The aggregation mode of a paper is then
nothing but the weights, and splitting a batch into micro-batches or over devices changes nothing.
"""

import chex
import jax
import jax.numpy as jnp

WHITEN_EPSILON = 1e-8  # added to the variance, under the root
AGGREGATIONS = ("token_mean", "trajectory_mean", "row_mean", "row_sum", "sum_over_length", "dr_grpo")


def mean(values, mask, axis=None):
    """Mean of `values` where `mask`; 0 where the mask is empty.

    Args:
        values: any shape.
        mask: bool, same shape. Masked values may be garbage, inf or nan.
        axis: as in numpy.
    """
    chex.assert_equal_shape([values, mask])
    total = jnp.sum(jnp.where(mask, values, 0.0), axis=axis)
    return total / jnp.maximum(jnp.sum(mask, axis=axis), 1)


def variance(values, mask):
    """Sample variance (ddof 1) of `values` where `mask`, with a centred second pass; 0 where fewer than two entries count.

    Args:
        values: any shape, finite or masked.
        mask: bool, same shape.

    Returns:
        scalar.
    """
    chex.assert_equal_shape([values, mask])
    deviation = jnp.where(mask, values - mean(values, mask), 0.0)
    return jnp.sum(jnp.square(deviation)) / jnp.maximum(jnp.sum(mask) - 1, 1)


def whiten(values, mask):
    """Standardises over the whole batch:  (x - mean) / sqrt(variance + 1e-8)  where `mask`, 0 elsewhere.

    The epsilon lies under the root, as in the public code, unlike that of the group statistics. Fewer than two entries, or
    entries that are all equal, give exactly 0: a float32 mean of equal numbers is off by an ulp, which would be amplified.

    Args:
        values: any shape, finite or masked.
        mask: bool, same shape.

    Returns:
        same shape.
    """
    chex.assert_equal_shape([values, mask])
    equal = jnp.max(jnp.where(mask, values, -jnp.inf)) <= jnp.min(jnp.where(mask, values, jnp.inf))
    scaled = (values - mean(values, mask)) * jax.lax.rsqrt(variance(values, mask) + WHITEN_EPSILON)
    return jnp.where(mask & ~equal, scaled, 0.0)


def largest(values, mask):
    """Largest of `values` [...] where `mask` [...]; 0 where the mask is empty."""
    chex.assert_equal_shape([values, mask])
    return jnp.where(jnp.any(mask), jnp.max(jnp.where(mask, values, -jnp.inf)), 0.0)


def aggregation_weights(action_mask, trajectory, aggregation, max_length):
    """Weight of each token in an objective.

    | aggregation     | value of sum(weight * x)                                      | in the public code    |
    | token_mean      | mean over all action tokens of the batch                      | token-mean            |
    | trajectory_mean | mean over trajectories of the mean over their tokens          | the papers' 1/N sum   |
    | row_mean        | mean over rows of the mean over their tokens                  | seq-mean-token-mean   |
    | row_sum         | mean over rows of the sum over their tokens                   | seq-mean-token-sum    |
    | sum_over_length | sum over all tokens / max_length, not divided by rows         | seq-mean-token-sum-norm |
    | dr_grpo         | mean over rows of the sum over their tokens / max_length      | Dr.GRPO as published  |

    Rows and trajectories without action tokens (padding) are not counted; a batch without any has weights 0.

    Args:
        action_mask: [R, L] bool.
        trajectory: [R] int32, in 0..R-1.
        aggregation: one of AGGREGATIONS.
        max_length: tokens, a constant of the run; read by sum_over_length and dr_grpo.

    Returns:
        [R, L] float32.
    """
    chex.assert_rank([action_mask, trajectory], [2, 1])
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"config.aggregation={aggregation!r} is unknown; use one of {', '.join(AGGREGATIONS)}.")
    mask = action_mask.astype(jnp.float32)
    if aggregation == "token_mean":
        return mask / jnp.maximum(jnp.sum(mask), 1.0)
    if aggregation == "sum_over_length":
        return mask / max_length
    tokens_of_row = jnp.sum(mask, axis=1)
    if aggregation in ("row_sum", "dr_grpo"):
        scale = max_length if aggregation == "dr_grpo" else 1.0
        return mask / (scale * jnp.maximum(jnp.sum(tokens_of_row > 0), 1.0))
    unit = trajectory if aggregation == "trajectory_mean" else jnp.arange(len(trajectory))
    tokens_of_unit = jnp.zeros(len(trajectory)).at[unit].add(tokens_of_row)
    units = jnp.sum(tokens_of_unit > 0)
    return mask / jnp.maximum(tokens_of_unit[unit] * units, 1.0)[:, None]
