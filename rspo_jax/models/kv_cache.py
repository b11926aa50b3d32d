"""Keys and values of the tokens that the slots have read so far.

A slot is one live episode; its cache survives from turn to turn. `decoder.hidden_cached` reads the cache in every layer
and appends once, after the last layer, so that under donation the update happens in place: a cache that is also written
inside the scan over layers is copied whole by XLA in every step.

Keys lie as [.., c, s] and values as [.., s, c], the orders in which attention multiplies them; with both as [.., s, c]
a decode step on XLA:CPU takes 1.4 times as long.
"""

import dataclasses

import jax
import jax.numpy as jnp

from rspo_jax import sharding
from rspo_jax.models import config as model_config

AXES = ("rows", "layers", "kv_heads", None, None)  # of keys and of values


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """Only the first `length[s]` positions of slot s are ever attended to; what lies behind them is arbitrary but finite."""

    keys: jax.Array  # [S, layers, k, c, s], compute dtype
    values: jax.Array  # [S, layers, k, s, c], compute dtype
    length: jax.Array  # [S] int32

    @property
    def size(self) -> int:
        """Positions per slot. The caller keeps length + new tokens <= size; see `decoder.hidden_cached`."""
        return self.values.shape[3]


def empty(config: model_config.DecoderConfig, slots: int, size: int) -> Cache:
    """A cache of `slots` empty slots with room for `size` tokens each."""
    dtype = jnp.dtype(config.compute_dtype)
    outer = (slots, config.num_hidden_layers, config.num_key_value_heads)
    return Cache(
        keys=jnp.zeros((*outer, config.head_dim, size), dtype, out_sharding=sharding.spec(*AXES)),
        values=jnp.zeros((*outer, size, config.head_dim), dtype, out_sharding=sharding.spec(*AXES)),
        length=jnp.zeros((slots,), jnp.int32, out_sharding=sharding.spec("rows")),
    )


def append(cache: Cache, new_keys: jax.Array, new_values: jax.Array, lengths: jax.Array) -> Cache:
    """Writes the first lengths[s] of W new tokens behind slot s's own length.

    A token that is not real, or for which there is no room, is written nowhere: its position is put out of range, and
    the scatter drops it. (A dynamic_update_slice would clamp, that is overwrite the end of the slot.)

    Args:
        new_keys: [layers, S, W, k, c].
        new_values: [layers, S, W, k, c].
        lengths: [S] int32, 0 for a slot that takes no part.
    """
    offset = jnp.arange(new_keys.shape[2])
    position = jnp.where(offset < lengths[:, None], cache.length[:, None] + offset, cache.size)  # [S, W]

    def write(keys, values, new_keys, new_values, position):  # one slot: [layers, k, c, s], [layers, k, s, c]
        keys = keys.at[:, :, :, position].set(jnp.moveaxis(new_keys, 1, 3), mode="drop")
        values = values.at[:, :, position].set(jnp.moveaxis(new_values, 1, 2), mode="drop")
        return keys, values

    keys, values = jax.vmap(write, in_axes=(0, 0, 1, 1, 0))(
        cache.keys, cache.values, new_keys, new_values, position
    )
    return Cache(keys, values, cache.length + lengths)
