"""One mesh: what it refuses, and that eight devices compute what one does."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from rspo_jax import sharding
from rspo_jax.models import config as model_config

PROGRAM = """
import sys
import jax, jax.numpy as jnp, numpy as np
from rspo_jax import sharding
from rspo_jax.algorithms import logprobs
from rspo_jax.models import config, decoder, kv_cache

fsdp, tensor, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
mesh = sharding.make_mesh(fsdp, tensor)
jax.set_mesh(mesh)
results = {}
for family in ("qwen2", "qwen3"):
    cfg = config.DecoderConfig(family, 64, 32, 48, 2, 4, 2, 16, 1e-6, "default", 1e4, 128, family == "qwen2", "float32")
    sharding.check(cfg, mesh)
    shapes = jax.eval_shape(lambda: decoder.init(jax.random.key(0), cfg))
    layouts = sharding.param_shardings(mesh, decoder.param_axes(shapes))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda s, l: jax.device_put(rng.normal(size=s.shape).astype(np.float32) * 0.3, l), shapes, layouts)
    tokens = jax.device_put(rng.integers(0, 60, (8, 20)).astype(np.int32), sharding.batch_sharding(mesh))
    positions = jax.device_put(np.broadcast_to(np.arange(20, dtype=np.int32), (8, 20)), sharding.batch_sharding(mesh))

    def loss(params):
        states = decoder.hidden(params, cfg, tokens, positions, remat=True)
        logp, entropy = logprobs.sequence_logprobs(states, decoder.unembedding(params, cfg), tokens, 0.7, 16, 60)
        return logp.mean() + 0.1 * entropy.mean(), logp

    (_, logp), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    for leaf, layout in zip(jax.tree.leaves(gradient), jax.tree.leaves(layouts)):
        assert leaf.sharding.is_equivalent_to(layout, leaf.ndim), (leaf.sharding, layout)
    turn = jax.jit(decoder.hidden_cached, static_argnums=(1, 5))
    cache = kv_cache.empty(cfg, 8, 32)
    for start, lengths in ((0, np.arange(1, 9, dtype=np.int32)), (9, np.full(8, 9, np.int32))):
        states, cache = turn(params, cfg, tokens[:, start:start + 9], lengths, cache, 16)
    found = {"logp": logp, "states": states, "keys": cache.keys} | {
        jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(gradient)}
    results |= {family + name: np.asarray(jax.device_get(value)) for name, value in found.items()}
np.savez(out, **results)
"""


def small(**changes):
    return model_config.DecoderConfig(
        **dict(
            model_type="qwen2",
            vocab_size=96,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            rms_norm_eps=1e-6,
            rope_type="default",
            rope_theta=1e4,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            compute_dtype="float32",
        )
        | changes
    )


def mesh_of(fsdp, tensor):
    return jax.sharding.AbstractMesh((fsdp, tensor), ("fsdp", "tensor"))


def test_eight_devices_compute_what_one_does(tmp_path):
    root = pathlib.Path(__file__).parents[1]
    for devices, fsdp, tensor in [(1, 1, 1), (8, 4, 2)]:
        environment = os.environ | {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(root),
        }
        command = [sys.executable, "-c", PROGRAM, str(fsdp), str(tensor), str(tmp_path / f"{devices}.npz")]
        subprocess.run(command, env=environment, check=True, timeout=300)
    one, eight = np.load(tmp_path / "1.npz"), np.load(tmp_path / "8.npz")
    assert len(one.files) == len(eight.files) == 2 * 3 + (2 + 12) + (3 + 11)
    for name in one.files:
        np.testing.assert_allclose(eight[name], one[name], atol=1e-5, err_msg=name)


def test_a_mesh_that_is_not_all_devices_is_refused():
    with pytest.raises(ValueError, match=f"config.mesh.fsdp=3 .* is not the number of devices, {jax.device_count()}"):
        sharding.make_mesh(3, 1)


@pytest.mark.parametrize(
    ("fsdp", "tensor", "changes", "message"),
    [
        (1, 4, {}, "config.mesh.tensor=4 does not divide the 2 key/value heads of this qwen2 model; use a divisor of 2"),
        (1, 2, {"vocab_size": 97}, "config.mesh.tensor=2 does not divide the 97 rows of the vocabulary"),
        (1, 2, {"intermediate_size": 49}, "config.mesh.tensor=2 does not divide the 49 columns of the MLP"),
        (3, 1, {}, "config.mesh.fsdp=3 does not divide the hidden size 32"),
    ],
)
def test_a_mesh_that_does_not_divide_the_model_is_refused(fsdp, tensor, changes, message):
    with pytest.raises(ValueError, match=message):
        sharding.check(small(**changes), mesh_of(fsdp, tensor))


def test_a_mesh_that_fits_is_accepted():
    sharding.check(small(), mesh_of(16, 2))


def test_no_partition_spec_outside_sharding():
    root = pathlib.Path(sharding.__file__).parent
    found = [path for path in root.rglob("*.py") if path.name != "sharding.py" and "PartitionSpec" in path.read_text()]
    assert found == []
