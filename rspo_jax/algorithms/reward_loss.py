"""The regression process reward model of RSPO (eq. 5 to 7).

A head on a frozen decoder gives each step a reward in (-1, 1) (eq. 5, models/heads.py). Their sum over an episode is
trained, once and before the loop, to be the episode's outcome.
"""

import chex
import jax.numpy as jnp


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
