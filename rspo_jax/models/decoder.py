"""The one decoder: policy, explorer, reference, PRM backbone and implicit PRM are this applied to different params.

The parameter dict is the contract (`PARAM_AXES`): Hugging Face's names, kernels as [in, out], layers stacked on axis 0.

    {"embed_tokens": [V, d],
     "layers": {"input_layernorm": [n, d], "q_proj": [n, d, h*c], "q_bias": [n, h*c], ... "down_proj": [n, f, d]},
     "norm": [d],
     "lm_head": [V, d]}                  only where the config does not tie it to embed_tokens

Flax Linen serves as the scan over rematerialised blocks and the checking of names and shapes, no more. A mesh must be
set (`sharding.make_mesh`); the functions are pure and not jitted, callers jit them.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from rspo_jax import sharding
from rspo_jax.models import config as model_config
from rspo_jax.models import kv_cache, layers

DecoderConfig = model_config.DecoderConfig

# The output of attention survives rematerialisation: it is as small as x, and dear because `_causal_block` is computed
# again in the backward pass anyway.
KEEP_ATTENTION = jax.checkpoint_policies.save_only_these_names("attention")

UNROLLED = 4  # layers; so few are not scanned in training: stacking what a backward pass needs costs XLA:CPU a fifth of it

PARAM_AXES = {
    "embed_tokens": ("vocab", "embed"),
    "layers": {
        "input_layernorm": ("layers", None),
        "q_proj": ("layers", "embed", "heads"),
        "q_bias": ("layers", "heads"),
        "q_norm": ("layers", None),
        "k_proj": ("layers", "embed", "kv_heads"),
        "k_bias": ("layers", "kv_heads"),
        "k_norm": ("layers", None),
        "v_proj": ("layers", "embed", "kv_heads"),
        "v_bias": ("layers", "kv_heads"),
        "o_proj": ("layers", "heads", "embed"),
        "post_attention_layernorm": ("layers", None),
        "gate_proj": ("layers", "embed", "mlp"),
        "up_proj": ("layers", "embed", "mlp"),
        "down_proj": ("layers", "mlp", "embed"),
    },
    "norm": (None,),
    "lm_head": ("vocab", "embed"),
}


def init(key: jax.Array, config: DecoderConfig):
    """Random float32 params: normal(0.02) as transformers draws them, zero biases, norms one; laid out over the mesh."""
    tokens = jnp.zeros((jax.sharding.get_abstract_mesh().shape["fsdp"], 1), jnp.int32)
    tokens = sharding.shard(tokens, ("rows", None))
    params = _Decoder(config, remat=False).init(key, tokens, tokens, None, 0)["params"]
    return jax.tree.map(sharding.shard, params, param_axes(params))


def param_axes(params):
    """The part of `PARAM_AXES` that these params have, as a tree of the same structure.

    Raises:
        ValueError: names a parameter without an entry.
    """

    def select(node, axes, path):
        if not isinstance(node, dict):
            return axes
        for name in node:
            if name not in axes:
                raise ValueError(f"parameter {path + name} has no entry in decoder.PARAM_AXES; add its logical axes there.")
        return {name: select(child, axes[name], path + name + "/") for name, child in node.items()}

    return select(params, PARAM_AXES, "")


def hidden(params, config: DecoderConfig, tokens: jax.Array, positions: jax.Array, *, remat: bool) -> jax.Array:
    """Final-norm states of whole rows, for training.

    Rows are padded on the right with any token; causality keeps padding out of every earlier state.

    Args:
        tokens: [R, L] int32.
        positions: [R, L] int32.
        remat: recompute each block in the backward pass: memory of one block instead of all.
    Returns:
        [R, L, d] in the config's compute dtype.
    """
    tokens, positions = sharding.shard(tokens, ("rows", None)), sharding.shard(positions, ("rows", None))
    states, _ = _Decoder(config, remat).apply({"params": params}, tokens, positions, None, 0)
    return states


def hidden_cached(params, config: DecoderConfig, tokens, lengths, cache: kv_cache.Cache, read: int):
    """Final-norm states of W new tokens per slot, which are appended to the cache; W = 1 is decoding.

    Slot s continues at its own position cache.length[s]. Tokens at and beyond lengths[s] have arbitrary finite states,
    are not written and disturb nothing; a slot that takes no part has lengths[s] = 0.

    The caller keeps, for each slot that takes part, cache.length <= read and cache.length + lengths <= cache.size.
    Where it does not, the states of that slot are NaN: nothing is clamped, overwritten or silently forgotten.

    Args:
        tokens: [S, W] int32.
        lengths: [S] int32, real new tokens of each slot.
        read: static; attend to the first `read` positions of the cache only. A small set of values bounds compilation.
    Returns:
        states [S, W, d], and the cache with its length advanced by lengths. Donate the cache.
    """
    tokens, lengths = sharding.shard(tokens, ("rows", None)), sharding.shard(lengths, ("rows",))
    positions = cache.length[:, None] + jnp.arange(tokens.shape[1])
    states, (keys, values) = _Decoder(config, remat=False).apply({"params": params}, tokens, positions, cache, read)
    broken = (lengths > 0) & ((cache.length > read) | (cache.length + lengths > cache.size))
    states = jnp.where(broken[:, None, None], jnp.nan, states)
    return states, kv_cache.append(cache, keys, values, lengths)


def unembedding(params, config: DecoderConfig) -> jax.Array:
    """[V, d], gathered over `fsdp`, in the params' dtype: the tied embedding or lm_head."""
    name = "embed_tokens" if config.tie_word_embeddings else "lm_head"
    return sharding.gather(params[name], PARAM_AXES[name])


