"""The sampler against a full forward over the ids that it produced, and against itself in other company and shapes."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rspo_jax import decoding, generation, sharding
from rspo_jax.models import decoder

ROOT = pathlib.Path(__file__).parents[1]
LIMIT, STOPS = 60, (3, 4)  # ids 60..63 are padded rows of the vocabulary
CONFIG = decoder.DecoderConfig(
    model_type="qwen2", vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-6, rope_type="default", rope_theta=1e4, max_position_embeddings=256,
    tie_word_embeddings=False, compute_dtype="float32")
OPTIONS = generation.SamplerOptions(slots=4, max_tokens=96, max_new_tokens=6, prefill_widths=(8, 16), read_sizes=(32, 96))
ALONE = generation.SamplerOptions(slots=1, max_tokens=96, max_new_tokens=6, prefill_widths=(32,), read_sizes=(96,))


def make_params():
    """Biases are random too, and the weights large enough for predictions to differ from token to token."""
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: decoder.init(jax.random.key(0), CONFIG))
    params = jax.tree.map(lambda x: (0.25 * random.normal(size=x.shape)).astype(np.float32), shapes)
    params["norm"] = params["norm"] + 1
    return put(params)


def put(params):
    return jax.device_put(params, sharding.param_shardings(jax.sharding.get_mesh(), decoder.param_axes(params)))


def with_rows(params, name, ids, value):
    """params with some rows of one of the vocabulary's tables set to a value."""
    table = np.array(params[name])
    table[ids] = value
    return put(params | {name: table})


@pytest.fixture(scope="module", autouse=True)
def mesh():
    # Groups of two: the four slots decode in two groups, and read pieces of 16 one by one.
    with pytest.MonkeyPatch.context() as patch, jax.set_mesh(sharding.make_mesh(1, 1)):
        patch.setattr(generation, "GROUP", 2)
        yield


@pytest.fixture(scope="module")
def params(mesh):
    return make_params()


@pytest.fixture(scope="module")
def sampler(params):
    warm = generation.Sampler(CONFIG, OPTIONS, STOPS, LIMIT)
    assert warm.warm_up(params) > 0
    return warm


@jax.jit
def full_logits(params, row):
    """[1, L, V] by one forward over a whole row."""
    states = decoder.hidden(params, CONFIG, row, jnp.arange(row.shape[1])[None], remat=False)
    return states @ decoder.unembedding(params, CONFIG).T


def reference(params, tokens):
    """Logits [n, LIMIT] float64 of a row of n tokens; those at i predict token i + 1."""
    row = np.zeros((1, OPTIONS.max_tokens), np.int32)
    row[0, :len(tokens)] = tokens
    return np.asarray(full_logits(params, row), np.float64)[0, :len(tokens), :LIMIT]


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class Row:
    """What the host knows of a row: its ids, and where the responses in them begin."""

    def __init__(self):
        self.tokens, self.responses = [], []

    def add(self, prompt, response):
        self.responses.append((len(self.tokens) + len(prompt), response))
        self.tokens += [*prompt.tolist(), *response.tokens.tolist()]

    def check(self, logits, temperature):
        logp = log_softmax(logits / (temperature or 1))
        for start, response in self.responses:
            n = len(response.tokens)
            predicted = np.arange(start - 1, start - 1 + n)
            np.testing.assert_allclose(response.logp, logp[predicted, response.tokens], atol=1e-4, rtol=0)
            if temperature == 0:
                assert response.tokens.tolist() == logits[predicted].argmax(axis=1).tolist()


