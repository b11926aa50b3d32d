"""Speed of the sampler at the size of the embedded default, on random weights: one JSON line.

    python bench/sampler.py

A rollout of forty turns, in which episodes end and new ones begin, and one in which four of the slots are left; then the
parts. `decode_overhead` is the time of a step of the decode loop over that of the bare model step in a loop.
"""

import dataclasses
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax import decoding, generation, sharding
from rspo_jax.models import decoder, kv_cache

VOCABULARY = 704
CONFIG = decoder.DecoderConfig(
    model_type="qwen2", vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6, rope_type="default", rope_theta=1e4,
    max_position_embeddings=2048, tie_word_embeddings=True, compute_dtype="float32")
OPTIONS = generation.SamplerOptions(slots=32, max_tokens=1280, max_new_tokens=12, prefill_widths=(32, 64, 256),
                                    read_sizes=(256, 512, 1280))
STEPS = 64


def cpu_seconds(work, repeats):
    """CPU seconds of one call of `work`, after one that is not counted."""
    work()
    began = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - began) / repeats


def decode(params, read, drawing):
    """CPU seconds of one decode step of a group of slots that look at `read` positions, with or without drawing tokens."""
    slots = generation.GROUP
    written, budget = np.full(slots, read - STEPS - 1, np.int32), np.full(slots, STEPS, np.int32)
    nobody_stops = (VOCABULARY - 1,)  # the one id that is above the limit

    def draw(params, kv):
        hidden = jnp.zeros((slots, CONFIG.hidden_size), out_sharding=sharding.spec("rows", None))
        keys = np.zeros((slots, 2), np.uint32)
        return decoding.sample_tokens(params, CONFIG, kv, hidden, np.arange(slots), written, budget, keys,
                                      np.float32(1), nobody_stops, VOCABULARY - 1, STEPS, read)

    def model_only(params, kv):
        token = sharding.shard(jnp.zeros((slots, 1), jnp.int32), ("rows", None))

        def step(_, carry):
            states, kv = decoder.hidden_cached(params, CONFIG, token, jnp.ones(slots, jnp.int32), carry[0], read)
            return kv, carry[1] + states[:, 0]

        kv = dataclasses.replace(kv, length=sharding.shard(jnp.asarray(written), ("rows",)))
        total = jnp.zeros((slots, CONFIG.hidden_size), out_sharding=sharding.spec("rows", None))
        return jax.lax.fori_loop(0, STEPS, step, (kv, total))

    compiled = jax.jit(draw if drawing else model_only, donate_argnums=1)
    kv = [kv_cache.empty(CONFIG, slots, OPTIONS.max_tokens)]

    def work():
        kv[0], rest = compiled(params, kv[0])
        jax.block_until_ready(rest)

    return cpu_seconds(work, 3) / STEPS


def prefill(params, width, read):
    """CPU seconds to read a piece of this width into as many slots as the sampler takes at once, and their number."""
    sampler = generation.Sampler(CONFIG, OPTIONS, (VOCABULARY - 1,), VOCABULARY)
    group, cache = sampler._group(width), [sampler.empty_cache()]
    pieces = {slot: np.ones(width, np.int32) for slot in range(group)}

    def work():
        start = dataclasses.replace(cache[0], written=np.full(OPTIONS.slots, read - width, np.int32))
        cache[0] = sampler._read_pieces(params, start, width, read, pieces)
        jax.block_until_ready(cache[0].kv)

    return cpu_seconds(work, 5), group


def rollout(sampler, params, turns, live):
    """CPU and wall time of a turn in which some slots take part and one in sixteen of them starts a new episode."""
    random, cache = np.random.default_rng(0), sampler.empty_cache()
    prompted = sampled = 0
    began, cpu = time.perf_counter(), time.process_time()
    for turn in range(turns):
        fresh = range(live) if turn == 0 else np.flatnonzero(random.random(live) < 1 / 16).tolist()
        prompts = {slot: random.integers(0, VOCABULARY - 1, 200 if slot in fresh else random.integers(8, 32))
                   for slot in range(live)}
        keys = {slot: (turn, slot) for slot in prompts}
        cache, responses = sampler.turn(params, cache, prompts, fresh, keys, 1.0)
        prompted += sum(map(len, prompts.values()))
        sampled += sum(len(response.tokens) for response in responses.values())
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {f"turn_cpu_ms/{live}": 1e3 * cpu / turns, f"turn_wall_ms/{live}": 1e3 * wall / turns,
            f"prompt_tokens_per_cpu_s/{live}": prompted / cpu, f"sampled_tokens_per_cpu_s/{live}": sampled / cpu}


def main():
    jax.set_mesh(sharding.make_mesh(1, 1))
    params = jax.jit(decoder.init, static_argnums=1)(jax.random.key(0), CONFIG)
    sampler = generation.Sampler(CONFIG, OPTIONS, (VOCABULARY - 1,), VOCABULARY)
    result = {"warm_up_s": sampler.warm_up(params), "compilations": sampler.compilations}
    for live in (OPTIONS.slots, 4):
        result |= rollout(sampler, params, 40, live)
    for read in OPTIONS.read_sizes:
        loop, bare = decode(params, read, drawing=True), decode(params, read, drawing=False)
        result |= {f"decode_tokens_per_cpu_s/{read}": generation.GROUP / loop, f"decode_overhead/{read}": loop / bare}
        for width in OPTIONS.prefill_widths:
            seconds, group = prefill(params, width, read)
            result[f"prefill_tokens_per_cpu_s/{width}x{group}/{read}"] = width * group / seconds
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


if __name__ == "__main__":
    main()