class _Block(nn.Module):
    """One layer on flat tokens. Scanned over: its carry is x, its output the layer's new keys and values."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x, layer, angles, cache, read):
        """x [N, d], layer [] int32, angles of [R, L] positions; cache None for whole rows."""
        cfg = self.config
        weights = self.weights(x.dtype)
        q, k, v = self.heads(weights, layers.rms_norm(x, weights["input_layernorm"], cfg.rms_norm_eps), angles)
        if cache is None:
            mixed, new = layers.causal_attention(q, k, v), None
        else:
            keys = _layer_of(cache.keys, layer, 3, read)
            values = _layer_of(cache.values, layer, 2, read)
            mixed, new = layers.cached_attention(q, k, v, keys, values, cache.length), (k, v)
        flat = (x.shape[0], cfg.num_attention_heads * cfg.head_dim)
        mixed = jax.lax.reshape(mixed, flat, out_sharding=sharding.spec("rows", "heads"))  # [R, L, k, g, c] -> [N, h*c]
        mixed = checkpoint_name(mixed, "attention")
        x = x + jnp.dot(mixed, weights["o_proj"], out_sharding=sharding.spec("rows", None))
        normed = layers.rms_norm(x, weights["post_attention_layernorm"], cfg.rms_norm_eps)
        return x + layers.swiglu(normed, weights["gate_proj"], weights["up_proj"], weights["down_proj"]), new

    def weights(self, dtype):
        """This layer's params, cast to the compute dtype and gathered over `fsdp`."""
        cfg = self.config
        d, f = cfg.hidden_size, cfg.intermediate_size
        q_width, kv_width = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim
        kernel, ones, zeros = nn.initializers.normal(0.02), nn.initializers.ones, nn.initializers.zeros
        shapes = {
            "input_layernorm": (ones, (d,)),
            "q_proj": (kernel, (d, q_width)),
            "k_proj": (kernel, (d, kv_width)),
            "v_proj": (kernel, (d, kv_width)),
            "o_proj": (kernel, (q_width, d)),
            "post_attention_layernorm": (ones, (d,)),
            "gate_proj": (kernel, (d, f)),
            "up_proj": (kernel, (d, f)),
            "down_proj": (kernel, (f, d)),
        }
        if cfg.qkv_bias:
            shapes |= {"q_bias": (zeros, (q_width,)), "k_bias": (zeros, (kv_width,)), "v_bias": (zeros, (kv_width,))}
        if cfg.qk_norm:
            shapes |= {"q_norm": (ones, (cfg.head_dim,)), "k_norm": (ones, (cfg.head_dim,))}
        return {
            # PARAM_AXES begins with the stacked axis, which the scan has taken off.
            name: sharding.gather(self.param(name, initializer, shape).astype(dtype), PARAM_AXES["layers"][name][1:])
            for name, (initializer, shape) in shapes.items()
        }

    def heads(self, weights, normed, angles):
        """Rotated q [R, L, k, g, c] and k, and v [R, L, k, c], of normed [N, d]."""
        cfg = self.config
        rows, length = angles[0].shape[:2]

        def project(name, heads):
            flat = normed @ weights[name + "_proj"]
            if cfg.qkv_bias:
                flat = flat + weights[name + "_bias"]
            # [N, heads*c] -> [R, L, heads, c]
            axes = sharding.spec("rows", None, "heads", None)
            return jax.lax.reshape(flat, (rows, length, heads, cfg.head_dim), out_sharding=axes)

        q = project("q", cfg.num_attention_heads)
        k, v = project("k", cfg.num_key_value_heads), project("v", cfg.num_key_value_heads)
        if cfg.qk_norm:
            q = layers.rms_norm(q, weights["q_norm"], cfg.rms_norm_eps)
            k = layers.rms_norm(k, weights["k_norm"], cfg.rms_norm_eps)
        return layers.grouped(layers.rope(q, angles), cfg.num_key_value_heads), layers.rope(k, angles), v