def play(sampler, params, temperature, turns, seed):
    """Ragged turns: some slots take part, some start anew, prompts are from one token to several pieces long."""
    random = np.random.default_rng(seed)
    cache, live, ended = sampler.empty_cache(), {}, []
    for turn in range(turns):
        slots = [slot for slot in range(OPTIONS.slots) if random.random() < 0.8] or [0]
        fresh = [slot for slot in slots if slot not in live or len(live[slot].tokens) > 70 or random.random() < 0.1]
        ended += [live.pop(slot) for slot in fresh if slot in live]
        live |= {slot: Row() for slot in fresh}
        prompts = {slot: random.integers(5, LIMIT, random.integers(1, 20)) for slot in slots}
        if turn % 3 == 0:
            prompts |= {slot: random.integers(5, LIMIT, 44) for slot in fresh[:1]}  # pieces of 16, 16 and 12
        cache, responses = sampler.turn(params, cache, prompts, fresh, {slot: (seed, turn, slot) for slot in slots}, temperature)
        assert responses.keys() == prompts.keys()
        for slot, response in responses.items():
            assert not (response.overflow and not len(response.tokens)), "rows are restarted before they are full"
            live[slot].add(prompts[slot], response)
            stops = np.isin(response.tokens, STOPS)
            assert not stops[:-1].any() and stops[-1] == response.stopped
            assert response.stopped or response.overflow or len(response.tokens) == OPTIONS.max_new_tokens
            assert len(live[slot].tokens) <= OPTIONS.max_tokens and response.tokens.max() < LIMIT
    return [*ended, *live.values()]


@pytest.mark.parametrize("temperature", [1.0, 0.4, 0.0])
def test_log_probs_equal_those_of_a_full_forward(sampler, params, temperature):
    rows = play(sampler, params, temperature, turns=12, seed=1)
    for row in rows:
        row.check(reference(params, row.tokens), temperature)
    responses = [response for row in rows for _, response in row.responses]
    assert max(len(row.responses) for row in rows) >= 4
    if temperature == 1:  # every way to end is among them
        assert {(response.stopped, len(response.tokens) == OPTIONS.max_new_tokens) for response in responses} >= {
            (True, False), (False, True)}


def assert_same(a, b):
    assert a.tokens.tolist() == b.tokens.tolist() and (a.stopped, a.overflow) == (b.stopped, b.overflow)
    np.testing.assert_allclose(a.logp, b.logp, atol=1e-5, rtol=0)


def test_a_slot_depends_on_its_own_tokens_and_key_only(sampler, params):
    alone = generation.Sampler(CONFIG, ALONE, STOPS, LIMIT)
    random = np.random.default_rng(3)
    prompts = [random.integers(5, LIMIT, n) for n in (21, 7, 30, 2)]
    caches = {"alone": alone.empty_cache(), "idle": sampler.empty_cache(), "busy": sampler.empty_cache()}
    for turn, prompt in enumerate(prompts):
        fresh = turn == 0
        caches["alone"], expected = alone.turn(params, caches["alone"], {0: prompt}, [0] if fresh else [], {0: (7, turn)}, 1.0)
        caches["idle"], idle = sampler.turn(params, caches["idle"], {1: prompt}, [1] if fresh else [], {1: (7, turn)}, 1.0)
        others = {slot: random.integers(5, LIMIT, random.integers(1, 60)) for slot in (0, 1, 2)}
        caches["busy"], busy = sampler.turn(
            params, caches["busy"], {3: prompt} | others, [0, 1, 2, 3] if fresh else [0, 1, 2],
            {3: (7, turn)} | {slot: (slot, turn) for slot in others}, 1.0)
        assert_same(idle[1], expected[0])
        assert_same(busy[3], expected[0])


def test_keys_name_the_noise(sampler, params):
    prompt = np.arange(5, 15)
    keys = {0: (1, 2), 1: (1, 2), 2: (12,), 3: (2, 1)}
    # So hot that the noise alone decides: it differs from key to key and from token to token.
    _, responses = sampler.turn(params, sampler.empty_cache(), dict.fromkeys(range(4), prompt), range(4), keys, 1e6)
    ids = [responses[slot].tokens.tolist() for slot in range(4)]
    assert ids[0] == ids[1] and len({tuple(tokens) for tokens in ids}) == 3
    assert all(len(set(tokens)) > 1 for tokens in ids)


def test_a_fresh_row_keeps_nothing_of_the_old_one(sampler, params):
    prompt = {2: np.arange(5, 45)}
    _, expected = sampler.turn(params, sampler.empty_cache(), prompt, [2], {2: (0,)}, 1.0)
    used = sampler.empty_cache()
    for turn in range(3):  # a long row in every slot, with a pending token
        prompts = {slot: np.full(20, 50 + slot) for slot in range(4)}
        used, _ = sampler.turn(params, used, prompts, prompts if turn == 0 else (), {slot: (turn,) for slot in range(4)}, 1.0)
    _, response = sampler.turn(params, used, prompt, [2], {2: (0,)}, 1.0)
    assert_same(response[2], expected[2])


