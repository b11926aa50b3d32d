"""config.json in and out: both spellings of transformers, and every refusal by name."""

import dataclasses

import pytest
import transformers
from tiny import config as tiny_config

from rspo_jax.models import config as model_config

RAW = {
    "model_type": "qwen2",
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


def without(key):
    return {name: value for name, value in RAW.items() if name != key}


def test_rope_theta_at_top_level_or_inside_rope_parameters():
    inside = without("rope_theta") | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    assert model_config.from_hf(RAW, "float32") == model_config.from_hf(inside, "float32")
    assert model_config.from_hf(RAW, "float32").rope_theta == 1e6
    assert model_config.from_hf(RAW, "float32").head_dim == 8  # absent: 32 / 4


@pytest.mark.parametrize("key", [key for key in RAW])
def test_nothing_is_assumed_for_a_missing_key(key):
    with pytest.raises(ValueError, match=key):
        model_config.from_hf(without(key), "float32")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gemma"}, "gemma"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_parameters": {"rope_theta": 5e5}}, "rope_theta"),  # contradicts the top level
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"use_sliding_window": True, "sliding_window": 128}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias"),
        ({"model_type": "llama", "mlp_bias": True}, "mlp_bias"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"num_attention_heads": 5}, "hidden_size=32"),
        ({"head_dim": 7}, "head_dim=7"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"vocab_size": "48"}, "vocab_size='48'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(change, named):
    with pytest.raises(ValueError, match=named):
        model_config.from_hf(RAW | change, "float32")


def test_a_window_that_is_not_used_means_full_attention():
    unused = RAW | {"sliding_window": 32768, "use_sliding_window": False, "max_window_layers": 28}
    assert model_config.from_hf(unused, "float32") == model_config.from_hf(RAW, "float32")


@pytest.mark.parametrize("family", model_config.FAMILIES)
def test_our_config_json_reads_back_equal_in_ours_and_in_transformers(family, tmp_path):
    cfg = tiny_config(family, rope_theta=12345.0)
    raw = model_config.to_hf(cfg, "float32")
    assert model_config.from_hf(raw, "float32") == cfg
    theirs = transformers.AutoConfig.for_model(**raw)
    theirs.save_pretrained(tmp_path)
    again, _ = transformers.PretrainedConfig.get_config_dict(tmp_path)
    assert again["rope_parameters"] == {"rope_type": "default", "rope_theta": 12345.0}  # version 5 understood our spelling
    assert model_config.from_hf(again, "float32") == cfg


def test_configs_are_hashable_and_checked_when_changed():
    hash(tiny_config("qwen2"))
    with pytest.raises(ValueError, match="float16"):
        dataclasses.replace(tiny_config("qwen2"), compute_dtype="float16")
