"""The decoder against slow numpy, whole rows against cached turns, and everything that padding must not do."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import hidden as reference_hidden
from tiny import config as tiny_config
from tiny import params as tiny_params
from tiny import shapes as tiny_shapes

from rspo_jax.models import decoder, kv_cache, layers

FAMILIES = ["qwen2", "qwen3", "llama"]
whole = jax.jit(decoder.hidden, static_argnums=1, static_argnames="remat")
cached = jax.jit(decoder.hidden_cached, static_argnums=(1, 5), donate_argnums=4)


def positions(tokens):
    return np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)


def random_tokens(rows, length, seed=0):
    return np.random.default_rng(seed).integers(0, 48, (rows, length)).astype(np.int32)


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_slow_numpy(family):
    cfg = tiny_config(family)
    params, tokens = tiny_params(cfg), random_tokens(2, 70)  # 70: a whole block of queries and a ragged one
    states = whole(params, cfg, tokens, positions(tokens), remat=False)
    for row in range(2):
        np.testing.assert_allclose(states[row], reference_hidden(params, cfg, tokens[row]), atol=1e-4)


def test_equals_slow_numpy_at_600_tokens():
    cfg = tiny_config("qwen2")
    params, tokens = tiny_params(cfg), random_tokens(1, 600)
    states = whole(params, cfg, tokens, positions(tokens), remat=False)
    np.testing.assert_allclose(states[0], reference_hidden(params, cfg, tokens[0]), atol=1e-4)


def test_query_heads_read_consecutive_key_heads():
    # Query heads 0 and 1 read key/value head 0 (h // 2): what they add must not depend on value head 1.
    cfg = tiny_config("llama", num_hidden_layers=1)
    params, tokens = tiny_params(cfg), random_tokens(1, 5)

    def states(zeroed_value_columns):
        o_proj, v_proj = np.array(params["layers"]["o_proj"]), np.array(params["layers"]["v_proj"])
        o_proj[:, 16:] = 0.0  # only query heads 0 and 1 reach the output
        v_proj[:, :, zeroed_value_columns] = 0.0
        layers = params["layers"] | {"o_proj": o_proj, "v_proj": v_proj}
        return whole(params | {"layers": layers}, cfg, tokens, positions(tokens), remat=False)

    np.testing.assert_array_equal(states(slice(8, 16)), states(slice(0, 0)))
    assert np.abs(states(slice(0, 8)) - states(slice(0, 0))).max() > 0.1


def test_remat_changes_no_gradient():
    cfg = tiny_config("qwen3", tie_word_embeddings=False)
    params, tokens = tiny_params(cfg), random_tokens(2, 70)

    def gradient(remat):
        def loss(params):
            return jnp.mean(jnp.sin(decoder.hidden(params, cfg, tokens, positions(tokens), remat=remat)))

        return jax.jit(jax.grad(loss))(params)

    for plain, again in zip(jax.tree.leaves(gradient(False)), jax.tree.leaves(gradient(True)), strict=True):
        np.testing.assert_allclose(again, plain, atol=1e-6)


def test_gradient_equals_finite_differences():
    cfg = tiny_config("qwen2", num_hidden_layers=1)
    params, tokens = tiny_params(cfg), random_tokens(1, 6)

    def loss(params):
        return jnp.sum(jnp.sin(decoder.hidden(params, cfg, tokens, positions(tokens), remat=True)))

    gradient = jax.jit(jax.grad(loss))(params)
    for name in ("q_bias", "k_proj", "v_bias", "o_proj", "gate_proj", "input_layernorm"):
        direction = np.random.default_rng(1).normal(size=params["layers"][name].shape)

        def moved(step, name=name, direction=direction):
            layers = params["layers"] | {name: np.asarray(params["layers"][name], np.float64) + step * direction}
            return np.sin(reference_hidden(params | {"layers": layers}, cfg, tokens[0])).sum()

        slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
        np.testing.assert_allclose(np.vdot(gradient["layers"][name], direction), slope, rtol=1e-3, atol=1e-3)


def test_padding_changes_neither_values_nor_gradients():
    cfg = tiny_config("qwen2")
    params, tokens = tiny_params(cfg), random_tokens(3, 20)
    lengths = np.array([20, 7, 0])  # the last row is nothing but padding
    real = np.arange(20) < lengths[:, None]

    def loss(params, tokens):
        states = decoder.hidden(params, cfg, tokens, positions(tokens), remat=True)
        return jnp.sum(jnp.where(real[..., None], jnp.sin(states), 0.0))

    step = jax.jit(jax.value_and_grad(loss))
    value, gradient = step(params, np.where(real, tokens, 0))
    other_value, other_gradient = step(params, np.where(real, tokens, 31))
    assert value == other_value
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(other_gradient), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, atol=1e-5)
    alone = whole(params, cfg, tokens[1:2, :7], positions(tokens[1:2, :7]), remat=False)
    together = whole(params, cfg, np.where(real, tokens, 0), positions(tokens), remat=False)
    np.testing.assert_allclose(together[1, :7], alone[0], atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_turns_equal_whole_rows(family):
    """Four slots take ragged turns, sit some out, one is refilled, padding is garbage; every state equals the full forward's."""
    cfg = tiny_config(family)
    params = tiny_params(cfg)
    rng = np.random.default_rng(3)
    cache = kv_cache.empty(cfg, 4, 64)
    history = [[] for _ in range(4)]
    turns = [[9, 3, 0, 5], [1, 1, 1, 1], [0, 7, 9, 1], [1, 0, 1, 1], [9, 9, 9, 9], [1, 1, 0, 1], [5, 2, 1, 0]]
    for turn, lengths in enumerate(turns):
        if turn == 4:  # slot 1's episode ends and another takes its place
            cache = dataclasses.replace(cache, length=cache.length * np.array([1, 0, 1, 1], np.int32))
            history[1] = []
        tokens = rng.integers(0, 48, (4, 1 if max(lengths) == 1 else 9)).astype(np.int32)
        for slot, length in enumerate(lengths):
            history[slot] += tokens[slot, :length].tolist()
        states, cache = cached(params, cfg, tokens, np.array(lengths, np.int32), cache, 0 if turn == 0 else 48)
        assert np.isfinite(states).all()
        np.testing.assert_array_equal(cache.length, [len(row) for row in history])
        for slot, length in enumerate(lengths):
            if length:
                row = np.zeros((1, 48), np.int32)
                row[0, : len(history[slot])] = history[slot]
                expected = whole(params, cfg, row, positions(row), remat=False)[0, : len(history[slot])]
                np.testing.assert_allclose(states[slot, :length], expected[-length:], atol=1e-4)


