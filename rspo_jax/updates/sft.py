"""Supervised fine-tuning (behaviour cloning) on trajectories: maximise the weighted log-likelihood.

    L = - sum_tokens weight log pi(token)

The weights decide what is imitated: action tokens fully, tokens of the environment a little or not at all.
"""

import jax.numpy as jnp

from rspo_jax.updates import accumulate


def make_sft_update(score, optimizer):
    """`update(state, microbatches) -> (state, metrics)` for TrajectoryBatches; weight is read on every token.

    Args:
        score: (params, tokens [R, L]) -> (logp [R, L], entropy [R, L]).
        optimizer: an optax.GradientTransformation.
    """

    def loss(params, batch):
        logp, _ = score(params, batch.tokens)
        counted = batch.weight > 0
        value = -jnp.sum(batch.weight * jnp.where(counted, logp, 0.0))
        actions = batch.action_mask & counted
        sums = {"action_logp": jnp.sum(jnp.where(actions, logp, 0.0)), "action_tokens": jnp.sum(actions)}
        return value, (sums, {})

    return accumulate.make_update(accumulate.make_gradient(loss), optimizer)
