"""Decoder params from and to Hugging Face directories: config.json and safetensors, nothing else.

Reading is strict: each tensor that the config implies must be there, in its shape, and no other; what is refused is
refused in one sentence that names file and tensor. Tokenizers and generation configs are not this module's.
"""

import json
import os
import pathlib

import jax
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from rspo_jax import sharding
from rspo_jax.models import config as model_config
from rspo_jax.models import decoder

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
FILE_DTYPES = ("F32", "F16", "BF16")

OUTER_NAMES = {"embed_tokens": "model.embed_tokens.weight", "norm": "model.norm.weight", "lm_head": "lm_head.weight"}
LAYER_NAMES = {
    "input_layernorm": "input_layernorm.weight",
    "q_proj": "self_attn.q_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_proj": "self_attn.k_proj.weight",
    "k_bias": "self_attn.k_proj.bias",
    "k_norm": "self_attn.k_norm.weight",
    "v_proj": "self_attn.v_proj.weight",
    "v_bias": "self_attn.v_proj.bias",
    "o_proj": "self_attn.o_proj.weight",
    "post_attention_layernorm": "post_attention_layernorm.weight",
    "gate_proj": "mlp.gate_proj.weight",
    "up_proj": "mlp.up_proj.weight",
    "down_proj": "mlp.down_proj.weight",
}


def load(directory: str | os.PathLike, dtype: str):
    """The model of a Hugging Face directory, laid out over the set mesh, read tensor by tensor.

    Args:
        dtype: of the params; it is also the config's compute dtype ("float32" or "bfloat16").
            For float32 master weights under bfloat16 compute, load "float32" and replace the config's compute_dtype.
    Returns:
        DecoderConfig, params.
    Raises:
        ValueError, FileNotFoundError: one sentence naming file, tensor and remedy.
    """
    directory = pathlib.Path(directory)
    config = model_config.from_hf(_read_json(directory / "config.json"), dtype)
    files = _tensor_files(directory)
    shapes = jax.eval_shape(lambda: decoder.init(jax.random.key(0), config))
    shardings = sharding.param_shardings(jax.sharding.get_mesh(), decoder.param_axes(shapes))
    _check_names(files, shapes, config)

    def read(path, shape, layout):
        name = path[-1].key
        array = np.empty(shape.shape, DTYPES[dtype])
        if len(path) == 1:
            array[...] = _read(files, OUTER_NAMES[name], shape.shape, name)
        else:
            for layer in range(config.num_hidden_layers):
                array[layer] = _read(files, _layer_name(layer, name), shape.shape[1:], name)
        return jax.device_put(array, layout)

    params = jax.tree_util.tree_map_with_path(read, shapes, shardings)
    if config.tie_word_embeddings and "lm_head.weight" in files:
        head = _read(files, "lm_head.weight", shapes["embed_tokens"].shape, "lm_head")
        if not np.array_equal(head.astype(DTYPES[dtype]), params["embed_tokens"]):
            raise ValueError(
                f"{files['lm_head.weight']}: lm_head.weight differs from model.embed_tokens.weight, but config.json has "
                f"tie_word_embeddings=true; set it to false or remove the tensor."
            )
    return config, params


def save(directory: str | os.PathLike, config: model_config.DecoderConfig, params, dtype: str) -> None:
    """Writes config.json and model.safetensors, reads them again and compares every bit before it returns.

    Args:
        directory: made if needed; must not hold a model yet.
        dtype: of the tensors in the file, "float32" or "bfloat16".
    Raises:
        FileExistsError: the directory holds a model.
        ValueError: a tensor that does not fit the config, or came back different.
    """
    directory = pathlib.Path(directory)
    for name in ("config.json", SINGLE, INDEX):
        if (directory / name).exists():
            raise FileExistsError(f"{directory / name} exists; a model is never overwritten, so choose another directory.")
    tensors = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name, array = path[-1].key, np.asarray(jax.device_get(leaf)).astype(DTYPES[dtype])
        if len(path) == 1:
            tensors[OUTER_NAMES[name]] = array
        else:
            for layer, part in enumerate(array):
                tensors[_layer_name(layer, name)] = part.T if name.endswith("_proj") else part
    # safetensors writes the buffer behind an array, so a transposed view would come out transposed back.
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}

    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / (SINGLE + ".partial")
    safetensors.numpy.save_file(tensors, partial, metadata={"format": "pt"})
    partial.replace(directory / SINGLE)
    (directory / "config.json").write_text(json.dumps(model_config.to_hf(config, dtype), indent=2) + "\n", encoding="utf-8")
    _compare(directory, config, params, dtype)


