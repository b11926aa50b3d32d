"""Generalised advantage estimation for PPO with a critic, over tokens or over turns.

    delta_l = r_l + gamma V_{l+1} - V_l,    A_l = delta_l + gamma lambda A_{l+1},    return_l = A_l + V_l

Three critics, told apart by the layout alone (spans.py):

| row-local        | tokens, spans.row_local(action_mask): with one row a step this is the public code's PPO; nothing is
|                  | bootstrapped from the next step, and gamma = lambda = 1 gives A = R - V on every token            |
| whole trajectory | tokens, spans.Layout(...): observation tokens are skipped without decay, rows are joined          |
| turns            | one value a step: `turns` below                                                                   |

Advantages are whitened over the batch (masking.whiten) after the returns are taken; returns never are.
"""

import chex
import jax.numpy as jnp

from rspo_jax.algorithms import spans


def tokens(rewards, values, layout, gamma, lambda_):
    """Token GAE.

    Args:
        rewards: [R, L], paid on action tokens (spans.at_last_tokens); what lies elsewhere is not seen.
        values: [R, L], value of the state *before* each token, garbage outside the action mask.
        layout: spans.Layout of the tokens.
        gamma, lambda_: in [0, 1].

    Returns:
        advantages [R, L], not whitened, and returns [R, L], both 0 outside the action mask.
    """
    chex.assert_equal_shape([rewards, values, layout.action_mask])
    return _gae(rewards, values, spans.next_value(values, layout), layout, gamma, lambda_)


def turns(rewards, values, step_mask, final_value, truncated, gamma, lambda_):
    """Turn-level GAE, one value a step, read at the last token of its prompt.

    An episode that the step or token cap cut off goes on after its last step: it is bootstrapped with the value of the
    state that it was left in. Behind a true end there is nothing.

    Args:
        rewards: [B, T].
        values: [B, T], garbage outside step_mask.
        step_mask: [B, T] bool.
        final_value: [B], value of the state after the last step; read where truncated.
        truncated: [B] bool; all False treats the cap as an end, as the public code does.
        gamma, lambda_: in [0, 1].

    Returns:
        advantages [B, T], not whitened, and returns [B, T], both 0 outside step_mask.
    """
    chex.assert_equal_shape([rewards, values, step_mask])
    chex.assert_equal_shape([final_value, truncated])
    layout = spans.row_local(step_mask)
    after = jnp.where(truncated, final_value, 0.0)[:, None]
    following = jnp.where(spans.last_tokens(layout), after, spans.next_value(values, layout))
    return _gae(rewards, values, following, layout, gamma, lambda_)


def _gae(rewards, values, following, layout, gamma, lambda_):
    values = jnp.where(layout.action_mask, values, 0.0)
    delta = rewards + gamma * following - values
    advantages = spans.discounted_sum(delta, layout, gamma * lambda_)
    return advantages, advantages + values
