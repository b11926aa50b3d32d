"""REINFORCE++ and REINFORCE++-baseline: batch-wide whitening of token returns, or of group-centred scores.

The row called REINFORCE++ in iStar's tables was run as REINFORCE++-baseline. Its iStar variant whitens the episode part
and the step part apart, and then adds them: `whitened_baseline` of each.
"""

import chex

from rspo_jax.algorithms import masking, spans


def reinforce_pp(token_rewards, layout, gamma):
    """Whitened token returns (REINFORCE++).

        G_l = r_l + gamma G_{l+1},   A = (G - mean) / sqrt(var + 1e-8) over all action tokens of the batch

    The return is carried through masked tokens, where the public code resets it (wrong across observations, verl#7278).
    The paper's reward includes -kl_coef (logp - logp_ref) on each token (`policy_loss.kl(..., "k1")`), outside the gradient.

    Args:
        token_rewards: [R, L], paid on action tokens.
        layout: spans.Layout, or spans.row_local where rows stand for themselves.
        gamma: in [0, 1].

    Returns:
        [R, L], 0 outside the action mask, and everywhere where all returns are equal.
    """
    chex.assert_equal_shape([token_rewards, layout.action_mask])
    return masking.whiten(spans.discounted_sum(token_rewards, layout, gamma), layout.action_mask)


def whitened_baseline(centered, layout):
    """Whitened group-centred scores (REINFORCE++-baseline); each token counts, so long responses weigh more.

    Args:
        centered: [B, T], advantages.group_centered of the scores, with singleton `raw` as in the public code.
        layout: spans.Layout.

    Returns:
        [R, L], 0 outside the action mask.
    """
    chex.assert_rank(centered, 2)
    return masking.whiten(spans.spread(centered, layout), layout.action_mask)