def _compare(directory, config, params, dtype):
    loaded_config, loaded = load(directory, dtype)
    if model_config.to_hf(loaded_config, dtype) != model_config.to_hf(config, dtype):
        raise ValueError(f"{directory / 'config.json'}: read back as {loaded_config}, written from {config}.")
    if jax.tree.structure(loaded) != jax.tree.structure(params):
        raise ValueError(f"{directory / SINGLE}: the params do not have the structure that {config} implies.")
    for (path, written), read in zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(loaded), strict=True):
        if np.asarray(written).astype(DTYPES[dtype]).tobytes() != np.asarray(read).tobytes():
            raise ValueError(f"{directory / SINGLE}: {jax.tree_util.keystr(path)} was read back with other values.")


def _layer_name(layer: int, name: str) -> str:
    return f"model.layers.{layer}.{LAYER_NAMES[name]}"


def _read_json(path: pathlib.Path) -> dict:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; a Hugging Face model directory is expected.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not an object.")
    return content


def _tensor_files(directory: pathlib.Path) -> dict[str, pathlib.Path]:
    """The file of each tensor. The single file comes before the index where both exist, as in transformers."""
    if (directory / SINGLE).is_file():
        return dict.fromkeys(_keys(directory / SINGLE), directory / SINGLE)
    if not (directory / INDEX).is_file():
        pickles = sorted(path.name for path in directory.glob("*.bin"))
        if pickles:
            raise ValueError(f"{directory / pickles[0]} is a pickle, which is not read; convert the model to safetensors first.")
        raise FileNotFoundError(f"{directory} has neither {SINGLE} nor {INDEX}.")
    weight_map = _read_json(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ValueError(f"{directory / INDEX} has no weight_map from tensor names to file names.")
    files = {}
    for shard in sorted(set(weight_map.values())):
        if pathlib.PurePath(shard).name != shard:
            raise ValueError(f"{directory / INDEX} names the shard {shard!r}, which is not a file name in this directory.")
        if not (directory / shard).is_file():
            raise FileNotFoundError(f"{directory / shard} is missing, though {INDEX} names it; fetch the model again.")
        files |= dict.fromkeys(_keys(directory / shard), directory / shard)
    for name, shard in weight_map.items():
        if name not in files or files[name].name != shard:
            raise ValueError(f"{directory / shard} has no tensor {name}, though {INDEX} says so.")
    return files


def _keys(path: pathlib.Path) -> list[str]:
    try:
        with safetensors.safe_open(path, framework="np") as tensors:
            return list(tensors.keys())
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}.") from error


def _check_names(files, shapes, config) -> None:
    expected = {OUTER_NAMES[name] for name in shapes if name != "layers"}
    expected |= {_layer_name(layer, name) for layer in range(config.num_hidden_layers) for name in shapes["layers"]}
    missing = sorted(expected - files.keys())
    if missing:
        where = sorted({str(path) for path in files.values()})
        raise ValueError(f"{', '.join(where)}: tensor {missing[0]} is missing ({len(missing)} in all); config.json asks for it.")
    # A tied head is a copy, compared in `load`; inv_freq is a constant that old files carry along.
    allowed = {"lm_head.weight"} if config.tie_word_embeddings else set()
    for name in sorted(files.keys() - expected - allowed):
        if not name.endswith("rotary_emb.inv_freq"):
            raise ValueError(f"{files[name]}: tensor {name} is unexpected; a {config.model_type} model of this config has none.")


def _read(files, tensor: str, shape: tuple[int, ...], name: str) -> np.ndarray:
    """One tensor in our orientation: kernels lie as [out, in] in the file and as [in, out] here."""
    with safetensors.safe_open(files[tensor], framework="np") as tensors:
        view = tensors.get_slice(tensor)
        found, dtype = list(view.get_shape()), view.get_dtype()
        expected = list(reversed(shape)) if name.endswith("_proj") else list(shape)
        if found != expected:
            raise ValueError(f"{files[tensor]}: tensor {tensor} has shape {found}; config.json implies {expected}.")
        if dtype not in FILE_DTYPES:
            raise ValueError(f"{files[tensor]}: tensor {tensor} has dtype {dtype}; only {', '.join(FILE_DTYPES)} are read.")
        array = tensors.get_tensor(tensor)
    return array.T if name.endswith("_proj") else array
