"""Heads on a decoder's states: the process reward model of RSPO eq. 5."""

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
