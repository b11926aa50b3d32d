"""Hugging Face directories: bits survive, orientation is right, and what is broken is named."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from tiny import config as tiny_config
from tiny import params as tiny_params

from rspo_jax.models import hf


def stored(directory):
    return safetensors.numpy.load_file(directory / "model.safetensors")


def rewrite(directory, tensors):
    safetensors.numpy.save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def directory(tmp_path):
    cfg = tiny_config("qwen2")
    hf.save(tmp_path / "model", cfg, tiny_params(cfg), "float32")
    return tmp_path / "model"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_round_trip_is_bit_equal(family, dtype, tmp_path):
    cfg = tiny_config(family, compute_dtype=dtype)
    params = tiny_params(cfg)
    hf.save(tmp_path / "m", cfg, params, dtype)
    loaded_cfg, loaded = hf.load(tmp_path / "m", dtype)
    assert loaded_cfg == cfg
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path[0].key if len(path) == 1 else path[1].key
        other = loaded[name] if len(path) == 1 else loaded["layers"][name]
        np.testing.assert_array_equal(np.asarray(other), np.asarray(leaf).astype(hf.DTYPES[dtype]), err_msg=name)
        assert other.sharding == leaf.sharding


def test_file_holds_the_names_and_the_orientation_of_transformers(directory):
    params = tiny_params(tiny_config("qwen2"))
    tensors = stored(directory)
    np.testing.assert_array_equal(tensors["model.layers.1.mlp.down_proj.weight"], np.asarray(params["layers"]["down_proj"][1]).T)
    np.testing.assert_array_equal(tensors["model.layers.0.self_attn.q_proj.bias"], params["layers"]["q_bias"][0])
    assert tensors["model.layers.0.mlp.down_proj.weight"].shape == (32, 40)  # torch's Linear: [out, in]
    assert len(tensors) == 2 + 2 * 12 and "lm_head.weight" not in tensors
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "model.safetensors"]


def test_sharded_and_half_precision_files_are_read(directory):
    tensors = stored(directory)
    names = sorted(tensors)
    weight_map = {}
    for number, dtype in enumerate((np.float16, ml_dtypes.bfloat16)):
        shard = f"model-{number + 1:05d}-of-00002.safetensors"
        part = {name: tensors[name].astype(dtype) for name in names[number::2]}
        safetensors.numpy.save_file(part, directory / shard)
        weight_map |= dict.fromkeys(part, shard)
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    _, params = hf.load(directory, "float32")
    name = names[0]
    assert name == "model.embed_tokens.weight"
    np.testing.assert_array_equal(params["embed_tokens"], tensors[name].astype(np.float16).astype(np.float32))

    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-00002-of-00002.safetensors is missing"):
        hf.load(directory, "float32")


def test_superfluous_lm_head_of_a_tied_model(directory):
    tensors = stored(directory)
    rewrite(directory, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
    _, params = hf.load(directory, "float32")
    assert "lm_head" not in params
    rewrite(directory, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1})
    with pytest.raises(ValueError, match="lm_head.weight differs .* tie_word_embeddings"):
        hf.load(directory, "float32")


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("model.norm.weight", None, "tensor model.norm.weight is missing"),
        ("model.layers.1.self_attn.k_proj.bias", None, "tensor model.layers.1.self_attn.k_proj.bias is missing"),
        ("model.layers.2.mlp.up_proj.weight", np.zeros((40, 32), np.float32), "layers.2.mlp.up_proj.weight is unexpected"),
        ("model.layers.0.self_attn.q_norm.weight", np.zeros(8, np.float32), "q_norm.weight is unexpected"),
        ("model.layers.0.mlp.up_proj.weight", np.zeros((32, 40), np.float32), r"has shape \[32, 40\]; .* \[40, 32\]"),
        ("model.norm.weight", np.zeros(32, np.int8), "model.norm.weight has dtype I8"),
    ],
)
def test_broken_tensors_are_named(directory, name, tensor, message):
    tensors = stored(directory) | {name: tensor}
    rewrite(directory, {key: value for key, value in tensors.items() if value is not None})
    with pytest.raises(ValueError, match=message) as error:
        hf.load(directory, "float32")
    assert "model.safetensors: tensor" in str(error.value)


def test_broken_directories_are_named(directory, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere/config.json does not exist"):
        hf.load(tmp_path / "nowhere", "float32")
    weights = (directory / "model.safetensors").read_bytes()
    for broken in (weights[: len(weights) // 2], b"", b"\xff" * 64):
        (directory / "model.safetensors").write_bytes(broken)
        with pytest.raises(ValueError, match="model.safetensors is not a whole safetensors file"):
            hf.load(directory, "float32")
    (directory / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="has neither model.safetensors nor"):
        hf.load(directory, "float32")
    (directory / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match="pytorch_model.bin is a pickle"):
        hf.load(directory, "float32")
    for index, message in [
        ({}, "no weight_map"),
        ({"weight_map": {"model.norm.weight": "../other.safetensors"}}, "is not a file name in this directory"),
    ]:
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ValueError, match=message):
            hf.load(directory, "float32")
    (directory / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is not JSON"):
        hf.load(directory, "float32")


def test_an_index_that_lies_about_a_tensor_is_named(directory):
    (directory / "model.safetensors").rename(directory / "a.safetensors")
    weight_map = dict.fromkeys(safetensors.numpy.load_file(directory / "a.safetensors"), "a.safetensors")
    weight_map["model.extra"] = "a.safetensors"
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match="a.safetensors has no tensor model.extra"):
        hf.load(directory, "float32")


def test_saving_never_overwrites_and_notices_params_that_do_not_fit(directory, tmp_path):
    cfg = tiny_config("qwen2")
    params = tiny_params(cfg)
    with pytest.raises(FileExistsError, match="config.json exists"):
        hf.save(directory, cfg, params, "float32")
    lacking = {name: leaf for name, leaf in params.items() if name != "norm"}
    with pytest.raises(ValueError, match="model.norm.weight is missing"):
        hf.save(tmp_path / "lacking", cfg, lacking, "float32")
