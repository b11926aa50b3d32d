"""Chunked log-probs against the plain log-softmax, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rspo_jax.algorithms import logprobs


def data(rows=3, length=7, width=5, vocabulary=11):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(rows, length, width)).astype(np.float32)
    unembedding = rng.normal(size=(vocabulary, width)).astype(np.float32)
    return hidden, unembedding, rng.integers(0, vocabulary - 2, (rows, length)).astype(np.int32)


def plain(hidden, unembedding, targets, temperature, vocab_limit):
    logp = jax.nn.log_softmax((hidden @ unembedding.T)[..., :vocab_limit] / temperature)
    return jnp.take_along_axis(logp, targets[..., None], axis=-1)[..., 0], -jnp.sum(jnp.exp(logp) * logp, axis=-1)


def test_by_hand():
    # Logits [ln 1, ln 2, ln 5] at temperature 1: p = 1/8, 2/8, 5/8. At temperature 1/2 they double: 1/30, 4/30, 25/30.
    hidden, unembedding = jnp.ones((1, 1, 1)), jnp.log(jnp.array([[1.0], [2.0], [5.0]]))
    logp, entropy = logprobs.token_logprobs(hidden, unembedding, jnp.array([[1]]), 1.0, 4, 3)
    np.testing.assert_allclose(logp, [[np.log(2 / 8)]], rtol=1e-6)
    np.testing.assert_allclose(entropy, [[-sum(p * np.log(p) for p in (1 / 8, 2 / 8, 5 / 8))]], rtol=1e-6)
    logp, _ = logprobs.token_logprobs(hidden, unembedding, jnp.array([[1]]), 0.5, 4, 3)
    np.testing.assert_allclose(logp, [[np.log(4 / 30)]], rtol=1e-6)
    # Without the last row of the vocabulary: p = 1/3, 2/3.
    logp, _ = logprobs.token_logprobs(hidden, unembedding, jnp.array([[1]]), 1.0, 4, 2)
    np.testing.assert_allclose(logp, [[np.log(2 / 3)]], rtol=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
def test_equals_unchunked_with_gradients(chunk):
    hidden, unembedding, targets = data()
    weights = np.random.default_rng(1).normal(size=(2, *targets.shape)).astype(np.float32)

    def weighted(compute):
        def loss(hidden, unembedding):
            logp, entropy = compute(hidden, unembedding)
            return jnp.mean(weights[0] * logp + weights[1] * entropy), (logp, entropy)

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(hidden, unembedding)

    expected = weighted(lambda h, u: plain(h, u, targets, 0.7, 9))
    chunked = weighted(lambda h, u: logprobs.token_logprobs(h, u, targets, 0.7, chunk, 9))
    for a, b in zip(jax.tree.leaves(chunked), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_padded_vocabulary_has_no_probability_and_no_gradient():
    hidden, unembedding, targets = data()
    gradient = jax.grad(lambda u: logprobs.token_logprobs(hidden, u, targets, 1.0, 3, 9)[1].sum())(unembedding)
    np.testing.assert_array_equal(gradient[9:], 0.0)
    unembedding[9:] = 1e4
    logp, entropy = logprobs.token_logprobs(hidden, unembedding, targets, 1.0, 3, 9)
    np.testing.assert_allclose(logp, plain(hidden, unembedding, targets, 1.0, 9)[0], atol=1e-5)
    assert np.isfinite(entropy).all()


def test_sequence_logprobs_are_aligned_with_tokens():
    hidden, unembedding, tokens = data()
    logp, entropy = logprobs.sequence_logprobs(hidden, unembedding, tokens, 1.0, 4, 9)
    assert logp.shape == entropy.shape == tokens.shape
    np.testing.assert_array_equal([logp[:, 0], entropy[:, 0]], 0.0)
    # Token l is predicted by the state at l - 1, and no later state has a say.
    expected, expected_entropy = plain(hidden, unembedding, np.roll(tokens, -1, axis=1), 1.0, 9)
    np.testing.assert_allclose(logp[:, 1:], expected[:, :-1], atol=1e-5)
    np.testing.assert_allclose(entropy[:, 1:], expected_entropy[:, :-1], atol=1e-5)


def test_logits_of_the_whole_batch_are_never_held():
    rows, length, width, vocabulary = 4, 256, 8, 4096
    shapes = [(rows, length, width), (vocabulary, width)]
    hidden, unembedding = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    targets = jax.ShapeDtypeStruct((rows, length), jnp.int32)

    def loss(hidden, unembedding, targets):
        logp, entropy = logprobs.token_logprobs(hidden, unembedding, targets, 1.0, 16, vocabulary)
        return logp.sum() + entropy.sum()

    memory = jax.jit(jax.grad(loss, (0, 1))).lower(hidden, unembedding, targets).compile().memory_analysis()
    assert memory.temp_size_in_bytes < rows * length * vocabulary * 4 / 2


def test_bfloat16_states_give_float32_logprobs():
    hidden, unembedding, targets = data()
    logp, entropy = logprobs.token_logprobs(jnp.asarray(hidden, jnp.bfloat16), unembedding, targets, 1.0, 3, 11)
    assert logp.dtype == entropy.dtype == jnp.float32
