"""The decoder's maths as plain functions of arrays. Weights come in ready to use: cast and gathered by the block.

N is R * L: tokens are kept flat between attentions, because XLA:CPU computes the weight gradient of a projection of
[R, L, d] three times slower than that of [N, d]; a TPU does not care. Statistics of norms, RoPE and softmax are
float32 whatever the compute dtype.
"""

import jax
import jax.numpy as jnp

from rspo_jax import sharding

MASKED = -1e30  # finite: minus infinity has NaN gradients
MOST_BLOCKS = 4  # of queries; 8 trains 7 % faster and compiles for twice as long


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis; the statistics in float32."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return wide.astype(x.dtype) * weight


def rope_angles(positions: jax.Array, head_dim: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """cos and sin [R, L, c/2] of position * theta^(-2i/c), float32 (bfloat16 cannot hold position 257)."""
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    phases = positions.astype(jnp.float32)[..., None] * frequencies
    return jnp.cos(phases), jnp.sin(phases)


def rope(x: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotates the pairs (i, i + c/2) of each head of x [R, L, heads, c]: the half-split order of Hugging Face files."""
    cos, sin = (part[:, :, None] for part in angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def swiglu(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """silu(x gate) * (x up), projected down. x [N, d], gate and up [d, f], down [f, d]."""
    return jnp.dot(jax.nn.silu(x @ gate) * (x @ up), down, out_sharding=sharding.spec("rows", None))


def grouped(q: jax.Array, kv_heads: int) -> jax.Array:
    """[R, L, h, c] -> [R, L, k, g, c]: query head h reads key/value head h // g."""
    rows, length, heads, width = q.shape
    axes = sharding.spec("rows", None, "kv_heads", None, None)
    return jax.lax.reshape(q, (rows, length, kv_heads, heads // kv_heads, width), out_sharding=axes)


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Each token attends to itself and to the tokens before it in its row.

    Rows are padded on the right, so no token but padding can see padding, and no mask is needed. Queries go in blocks,
    each of which meets only the keys up to its own end and is computed again in the backward pass: half the products,
    and the scores of one block instead of all. On XLA:CPU, at 512 tokens, this is three times faster than one block.

    Args:
        q: [R, L, k, g, c].
        k: [R, L, k, c].
        v: [R, L, k, c].
    Returns:
        [R, L, k, g, c].
    """
    length = q.shape[1]
    size = max(64, -(-length // MOST_BLOCKS))
    ends = [min(start + size, length) for start in range(0, length, size)]
    blocks = [_causal_block(q[:, start:end], k[:, :end], v[:, :end]) for start, end in zip([0, *ends], ends, strict=False)]
    return jnp.concatenate(blocks, axis=1)


@jax.checkpoint
def _causal_block(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The last queries [R, l, k, g, c] of a row attend to its s >= l keys and values [R, s, k, c]."""
    queries = q.shape[3]
    scores = _scores(_by_head(q), jnp.moveaxis(k, 1, 3)) + _causal_bias(q.shape[1], k.shape[1], queries)
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    total = jnp.sum(weights, axis=-1, keepdims=True)  # at least exp(0), of the maximum itself
    mixed = jnp.matmul(weights.astype(v.dtype), jnp.moveaxis(v, 1, 2), preferred_element_type=jnp.float32) / total
    return _by_token(mixed.astype(v.dtype), queries)


def cached_attention(q, k, v, keys, values, length) -> jax.Array:
    """New tokens attend to the first length[s] positions of their slot's cache and causally to one another.

    The two softmaxes are joined by their common maximum and sum, so the cache is only read.

    Args:
        q: [S, W, k, g, c]; k, v: [S, W, k, c], the new tokens.
        keys: [S, k, c, s]; values: [S, k, s, c], the part of the cache to read.
        length: [S] int32.
    Returns:
        [S, W, k, g, c].
    """
    width, queries, read = q.shape[1], q.shape[3], values.shape[2]
    q = _by_head(q)
    old = _scores(q, keys)
    old = jnp.where(jnp.arange(read) < length[:, None, None, None], old, MASKED)
    new = _scores(q, jnp.moveaxis(k, 1, 3)) + _causal_bias(width, width, queries)

    highest = jnp.maximum(jnp.max(old, axis=-1, keepdims=True, initial=MASKED), jnp.max(new, axis=-1, keepdims=True))
    old, new = jnp.exp(old - highest), jnp.exp(new - highest)
    total = jnp.sum(old, axis=-1, keepdims=True) + jnp.sum(new, axis=-1, keepdims=True)  # at least 1, the maximum itself
    mixed = jnp.matmul(old.astype(v.dtype), values, preferred_element_type=jnp.float32)
    mixed += jnp.matmul(new.astype(v.dtype), jnp.moveaxis(v, 1, 2), preferred_element_type=jnp.float32)
    return _by_token((mixed / total).astype(v.dtype), queries)


def _scores(q: jax.Array, k: jax.Array) -> jax.Array:
    """q k / sqrt(c) of q [R, k, g*L, c] and k [R, k, c, s], float32."""
    return jnp.matmul(q * q.shape[-1] ** -0.5, k, preferred_element_type=jnp.float32)


def _causal_bias(length: int, keys: int, queries: int) -> jax.Array:
    """[g*l, s]: 0 where one of the last l tokens of s may look, MASKED where it may not."""
    visible = jnp.arange(keys - length, keys)[:, None] >= jnp.arange(keys)
    return jnp.tile(jnp.where(visible, 0.0, MASKED), (queries, 1))


def _by_head(q: jax.Array) -> jax.Array:
    """[R, L, k, g, c] -> [R, k, g*L, c]: all queries that read the same keys, as one matrix."""
    rows, length, kv_heads, queries, width = q.shape
    return q.transpose(0, 2, 3, 1, 4).reshape(rows, kv_heads, queries * length, width)


def _by_token(x: jax.Array, queries: int) -> jax.Array:
    """[R, k, g*L, c] -> [R, L, k, g, c], the inverse of `_by_head`."""
    rows, kv_heads, merged, width = x.shape
    return x.reshape(rows, kv_heads, queries, merged // queries, width).transpose(0, 3, 1, 2, 4)
