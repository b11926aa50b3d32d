"""Heads on a decoder's states: the process reward model of RSPO eq. 5, and the critic's value."""

import jax
import jax.numpy as jnp


def init_prm_head(key: jax.Array, d: int, width: int) -> dict[str, jax.Array]:
    """fc1 [d, w] normal(d^-1/2), fc2 [w, 1] zero: an untrained head gives every step the reward 0."""
    return {
        "fc1": jax.random.normal(key, (d, width)) * d**-0.5,
        "b1": jnp.zeros((width,)),
        "fc2": jnp.zeros((width, 1)),
        "b2": jnp.zeros((1,)),
    }


def prm_head(params, h: jax.Array) -> jax.Array:
    """The dense reward of a step from the state of its last token: tanh(fc2 gelu(fc1 h)), in (-1, 1) (RSPO eq. 5).

    Args:
        h: [..., d], any float dtype; the head computes in float32.
    Returns:
        [...] float32.
    """
    inner = jax.nn.gelu(h.astype(jnp.float32) @ params["fc1"] + params["b1"], approximate=False)
    return jnp.tanh((inner @ params["fc2"] + params["b2"])[..., 0])


def init_value_head(d: int) -> dict[str, jax.Array]:
    """weight [d] and bias [], both zero: an untrained critic expects nothing."""
    return {"weight": jnp.zeros((d,)), "bias": jnp.zeros(())}


def values_after(params, states: jax.Array) -> jax.Array:
    """The value of the state behind each token, [R, L] float32, from the states [R, L, d] at these tokens."""
    return states.astype(jnp.float32) @ params["weight"] + params["bias"]


def values_before(params, states: jax.Array) -> jax.Array:
    """The value of the state before each token: that of token l is read at l - 1, and before token 0 it is 0.

    Args:
        states: [R, L, d], any float dtype; the head computes in float32.
    Returns:
        [R, L] float32.
    """
    return jnp.pad(values_after(params, states)[:, :-1], ((0, 0), (1, 0)))
