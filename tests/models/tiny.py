"""Tiny configs of the three families, and params in which nothing is zero or one, so that a missing bias shows."""

import jax
import numpy as np

from rspo_jax import sharding
from rspo_jax.models import config as model_config
from rspo_jax.models import decoder


def config(model_type, **changes):
    fields = dict(
        model_type=model_type,
        vocab_size=48,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12 if model_type == "qwen3" else 8,  # Qwen3's head width is not d / h
        rms_norm_eps=1e-6,
        rope_type="default",
        rope_theta=1e4,
        max_position_embeddings=1024,
        tie_word_embeddings=model_type != "llama",
        compute_dtype="float32",
    )
    return model_config.DecoderConfig(**fields | changes)


def params(cfg, seed=0):
    rng = np.random.default_rng(seed)

    def draw(leaf, layout):
        return jax.device_put(rng.normal(size=leaf.shape).astype(np.float32) * 0.3, layout)

    leaves = shapes(cfg)
    layouts = sharding.param_shardings(jax.sharding.get_mesh(), decoder.param_axes(leaves))
    return jax.tree.map(draw, leaves, layouts)


def shapes(cfg):
    return jax.eval_shape(lambda: decoder.init(jax.random.key(0), cfg))
