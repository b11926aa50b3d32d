"""The two computations of a sampler on the device: reading new tokens into the cache, and decoding from it.

Both work on a group of G of the S slots, whose part of the cache is taken out and put back: XLA:CPU takes as long for a
slot in a group of 8 as in one of 32, but a group looks only at as many positions as its own longest row needs. Both are
pure, take positions from the caller, and leave nothing of width V behind. `generation` decides what is read when, and in
which shapes.
"""

import dataclasses

import jax
import jax.numpy as jnp

from rspo_jax import sharding
from rspo_jax.models import config as model_config
from rspo_jax.models import decoder, kv_cache


def read_tokens(params, config: model_config.DecoderConfig, kv: kv_cache.Cache, hidden, slots, tokens, lengths, written,
                size: int):
    """Appends new tokens to the cache of a group, and keeps the state of the last one of each slot.

    Args:
        hidden: [S, d], the states kept so far.
        slots: [G] int32, each slot once.
        tokens: [G, W] int32.
        lengths: [G] int32, real tokens of each; 0 for a slot that only fills up the group.
        written: [G] int32, tokens that each slot's row has already.
        size: static; positions of the cache to look at, at least written + lengths.
    Returns:
        The cache, whose own length means nothing, and hidden.
    """
    part = _take(kv, slots, size, written)
    states, part = decoder.hidden_cached(params, config, tokens, lengths, part, size)
    # By comparison: on an explicit mesh a gather of one position per row would need a sharding of its own.
    lengths = sharding.shard(lengths, ("rows",))
    is_last = jnp.arange(tokens.shape[1]) == lengths[:, None] - 1
    last = jnp.sum(jnp.where(is_last[..., None], states, 0), axis=1)
    last = sharding.shard(jnp.where((lengths > 0)[:, None], last, _rows_of(hidden, slots)), (None, None))
    hidden = hidden.at[slots].set(last, unique_indices=True, out_sharding=sharding.spec("rows", None))
    return _put(kv, slots, size, part), hidden


def _rows_of(hidden, slots):
    return hidden.at[slots].get(out_sharding=sharding.spec("rows", None))


def _take(kv, slots, size, written):
    """The first `size` positions of a group."""
    axes = sharding.spec(*kv_cache.AXES)
    keys = kv.keys.at[slots, :, :, :, :size].get(out_sharding=axes)
    values = kv.values.at[slots, :, :, :size].get(out_sharding=axes)
    return kv_cache.Cache(keys, values, sharding.shard(written, ("rows",)))


def _put(kv, slots, size, part):
    """Writes back what `_take` took. Every device gets all of `part` and keeps the slots that are its own."""
    axes, everywhere = sharding.spec(*kv_cache.AXES), (None, *kv_cache.AXES[1:])
    keys, values = sharding.shard(part.keys, everywhere), sharding.shard(part.values, everywhere)
    keys = kv.keys.at[slots, :, :, :, :size].set(keys, unique_indices=True, out_sharding=axes)
    values = kv.values.at[slots, :, :, :size].set(values, unique_indices=True, out_sharding=axes)
    return kv_cache.Cache(keys, values, kv.length)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Draws:
    """What a group has drawn so far, in M columns."""

    tokens: jax.Array  # [G, M] int32
    logp: jax.Array  # [G, M]
    count: jax.Array  # [G] int32
    stopped: jax.Array  # [G] bool, the last token is a stop token
    finite: jax.Array  # [G] bool, so were all logits that were drawn from


def sample_tokens(params, config: model_config.DecoderConfig, kv: kv_cache.Cache, hidden, slots, written, budget, key_data,
                  temperature, stop_tokens: tuple[int, ...], vocab_limit: int, columns: int, size: int):
    """Draws up to budget[g] tokens for each slot of a group, until all have drawn a stop token or used up their budget.

    Args:
        hidden: [S, d], of which each slot's first token is drawn.
        slots: [G] int32, each slot once.
        written: [G] int32, tokens that each slot's row has in the cache.
        budget: [G] int32, at most `columns`; 0 for a slot that only fills up the group.
        key_data: [G, 2] uint32; token i of a slot is drawn with fold_in(its key, i).
        temperature: [] float32, see `draw`.
        size: static; positions of the cache to look at, at least written + budget - 1.
    Returns:
        The cache, which now holds all drawn tokens but each slot's last, and Draws.
    """
    unembedding = decoder.unembedding(params, config)
    key_data, budget = sharding.shard(key_data, ("rows", None)), sharding.shard(budget, ("rows",))
    keys = jax.random.wrap_key_data(key_data, impl="threefry2x32")

    def record(i, hidden, active, draws):
        token_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
        token, logp, finite = draw(hidden, unembedding, token_keys, temperature, vocab_limit)
        column = active[:, None] & (jnp.arange(columns) == i)
        draws = Draws(
            tokens=jnp.where(column, token[:, None], draws.tokens),
            logp=jnp.where(column, logp[:, None], draws.logp),
            count=draws.count + active,
            stopped=draws.stopped | active & jnp.any(token[:, None] == jnp.asarray(stop_tokens), axis=1),
            finite=draws.finite & (finite | ~active),
        )
        return i + 1, token, active & ~draws.stopped & draws.finite & (draws.count < budget), draws

    def step(carry):
        part, i, token, active, draws = carry
        states, part = decoder.hidden_cached(params, config, token[:, None], active.astype(jnp.int32), part, size)
        return part, *record(i, states[:, 0], active, draws)

    no = budget < 0
    nothing = jnp.zeros_like(budget, shape=(len(budget), columns), out_sharding=sharding.spec("rows", None))
    draws = Draws(nothing, nothing.astype(jnp.float32), jnp.zeros_like(budget), no, ~no)
    first = (_take(kv, slots, size, written), *record(0, _rows_of(hidden, slots), budget > 0, draws))
    part, _, _, _, draws = jax.lax.while_loop(lambda carry: jnp.any(carry[3]), step, first)
    return _put(kv, slots, size, part), draws


def draw(hidden, unembedding, keys, temperature, vocab_limit: int):
    """One token per slot from softmax(logits / temperature); at temperature 0 the likeliest one.

    Sampling is argmax(logits / temperature + Gumbel noise), in float32.

    Args:
        hidden: [G, d].
        unembedding: [V, d].
        keys: [G] random keys.
        temperature: [] float32; at 0 the log-probs are those of the raw logits.
        vocab_limit: ids at and above it are never drawn and have no probability.
    Returns:
        token [G] int32, its log-prob [G], and whether the slot's logits are finite [G] bool.
    """
    logits = jnp.einsum("sd,vd->sv", hidden, unembedding.astype(hidden.dtype), preferred_element_type=jnp.float32)
    ids = jnp.arange(logits.shape[1], dtype=jnp.int32)
    finite = jnp.all(jnp.isfinite(logits), axis=1)
    scaled = jnp.where(ids < vocab_limit, logits / jnp.where(temperature > 0, temperature, 1), -jnp.inf)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, ids.shape, jnp.float32))(keys)
    noisy = scaled + jnp.where(temperature > 0, noise, 0)
    # The first maximum. XLA:CPU does not vectorise argmax, which takes as long as everything else here together.
    token = jnp.min(jnp.where(noisy == jnp.max(noisy, axis=1, keepdims=True), ids, vocab_limit - 1), axis=1)
    # By comparison rather than take_along_axis, because the vocabulary may be sharded.
    logp = jnp.sum(jnp.where(ids == token[:, None], scaled, 0), axis=1) - jax.nn.logsumexp(scaled, axis=1)
    return token, logp, finite