def test_a_full_row_is_cut_flagged_and_then_reads_nothing(sampler, params):
    wordy = with_rows(params, "lm_head", STOPS, 0.0)  # a logit of 0 is never the largest of sixty, so greedy never stops

    def turn(cache, prompts, fresh):
        prompts = {slot: np.arange(size) % 50 + 5 for slot, size in prompts.items()}
        return sampler.turn(wordy, cache, prompts, fresh, {slot: (0,) for slot in prompts}, 0.0)

    cache, first = turn(sampler.empty_cache(), {1: 80, 2: 84}, (1, 2))  # rows of 86 and 90 tokens
    cache, second = turn(cache, {1: 3, 2: 3}, ())  # 89, and room for 7; 93, and room for 3
    assert [len(response.tokens) for response in (first[1], first[2], second[1], second[2])] == [6, 6, 6, 3]
    assert [response.overflow for response in (first[1], first[2], second[1], second[2])] == [False, False, False, True]
    assert not second[2].stopped
    row = Row()  # nothing that was written before is overwritten by the cut response
    row.add(np.arange(84) % 50 + 5, first[2])
    row.add(np.arange(3) + 5, second[2])
    row.check(reference(wordy, row.tokens), 0.0)
    assert len(row.tokens) == OPTIONS.max_tokens

    written = cache.written.copy()
    cache, third = turn(cache, {1: 1, 2: 1}, ())  # row 1 has 95 tokens: one more would leave no room to answer
    assert all(r.overflow and not r.stopped and r.tokens.size == r.logp.size == 0 for r in third.values())
    assert cache.written.tolist() == written.tolist()
    cache, fourth = turn(cache, {2: 96}, (2,))
    assert fourth[2].overflow and fourth[2].tokens.size == 0
    _, again = turn(cache, {2: 20}, (2,))
    _, expected = turn(sampler.empty_cache(), {2: 20}, (2,))
    assert_same(again[2], expected[2])


def test_nothing_compiles_after_warm_up(sampler, params):
    assert sampler.compilations == 6  # widths 8 and 16 and the decode loop, each at 32 and 96 positions
    events = []
    cache = sampler.empty_cache()
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: events.append(event))
    try:
        random = np.random.default_rng(5)
        for turn in range(10):
            slots = random.permutation(4)[:random.integers(1, 5)].tolist()
            prompts = {slot: random.integers(5, LIMIT, random.integers(1, 40)) for slot in slots}
            cache, _ = sampler.turn(params, cache, prompts, slots if turn % 3 == 0 else (), {slot: (turn,) for slot in slots},
                                    float(turn % 2))
        assert not [event for event in events if "compile" in event]
        jax.jit(lambda x: x * 3 + turn)(np.float32(2))
        assert [event for event in events if "compile" in event], "the listener hears compilations"
    finally:
        jax.monitoring.clear_event_listeners()
    assert sampler.compilations == 6


draw = jax.jit(decoding.draw, static_argnums=4)


def test_padded_rows_of_the_vocabulary_are_never_sampled(params):
    state, unembedding = 3 * np.ones((4, 32), np.float32), np.array(params["lm_head"])
    unembedding[LIMIT:] = 10.0  # without the limit these four would always win
    keys = jax.random.split(jax.random.key(0), 4)
    for temperature in (0.0, 1.0):
        token, logp, finite = draw(state, unembedding, keys, temperature, LIMIT)
        expected = log_softmax((state @ unembedding.T)[:, :LIMIT].astype(np.float64))
        assert (np.asarray(token) < LIMIT).all() and finite.all()
        np.testing.assert_allclose(logp, expected[np.arange(4), np.asarray(token)], atol=1e-5)