def test_decode_equals_whole_row_past_257():
    cfg = tiny_config("qwen2")
    params, tokens = tiny_params(cfg), random_tokens(1, 300)
    expected = whole(params, cfg, tokens, positions(tokens), remat=False)
    cache = kv_cache.empty(cfg, 1, 300)
    _, cache = cached(params, cfg, tokens[:, :250], np.array([250], np.int32), cache, 0)
    for l in range(250, 300):
        states, cache = cached(params, cfg, tokens[:, l : l + 1], np.array([1], np.int32), cache, 300)
        np.testing.assert_allclose(states[0, 0], expected[0, l], atol=1e-4)


def test_a_full_slot_is_flagged_and_overwrites_nothing():
    cfg = tiny_config("qwen2")
    params, tokens = tiny_params(cfg), random_tokens(2, 8)
    _, cache = cached(params, cfg, tokens, np.array([8, 3], np.int32), kv_cache.empty(cfg, 2, 8), 0)
    keys, values = np.array(cache.keys), np.array(cache.values)
    states, cache = cached(params, cfg, tokens[:, :2], np.array([1, 2], np.int32), cache, 8)
    assert np.isnan(states[0]).all() and np.isfinite(states[1]).all()
    np.testing.assert_array_equal(cache.keys[0], keys[0])
    np.testing.assert_array_equal(cache.values[0], values[0])
    np.testing.assert_array_equal(cache.length, [9, 5])


