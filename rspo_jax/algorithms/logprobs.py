"""Log-probs and entropies of tokens without ever holding the logits of a batch.

A vocabulary of 152k makes the logits of one row of 4096 tokens 2.5 GB. They are computed in chunks over the sequence
and computed again in the backward pass, so that at most one chunk of them exists at a time, forward or backward.
"""

import chex
import jax
import jax.numpy as jnp


def token_logprobs(hidden, unembedding, targets, temperature, chunk, vocab_limit):
    """log p(target) and the entropy of p = softmax(hidden unembedding^T / temperature), for each position.

    Rows of the vocabulary at and beyond vocab_limit are padding and have no probability. The log-prob is picked by
    comparison with arange(V), which a vocabulary sharded over the mesh allows and take_along_axis does not.

    Args:
        hidden: [R, L, d], any float dtype; R may be sharded.
        unembedding: [V, d]; V may be sharded.
        targets: [R, L] int32, below vocab_limit.
        temperature: > 0; the logits are divided by it.
        chunk: static, positions of each row at a time.
        vocab_limit: static, real tokens of the vocabulary.
    Returns:
        log-probs [R, L] and entropies [R, L] in nats, float32.
    """
    chex.assert_rank([hidden, unembedding, targets], [3, 2, 2])
    chex.assert_equal_shape_prefix([hidden, targets], 2)
    chex.assert_equal(hidden.shape[2], unembedding.shape[1])
    length = hidden.shape[1]
    padding = -length % chunk
    parts = (length + padding) // chunk

    def split(x):  # [R, L, ...] -> [parts, R, chunk, ...]
        x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(x.shape[0], parts, chunk, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def one(part):
        return _chunk_logprobs(*part, unembedding, temperature, vocab_limit)

    _, (logp, entropy) = jax.lax.scan(lambda _, part: (None, one(part)), None, (split(hidden), split(targets)))

    def join(x):  # [parts, R, chunk] -> [R, L]
        return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)[:, :length]

    return join(logp), join(entropy)


def sequence_logprobs(hidden, unembedding, tokens, temperature, chunk, vocab_limit):
    """`token_logprobs` of each token given those before it: entry l is log p(tokens[l] | tokens[:l]).

    The state at l - 1 predicts token l. Nothing predicts token 0; its log-prob and entropy are 0.

    Args:
        hidden: [R, L, d], the states of the same tokens.
        tokens: [R, L] int32.
    Returns:
        log-probs [R, L] and entropies [R, L], float32, aligned with tokens.
    """
    logp, entropy = token_logprobs(hidden[:, :-1], unembedding, tokens[:, 1:], temperature, chunk, vocab_limit)
    return tuple(jnp.pad(x, ((0, 0), (1, 0))) for x in (logp, entropy))


def _chunk_logprobs(hidden, targets, unembedding, temperature, vocab_limit):
    rows, length, width = hidden.shape
    vocabulary = jnp.arange(unembedding.shape[0])
    # Flat tokens: XLA:CPU computes the weight gradient of a 3-D product three times slower.
    logits = jnp.matmul(hidden.reshape(-1, width), unembedding.astype(hidden.dtype).T, preferred_element_type=jnp.float32)
    logits = jnp.where(vocabulary < vocab_limit, logits / temperature, -1e30)
    logp = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    chosen = jnp.sum(jnp.where(targets.reshape(-1)[:, None] == vocabulary, logp, 0.0), axis=-1)
    entropy = -jnp.sum(jnp.exp(logp) * logp, axis=-1)  # of padding: 0 * -1e30 = -0
    return chosen.reshape(rows, length), entropy.reshape(rows, length)
