"""Speed of the tiny decoder on this machine: tokens per CPU second, as one JSON object.

    JAX_PLATFORMS=cpu python bench/model_speed.py

CPU seconds rather than wall seconds, because they can be compared on a machine that is shared; the best of several
repetitions, because caches are shared too.
"""

import dataclasses
import json
import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax import sharding
from rspo_jax.algorithms import logprobs
from rspo_jax.models import config as model_config
from rspo_jax.models import decoder, kv_cache

CONFIG = model_config.DecoderConfig(
    model_type="qwen2",
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rms_norm_eps=1e-6,
    rope_type="default",
    rope_theta=1e6,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
    compute_dtype="float32",
)
SLOTS, SIZE, REPETITIONS = 64, 1280, 4


def measured(step, tokens):
    """Best tokens per CPU second and per wall second of step(), which is called once more to warm up."""
    step()
    cpu, wall = [], []
    for _ in range(REPETITIONS):
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        step()
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - wall_start)
    return {"tokens_per_cpu_s": round(tokens / min(cpu)), "tokens_per_s": round(tokens / min(wall))}


def rows(array):
    return sharding.shard(jnp.asarray(array), ("rows",) + (None,) * (np.ndim(array) - 1))


def train(params, remat):
    """Forward and backward of the mean log-prob of 32 rows of 512 tokens."""
    tokens = rows(np.random.default_rng(0).integers(0, 500, (32, 512)).astype(np.int32))
    positions = rows(np.broadcast_to(np.arange(512, dtype=np.int32), (32, 512)))

    def loss(params):
        states = decoder.hidden(params, CONFIG, tokens, positions, remat=remat)
        return logprobs.sequence_logprobs(states, decoder.unembedding(params, CONFIG), tokens, 1.0, 128, 500)[0].mean()

    start = time.process_time()
    compiled = jax.jit(jax.grad(loss)).lower(params).compile()
    compile_s = time.process_time() - start
    result = measured(lambda: jax.block_until_ready(compiled(params)), tokens.size)
    temp = compiled.memory_analysis().temp_size_in_bytes / 2**20
    return result | {"temp_mib": round(temp), "compile_cpu_s": round(compile_s, 1)}


def cached(params, width, read, steps):
    """Calls of `width` new tokens per slot, `steps` of them in one loop on the device, each reading `read` positions."""

    def loop(params, tokens, cache):
        def body(_, carry):
            tokens, cache = carry
            states, cache = decoder.hidden_cached(params, CONFIG, tokens, jnp.full(SLOTS, width), cache, read)
            logits = states[:, -1] @ decoder.unembedding(params, CONFIG).T
            return jnp.broadcast_to(jnp.argmax(logits, axis=-1).astype(jnp.int32)[:, None], tokens.shape), cache

        return jax.lax.fori_loop(0, steps, body, (tokens, cache))

    jitted = jax.jit(loop, donate_argnums=2)
    cache = kv_cache.empty(CONFIG, SLOTS, SIZE)
    tokens, start = rows(np.zeros((SLOTS, width), np.int32)), np.full(SLOTS, max(0, read - width * steps), np.int32)

    def step():
        nonlocal cache
        result, cache = jitted(params, tokens, dataclasses.replace(cache, length=rows(start)))
        jax.block_until_ready(result)

    return measured(step, SLOTS * width * steps)


def main():
    jax.set_mesh(sharding.make_mesh(1, jax.device_count()))
    params = jax.jit(decoder.init, static_argnums=1)(jax.random.key(0), CONFIG)
    report = {"train_remat": train(params, True), "train": train(params, False)}
    report["prefill_128_into_empty"] = cached(params, 128, 0, 1)
    for read in (512, 1024):
        report[f"prefill_64_read_{read}"] = cached(params, 64, read, 1)
        report[f"decode_read_{read}"] = cached(params, 1, read, 16)
    report["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