class _Decoder(nn.Module):
    config: DecoderConfig
    remat: bool

    @nn.compact
    def __call__(self, tokens, positions, cache, read):
        cfg = self.config
        dtype = jnp.dtype(cfg.compute_dtype)
        shape = (cfg.vocab_size, cfg.hidden_size)
        embed = self.param("embed_tokens", nn.initializers.normal(0.02), shape)
        if not cfg.tie_word_embeddings:
            self.param("lm_head", nn.initializers.normal(0.02), shape)  # declared here, used by `unembedding`
        embed = sharding.gather(embed, PARAM_AXES["embed_tokens"])
        x = embed.at[tokens.reshape(-1)].get(out_sharding=sharding.spec("rows", None)).astype(dtype)  # [R, L] -> [N, d]

        block = nn.remat(_Block, prevent_cse=False, static_argnums=(5,), policy=KEEP_ATTENTION) if self.remat else _Block
        scan = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
            length=cfg.num_hidden_layers,
            unroll=cfg.num_hidden_layers if cache is None and cfg.num_hidden_layers <= UNROLLED else 1,
        )
        angles = layers.rope_angles(positions, cfg.head_dim, cfg.rope_theta)
        x, new = scan(cfg, name="layers")(x, jnp.arange(cfg.num_hidden_layers), angles, cache, read)
        weight = self.param("norm", nn.initializers.ones, (cfg.hidden_size,)).astype(dtype)
        x = layers.rms_norm(x, weight, cfg.rms_norm_eps)
        axes = sharding.spec("rows", None, None)  # named, because a single row [1, L] would leave it to L
        return jax.lax.reshape(x, (*tokens.shape, cfg.hidden_size), out_sharding=axes), new  # [N, d] -> [R, L, d]


def _layer_of(stacked, layer, axis, read):
    """Layer `layer` of a stacked cache, its axis of positions cut to `read`: one slice, which XLA fuses into its use."""
    part = jax.lax.dynamic_index_in_dim(stacked, layer, 1, keepdims=False)
    return jax.lax.slice_in_dim(part, 0, read, axis=axis)
