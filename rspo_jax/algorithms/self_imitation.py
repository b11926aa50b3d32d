"""SPEAR: imitation of the agent's own past successes, beside the on-policy update.

Rows with a positive advantage are kept with the log-probs of the policy that sampled them. When enough have come
together they are compared anew, with the median of recent group means in place of their old group (`replay_advantage`);
those that still stand out train in separate updates, by the ordinary clipped surrogate against the stored log-probs,
times `imitation_weight`. `covariance_clip` then takes the gradient of a few tokens that would cost the most entropy, on
policy too. Its base, Dr.BoT: group_centered, epsilon 0.2 and 0.28, dual clip 10, sum_over_length, no KL,
filtering.widest_groups.
"""

import chex
import jax
import jax.numpy as jnp

from rspo_jax.algorithms import masking


def replay_advantage(returns, age, recent_means, recent_mask, tolerance):
    """Advantage of replayed trajectories against the 50th percentile of the recent group means, and which may train.

        A' = R - P50(recent group means),   kept while A' >= 0 and age <= tolerance

    Args:
        returns: [B].
        age: [B] int32, updates between their sampling and the newest of the buffer.
        recent_means: [M], FIFO of group means; 10240 long in the public code.
        recent_mask: [M] bool, the filled entries; with none of them nothing is kept.
        tolerance: 5 in the public code.

    Returns:
        advantage [B], 0 where not kept, and kept [B] bool.
    """
    chex.assert_equal_shape([returns, age])
    chex.assert_equal_shape([recent_means, recent_mask])
    baseline = jnp.nanmedian(jnp.where(recent_mask, recent_means, jnp.nan))
    kept = (returns >= baseline) & (age <= tolerance)  # False against nan
    return jnp.where(kept, returns - baseline, 0.0), kept


def covariance_clip(logp, advantage, candidates, action_mask, band, fraction, key):
    """Tokens whose loss is set to 0 because they would cost the most entropy (Clip-Cov).

        cov_l = (A_l - mean A) (logp_l - mean logp),   those with low < cov < high, and of these uniformly at random
        max(1, floor(fraction * action tokens))

    Args:
        logp, advantage: [R, L], of the whole batch, since means and count are; garbage outside action_mask.
        candidates: [R, L] bool, tokens that may be chosen: those that the surrogate does not clip anyway.
        action_mask: [R, L] bool.
        band: (low, high); (1, 5) on policy, (2, 60) in replay.
        fraction: 2e-4 on policy, 0.02 in replay.
        key: random key.

    Returns:
        [R, L] bool, True where the loss is dropped; at most as many as there are in the band.
    """
    chex.assert_equal_shape([logp, advantage, candidates, action_mask])
    covariance = (advantage - masking.mean(advantage, action_mask)) * (logp - masking.mean(logp, action_mask))
    within = action_mask & candidates & (covariance > band[0]) & (covariance < band[1])
    wanted = jnp.maximum(jnp.floor(fraction * jnp.sum(action_mask)), 1)
    lot = jnp.where(within, jax.random.uniform(key, within.shape), jnp.inf).reshape(-1)
    place = jnp.argsort(jnp.argsort(lot)).reshape(within.shape)  # [R * L] -> [R, L]
    return within & (place < wanted)


def imitation_weight(update, horizon):
    """Weight of the replay loss, from 0 up to 1:  (1 - cos(pi min(s, horizon) / horizon)) / 2,  horizon 200."""
    return (1 - _cosine(update, horizon)) / 2


def bonus_weight(update, horizon):
    """Weight of the intrinsic bonus, from 1 down to 0:  (cos(pi min(s, horizon) / horizon) + 1) / 2,  horizon 200."""
    return (_cosine(update, horizon) + 1) / 2


def length_bonus(lengths, update, horizon):
    """SPEAR's intrinsic bonus on an episode's score:  bonus_weight min(1, 0.1 length),  lengths [B] in steps."""
    return bonus_weight(update, horizon) * jnp.minimum(1.0, 0.1 * lengths)


def _cosine(update, horizon):
    return jnp.cos(jnp.pi * jnp.minimum(update, horizon) / horizon)