def test_draws_follow_the_softmax():
    # Identity states, so the logits are rows of this table; 20,000 draws at temperature 2 from row 0.
    table = jnp.array([[0.0, 2.0, -2.0, 4.0]])
    keys = jax.random.split(jax.random.key(1), 20_000)
    token, _, _ = draw(jnp.ones((20_000, 1)), table.T, keys, 2.0, 4)
    share = np.bincount(np.asarray(token), minlength=4) / 20_000
    # exp(0, 1, -1, 2) / sum = 0.0871, 0.2369, 0.0321, 0.6439; five standard deviations are 0.0177 at most.
    np.testing.assert_allclose(share, [0.0871, 0.2369, 0.0321, 0.6439], atol=0.0177)


def test_logits_that_are_not_finite_stop_the_turn(sampler, params):
    # Token 9's embedding is damaged, so only the slot that reads it is.
    damaged = with_rows(params, "embed_tokens", 9, np.nan)
    prompts = {0: np.array([5, 6]), 3: np.array([5, 9, 6])}
    with pytest.raises(FloatingPointError, match=r"slots \[3\], at row lengths \[3\]"):
        sampler.turn(damaged, sampler.empty_cache(), prompts, prompts, {0: (0,), 3: (0,)}, 1.0)


@pytest.mark.parametrize("change, message", [
    ({"prompts": {}}, "must not be none"),
    ({"prompts": {4: [5]}, "keys": {4: (0,)}}, "slot 4"),
    ({"prompts": {0: []}}, "at least one id"),
    ({"prompts": {0: [64]}}, "vocabulary of 64"),
    ({"fresh": [1]}, r"fresh=\[1\]"),
    ({"keys": {}}, "must have keys"),
    ({"temperature": -1.0}, "temperature=-1.0"),
    ({"temperature": float("nan")}, "temperature=nan"),
])
def test_turns_that_make_no_sense_are_refused(sampler, params, change, message):
    request = {"prompts": {0: [5]}, "fresh": [0], "keys": {0: (0,)}, "temperature": 1.0} | change
    request["prompts"] = {slot: np.array(ids, np.int32) for slot, ids in request["prompts"].items()}
    with pytest.raises(ValueError, match=message):
        sampler.turn(params, sampler.empty_cache(), **request)


@pytest.mark.parametrize("change, message", [
    ({"slots": 0}, "slots=0"),
    ({"prefill_widths": ()}, "prefill_widths"),
    ({"prefill_widths": (16, 8)}, "ascending"),
    ({"read_sizes": (32, 64)}, "max_tokens=96"),
])
def test_options_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        generation.SamplerOptions(**vars(OPTIONS) | change)


@pytest.mark.parametrize("stops, limit, message", [
    ((60,), 60, "stop_tokens"), ((), 60, "stop_tokens"), ((3,), 65, "vocab_limit=65")])
def test_a_tokenizer_of_another_model_is_refused(stops, limit, message):
    with pytest.raises(ValueError, match=message):
        generation.Sampler(CONFIG, OPTIONS, stops, limit)


def three_turns(sampler, params):
    """Ids and log-probs of fixed turns, for the comparison of meshes."""
    cache, told = sampler.empty_cache(), []
    for turn in range(3):
        prompts = {slot: (np.arange(3 + 9 * slot) * (turn + 3)) % 55 + 5 for slot in range(turn, 4)}
        keys = {slot: (slot, turn) for slot in prompts}
        cache, responses = sampler.turn(params, cache, prompts, prompts if turn == 0 else (), keys, 1.0)
        told += [(response.tokens.tolist(), response.logp.tolist()) for response in responses.values()]
    return told


def test_a_mesh_of_two_by_two_samples_the_same(sampler, params):
    code = ("import json, jax, test_generation as t\n"
            "jax.set_mesh(t.sharding.make_mesh(2, 2))\n"
            "t.generation.GROUP = 2\n"
            "print(json.dumps(t.three_turns(t.generation.Sampler(t.CONFIG, t.OPTIONS, t.STOPS, t.LIMIT), t.make_params())))")
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu",
                                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for (tokens, logp), (sharded_tokens, sharded_logp) in zip(three_turns(sampler, params), json.loads(done.stdout), strict=True):
        assert tokens == sharded_tokens
        np.testing.assert_allclose(logp, sharded_logp, atol=1e-5, rtol=0)
