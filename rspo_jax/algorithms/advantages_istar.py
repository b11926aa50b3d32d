"""iStar: step rewards from an implicit PRM, and their advantages beside those of the outcome (iStar eq. 1, 3 to 5).

    r(a_t) = beta log(pi_prm(a_t) / pi_old(a_t))             (eq. 1), a_t all tokens of the step, reasoning included
    A      = A_E + step_advantage_coef A_S                   (eq. 5)

A_E is advantages.group_relative, leave_one_out, or group_centered; A_S is `step_advantage` in the same form. The rewards
are those of the PRM *before* this iteration's update (reward_loss.py trains it). The ablation arms of table 3 are other
inputs to the same functions:

| arm         | what differs                                                                                          |
| gt_process  | the environment's step rewards in place of r                                                          |
| merged      | one leave-one-out of step scores + coef r instead of two: step_advantage(scores + coef r, ...)          |
| token_level | step_advantage of token_rewards [R, L] with mask action_mask and group[trajectory], A_E spread on tokens |
"""

import chex
import jax.numpy as jnp

from rspo_jax.algorithms import advantages, masking, spans

EPSILON = 1e-6
BASELINES = ("group", "first_row")


def token_rewards(logp_prm, logp_old, action_mask, beta):
    """beta (log pi_prm - log pi_old) of each action token (iStar eq. 1 before the sum over the step).

    Args:
        logp_prm, logp_old: [R, L], under the same temperature; garbage outside action_mask.
        action_mask: [R, L] bool.
        beta: 0.05 in the paper.

    Returns:
        [R, L], 0 outside action_mask; exactly 0 while the PRM still equals the old policy.
    """
    chex.assert_equal_shape([logp_prm, logp_old, action_mask])
    return jnp.where(action_mask, beta * (logp_prm - logp_old), 0.0)


def step_rewards(logp_prm, logp_old, layout, beta, shape):
    """Reward of each step (iStar eq. 1), [B, T]: token_rewards summed over the step's tokens; shape = (B, T), static."""
    return spans.step_sum(token_rewards(logp_prm, logp_old, layout.action_mask, beta), layout, shape)


def divide_by_largest(rewards, mask):
    """r / (max |r| + 1e-6) over the batch, [B, T]: the released code's `batch_norm` at step granularity.

    It leaves a z-score as it is but fixes the scale of the leave-one-out form to at most about 1, by one outlier.
    """
    chex.assert_equal_shape([rewards, mask])
    return jnp.where(mask, rewards / (masking.largest(jnp.abs(rewards), mask) + EPSILON), 0.0)


def step_advantage(rewards, mask, group, form, baseline):
    """Advantage of each step against the steps of its group (iStar eq. 4).

        A_S = (r - mean R_s) / (std R_s + 1e-6),   R_s the rewards of all steps of all trajectories of the group

    or without the division (`centered`), or K / (K - 1) (r - mean R_s) with K the number of rewards (`leave_one_out`).
    The released code takes R_s from one step a trajectory only, a leftover of its episode part: baseline `first_row`.

    Args:
        rewards: [B, T], or [R, L] tokens for the token-level arm.
        mask: bool, same shape.
        group: [B] or [R] int32, the group of each line, in 0..its length-1.
        form: one of advantages.FORMS.
        baseline: one of BASELINES.

    Returns:
        same shape, 0 outside mask; a group with fewer than two rewards gives 0.
    """
    chex.assert_equal_shape([rewards, mask])
    chex.assert_equal_shape_prefix([rewards, group], 1)
    if baseline not in BASELINES:
        raise ValueError(f"config.istar.baseline={baseline!r} is unknown; use one of {', '.join(BASELINES)}.")
    first = mask & (jnp.cumsum(mask, axis=1) == 1)
    peers = jnp.broadcast_to(group[:, None], rewards.shape)
    return advantages.relative_to_peers(rewards, peers, mask, first if baseline == "first_row" else mask, form)


def combine(episode_advantage, step_advantage, step_advantage_coef, prm_updates):
    """A = A_E + alpha A_S (iStar eq. 5), with A_S held at 0 until the PRM has been updated once.

    Before that its rewards are the rounding noise of two equal models, which a z-score would lift to order 1.

    Args:
        episode_advantage, step_advantage: same shape, [B, T] or [R, L].
        step_advantage_coef: 1 in the paper.
        prm_updates: scalar, updates that the PRM had when it computed the rewards.
    """
    chex.assert_equal_shape([episode_advantage, step_advantage])
    # Not a product with 0: noise may be inf or nan.
    return episode_advantage + jnp.where(prm_updates > 0, step_advantage_coef * step_advantage, 0.0)