def test_reading_too_little_is_flagged():
    cfg = tiny_config("qwen2")
    params, tokens = tiny_params(cfg), random_tokens(2, 8)
    _, cache = cached(params, cfg, tokens, np.array([8, 3], np.int32), kv_cache.empty(cfg, 2, 16), 0)
    states, _ = cached(params, cfg, tokens[:, :1], np.array([1, 1], np.int32), cache, 4)
    assert np.isnan(states[0]).all() and np.isfinite(states[1]).all()


def test_a_padded_token_is_written_nowhere():
    cfg = tiny_config("qwen2")
    cache = kv_cache.empty(cfg, 3, 16)
    _, cache = cached(tiny_params(cfg), cfg, random_tokens(3, 8), np.array([8, 3, 0], np.int32), cache, 0)
    for slot, length in enumerate([8, 3, 0]):
        written = np.abs(np.asarray(cache.values[slot])).sum(axis=(0, 1, 3)) > 0
        np.testing.assert_array_equal(written, np.arange(16) < length)


def test_decoding_updates_the_cache_in_place():
    cfg = tiny_config("qwen2")
    params, cache = tiny_params(cfg), kv_cache.empty(cfg, 4, 640)
    tokens, lengths = np.zeros((4, 1), np.int32), np.ones(4, np.int32)
    compiled = cached.lower(params, cfg, tokens, lengths, cache, 512).compile()
    memory = compiled.memory_analysis()
    cache_bytes = cache.keys.nbytes + cache.values.nbytes
    assert memory.alias_size_in_bytes >= cache_bytes  # the output is the donated input
    # The largest temporary is one layer's part that is read; a copy of the cache would be 2.5 times this bound.
    assert memory.temp_size_in_bytes < 0.6 * cache_bytes


def test_bfloat16_compute_stays_close_to_float32():
    cfg = tiny_config("qwen2")
    params, tokens = tiny_params(cfg), random_tokens(1, 40)
    states = whole(params, tiny_config("qwen2", compute_dtype="bfloat16"), tokens, positions(tokens), remat=True)
    assert states.dtype == jnp.bfloat16
    exact = whole(params, cfg, tokens, positions(tokens), remat=True)
    assert np.abs(np.asarray(states, np.float32) - exact).mean() < 0.02 * np.abs(exact).mean()


@pytest.mark.parametrize("position", [257, 4099])
def test_rope_phases_are_float32_whatever_the_compute_dtype(position):
    # bfloat16 rounds 257 to 256 and 4099 to 4096; the first pair turns by one radian per position.
    x = jnp.ones((1, 1, 1, 4), jnp.bfloat16)
    turned = layers.rope(x, layers.rope_angles(jnp.full((1, 1), position), 4, 1e4))
    assert turned.dtype == jnp.bfloat16
    first, second = position, position / 100  # theta^(-2/4) = 1/100
    expected = [np.cos(a) - np.sin(a) for a in (first, second)] + [np.cos(a) + np.sin(a) for a in (first, second)]
    np.testing.assert_allclose(np.float32(turned[0, 0, 0]), expected, atol=0.01)


def test_every_param_has_axes_and_every_axis_a_param():
    used = set()
    for family in FAMILIES:
        for tied in (True, False):
            params = tiny_shapes(tiny_config(family, tie_word_embeddings=tied))
            axes = decoder.param_axes(params)
            jax.tree.map(lambda leaf, names: None if leaf.ndim == len(names) else pytest.fail(str(names)), params, axes)
            used |= {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    entries = jax.tree_util.tree_leaves_with_path(decoder.PARAM_AXES, is_leaf=lambda node: isinstance(node, tuple))
    assert used == {jax.tree_util.keystr(path) for path, _ in entries}
    with pytest.raises(ValueError, match="layers/lora_a has no entry"):
        decoder.param_axes({"layers": {"lora_a": 0}})


def test_without_a_mesh_the_error_says_what_to_do():
    cfg = tiny_config("qwen2")
    params, tokens = tiny_params(cfg), random_tokens(1, 4)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        with pytest.raises(RuntimeError, match="set_mesh"):
            decoder.hidden(params, cfg, tokens, positions(tokens), remat=False)
