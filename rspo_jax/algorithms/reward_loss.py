"""Losses of the process reward models: RSPO's regression, iStar's trajectory preference, PRIME's cross-entropy.

regression (RSPO eq. 5 to 7): a head on a frozen decoder gives each step a reward in (-1, 1) (eq. 5, models/heads.py).
Their sum over an episode is trained, once and before the loop, to be the episode's outcome.

preference (iStar eq. 2): the log-ratio of the PRM to the old policy, summed over a trajectory, is the logit by which a
successful episode of a group should beat a failed one. The loss couples all trajectories of the batch; its gradient with
respect to a step's logit is closed, `preference_weights`, so a train step makes two passes: the logits of all rows, then
`sum(weight * logit)` over micro-batches, whose gradient is the loss's.
"""

import chex
import jax
import jax.numpy as jnp

from rspo_jax.algorithms import masking

LOGITS = ("sum", "mean")


def predicted_return(step_rewards, step_mask):
    """R_hat = sum_t r_hat_t (RSPO eq. 6).

    Args:
        step_rewards: [B, T], garbage outside step_mask.
        step_mask: [B, T] bool.

    Returns:
        [B]; 0 for an episode without steps.
    """
    chex.assert_equal_shape([step_rewards, step_mask])
    return jnp.sum(jnp.where(step_mask, step_rewards, 0.0), axis=1)


def regression(step_rewards, step_mask, outcome):
    """Squared error of each predicted return (RSPO eq. 7, before the mean over trajectories).

        L_P = 1/N sum_i (R_hat_i - R_i)^2

    Args:
        step_rewards: [B, T] in (-1, 1).
        step_mask: [B, T] bool.
        outcome: [B] in [0, 1].

    Returns:
        [B].
    """
    chex.assert_equal_shape([step_rewards, step_mask])
    chex.assert_rank(outcome, 1)
    return jnp.square(predicted_return(step_rewards, step_mask) - outcome)


def trajectory_logits(step_logits, step_mask, aggregation):
    """Logit of each trajectory: the sum of its step logits (iStar eq. 2) or, as its released code has it, their mean.

    Args:
        step_logits: [B, T], beta (log pi_prm - log pi_ref) summed over each step's tokens; garbage outside step_mask.
        step_mask: [B, T] bool.
        aggregation: one of LOGITS; the mean takes away the advantage of long episodes, and the calibration with it.

    Returns:
        [B]; 0 for an episode without steps.
    """
    if aggregation not in LOGITS:
        raise ValueError(f"config.istar.logit={aggregation!r} is unknown; use one of {', '.join(LOGITS)}.")
    total = predicted_return(step_logits, step_mask)
    return total if aggregation == "sum" else total / jnp.maximum(jnp.sum(step_mask, axis=1), 1)


def preference(logits, positive, negative, group):
    """Preference loss over all positive x negative pairs within each group (iStar eq. 2).

        L = - mean over pairs of log sigma(z_i - z_j),   i positive, j negative, of one group

    Args:
        logits: [B], see trajectory_logits; garbage where neither positive nor negative.
        positive, negative: [B] bool. An unscored episode, one that an error ended and padding are neither.
        group: [B] int32.

    Returns:
        loss [] and the number of pairs [] int32. Without a pair the loss is 0 and the caller skips the update, moments and
        counter included. A PRM that equals the old policy has loss log 2.
    """
    pair, margin = _pairs(logits, positive, negative, group)
    pairs = jnp.sum(pair)
    return -jnp.sum(jnp.where(pair, jax.nn.log_sigmoid(margin), 0.0)) / jnp.maximum(pairs, 1), pairs


def preference_weights(logits, positive, negative, group):
    """dL/dz of `preference` for each trajectory, [B]: what a train step multiplies its logit with.

        positive i:  - sum_j sigma(z_j - z_i) / pairs,      negative j:  + sum_i sigma(z_j - z_i) / pairs

    Each step logit of a trajectory gets its trajectory's weight (`sum`), or that over its number of steps (`mean`).

    Args as in preference. All weights are 0 where there is no pair.
    """
    pair, margin = _pairs(logits, positive, negative, group)
    push = jnp.where(pair, jax.nn.sigmoid(-margin), 0.0) / jnp.maximum(jnp.sum(pair), 1)
    return jnp.sum(push, axis=0) - jnp.sum(push, axis=1)


def preference_accuracy(logits, positive, negative, group):
    """Share of the pairs that the logits order rightly; 0 where there is no pair. Arguments as in preference."""
    pair, margin = _pairs(logits, positive, negative, group)
    return masking.mean(margin > 0, pair)


def preference_margin(logits, positive, negative, group):
    """Mean of z_i - z_j over the pairs; 0 where there is no pair. Arguments as in preference."""
    pair, margin = _pairs(logits, positive, negative, group)
    return masking.mean(margin, pair)


def cross_entropy(logits, positive):
    """Binary cross-entropy of each logit to its label (PRIME; per row of a step in iStar's multi-turn PRIME baseline).

        L = - y log sigma(z) - (1 - y) log sigma(-z),   dL/dz = sigma(z) - y

    Args:
        logits: [...], beta sum of log pi_prm - log pi_ref over the tokens.
        positive: [...] bool.

    Returns:
        [...].
    """
    chex.assert_equal_shape([logits, positive])
    return -jax.nn.log_sigmoid(jnp.where(positive, logits, -logits))


def cross_entropy_weights(logits, positive):
    """dL/dz of `cross_entropy`, [...], for the same two passes as preference_weights."""
    chex.assert_equal_shape([logits, positive])
    return jax.nn.sigmoid(logits) - positive


def _pairs(logits, positive, negative, group):
    """[B, B]: whether (i, j) is a pair, and z_i - z_j, 0 elsewhere."""
    chex.assert_rank(logits, 1)
    chex.assert_equal_shape([logits, positive, negative, group])
    pair = positive[:, None] & negative[None, :] & (group[:, None] == group[None, :])
    logits = jnp.where(positive | negative, logits, 0.0)
    return pair, jnp.where(pair, logits[:, None] - logits[None, :], 0.0)
