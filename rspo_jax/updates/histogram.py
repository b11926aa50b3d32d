"""Histograms of log-ratios with fixed bins: counts add up over micro-batches and devices, and quantiles come out of them.

Bins have equal width in asinh(x / 1e-4). Around 0, where on-policy data lies, they are 1e-5 wide; further out they are 10%
of the value wide, up to the +-20 at which log-ratios are clamped. A quantile is the middle of its bin: 0 stays exactly 0.
"""

import math

import jax
import jax.numpy as jnp

from rspo_jax.algorithms import policy_loss

UNIT, WIDTH = 1e-4, 0.1
HALF = round(math.asinh(policy_loss.LOG_RATIO_LIMIT / UNIT) / WIDTH)
BINS = 2 * HALF + 1


def counts(values, mask):
    """How many of `values` lie in each bin.

    Args:
        values: [R, L], finite where mask; what lies beyond +-20 is counted in the outermost bins.
        mask: [R, L] bool.

    Returns:
        [BINS] int32.
    """
    place = jnp.round(jnp.arcsinh(jnp.where(mask, values, 0.0) / UNIT) / WIDTH)
    place = jnp.clip(place, -HALF, HALF).astype(jnp.int32) + HALF

    def of_row(place, mask):
        return jax.ops.segment_sum(mask.astype(jnp.int32), place, num_segments=BINS)

    return jnp.sum(jax.vmap(of_row)(place, mask), axis=0)  # by vmap, because rows may be sharded


def quantile(counted, share):
    """The smallest bin that has `share` of all counts at or below it; nan where nothing was counted. Host side.

    Args:
        counted: [BINS] counts.
        share: in (0, 1].
    """
    counted = [int(count) for count in counted]
    below, wanted = 0, share * sum(counted)
    for place, count in enumerate(counted):
        below += count
        if count and below >= wanted:
            return UNIT * math.sinh((place - HALF) * WIDTH)
    return math.nan
