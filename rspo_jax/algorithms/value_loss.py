"""The critic's loss in PPO: squared error to the return, with the new value held near the old one."""

import chex
import jax.numpy as jnp


def clipped(values, values_old, returns, limit, factor):
    """Clipped value loss of each token.

        L = factor max((v - R)^2, (clip(v, v_old - limit, v_old + limit) - R)^2)

    Args:
        values, values_old, returns: [...]; garbage outside the action mask, which the caller's weights leave out.
        limit: 0.5 in the public code.
        factor: 1 in the verl behind verl-agent, 0.5 in the verl of 2026; silently a factor 2 on the critic's gradient.

    Returns:
        [...].
    """
    chex.assert_equal_shape([values, values_old, returns])
    near = jnp.clip(values, values_old - limit, values_old + limit)
    return factor * jnp.maximum(jnp.square(values - returns), jnp.square(near - returns))


def is_clipped(values, values_old, returns, limit):
    """Marks the tokens, [...] bool, whose loss is the clipped one, so that their gradient is 0; for the metrics."""
    chex.assert_equal_shape([values, values_old, returns])
    near = jnp.clip(values, values_old - limit, values_old + limit)
    return jnp.square(near - returns) > jnp.square(values - returns)
