"""GiGPO: an episode part against the group and a step part against the other visits of the same state (eq. 3 to 8).

    A = A_E + omega A_S                                                                                       (eq. 8)

A_E is advantages.group_relative ("w/ std", form z_score) or advantages.group_centered ("w/o std", form centered); the
anchors are anchors.py; A_S is here.
"""

import chex

from rspo_jax.algorithms import advantages, spans


def step_returns(step_rewards, invalid, step_mask, gamma, invalid_penalty):
    """Discounted return of each step over the environment's own rewards (GiGPO eq. 5).

        U_t = r_t + gamma U_{t+1},   then less the penalty on malformed steps: after discounting, on the own step only

    Args:
        step_rewards: [B, T].
        invalid: [B, T] bool, or a cost of each step.
        step_mask: [B, T] bool.
        gamma: 0.95 in the public code.
        invalid_penalty: positive number; 0.1 in the public code.

    Returns:
        [B, T]; outside step_mask it means nothing.
    """
    chex.assert_equal_shape([step_rewards, invalid, step_mask])
    return spans.discounted_sum(step_rewards, spans.row_local(step_mask), gamma) - invalid_penalty * invalid


def step_advantage(returns, anchor, step_mask, form):
    """Advantage of each step against all visits of the same anchor (GiGPO eq. 7); a state visited once gives 0.

    Args:
        returns: [B, T], see step_returns.
        anchor: [B, T] int32, in 0..B*T-1, different for different groups (anchors.py); anything below B*T on padding.
        step_mask: [B, T] bool.
        form: "z_score" (w/ std) or "centered" (w/o std), the same as the episode part's.

    Returns:
        [B, T], 0 outside step_mask.
    """
    return advantages.relative_to_peers(returns, anchor, step_mask, step_mask, form)


def combine(episode_advantage, step_advantage, omega):
    """A = A_E + omega A_S (GiGPO eq. 8); both parts [B, T], omega 1 in the paper."""
    chex.assert_equal_shape([episode_advantage, step_advantage])
    return episode_advantage + omega * step_advantage
