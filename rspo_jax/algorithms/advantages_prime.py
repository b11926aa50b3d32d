"""PRIME: token rewards of an implicit PRM and outcomes, each against the rest of the group, summed into one return.

    q_l = log pi_prm - log pi_ref,   r_l = beta q_l normalised over the batch,   A = whiten(reverse cumulative sum of
    process_coef LOO(r) + outcome_coef LOO(outcome on the last token))

    process = leave_one_out(divide_by_largest_return(beta q, layout), layout, group, source)
    outcome = spans.at_last_tokens(advantages.leave_one_out(...), layout)
    advantage = advantages_reinforce.reinforce_pp(5 process + 5 outcome, layout, gamma=1)

reward_loss.cross_entropy trains the PRM. iStar's multi-turn PRIME baseline is the `merged` arm of advantages_istar.py.
"""

import chex
import jax.numpy as jnp

from rspo_jax.algorithms import masking, spans

EPSILON = 1e-6
SOURCES = ("code", "paper")


def divide_by_largest_return(token_rewards, layout):
    """r / (max |reverse cumulative sum of r| + 1e-6) over the batch (`batch_norm` of the public code), [R, L]."""
    chex.assert_equal_shape([token_rewards, layout.action_mask])
    returns = jnp.abs(spans.discounted_sum(token_rewards, layout, 1.0))
    return jnp.where(layout.action_mask, token_rewards / (masking.largest(returns, layout.action_mask) + EPSILON), 0.0)


def leave_one_out(token_rewards, layout, group, source):
    """Token rewards against the mean token reward of the group's other trajectories.

        code:    r K / (K - 1) - sum_j m_j / (K - 1)
        paper:   r - sum_{j != i} m_j / (K - 1),       m_j the mean over trajectory j's tokens, K trajectories

    Args:
        token_rewards: [R, L], garbage outside the action mask.
        layout: spans.Layout; also where the returns are row-local, since m_j is the trajectory's.
        group: [B] int32, the group of each trajectory, in 0..B-1.
        source: one of SOURCES.

    Returns:
        [R, L], 0 outside the action mask; a group of one gets 0.
    """
    chex.assert_equal_shape([token_rewards, layout.action_mask])
    if source not in SOURCES:
        raise ValueError(f"config.prime.source={source!r} is unknown; use one of {', '.join(SOURCES)}.")
    size = len(group)
    rewards = jnp.where(layout.action_mask, token_rewards, 0.0)
    count = jnp.zeros(size).at[layout.trajectory].add(jnp.sum(layout.action_mask, axis=1))
    mean = jnp.zeros(size, rewards.dtype).at[layout.trajectory].add(jnp.sum(rewards, axis=1)) / jnp.maximum(count, 1.0)
    members = jnp.zeros(size).at[group].add(count > 0)[group]
    total = jnp.zeros(size, rewards.dtype).at[group].add(mean)[group]
    others = jnp.maximum(members - 1.0, 1.0)
    # Each by trajectory, [B], then by row, [R, 1].
    mean, members, total, others = (x[layout.trajectory][:, None] for x in (mean, members, total, others))
    compared = rewards * members / others - total / others if source == "code" else rewards - (total - mean) / others
    return jnp.where(layout.action_mask & (members > 1), compared, 0.0)
