"""Which episodes are worth training on, and what an overlong one costs: DAPO, PRIME, SPEAR.

A filter says which trajectories stay, [B] bool; sampling until enough groups stay is the loop's business, and so is the
success rate of everything that was sampled, which a filtered batch does not tell.
"""

import jax.numpy as jnp

from rspo_jax.algorithms import advantages


def mixed_groups(returns, group, mask):
    """Keeps the groups whose returns are not all equal (DAPO's dynamic sampling; iStar's mixed groups).

    Args:
        returns: [B], un-penalised: a penalty would make an all-failed group look mixed.
        group: [B] int32, in 0..B-1.
        mask: [B] bool, trajectories that count: not padding, not ended by an error.

    Returns:
        [B] bool, False outside mask. A group of one goes.
    """
    equal = advantages.group_statistics(returns, group, mask)[3]
    return mask & ~equal[group]


def groups_between(returns, group, mask, low, high):
    """Keeps the groups whose mean return lies in [low, high] (PRIME's accuracy filter, 0.2 to 0.8).

    Args:
        returns: [B] in [0, 1].
        group, mask: as in mixed_groups.

    Returns:
        [B] bool, False outside mask.
    """
    mean = advantages.group_statistics(returns, group, mask)[0][group]
    return mask & (mean >= low) & (mean <= high)


def widest_groups(returns, group, mask, fraction):
    """Keeps the share of groups with the largest standard deviation of returns (SPEAR keeps 0.75).

    Args:
        returns, group, mask: as in mixed_groups.
        fraction: in [0, 1]; floor(fraction * groups), but at least one group, stays. Ties go to the lower group number.

    Returns:
        [B] bool, False outside mask.
    """
    _, std, count, _ = advantages.group_statistics(returns, group, mask)
    kept = jnp.maximum(jnp.floor(fraction * jnp.sum(count > 0)), 1)
    place = jnp.argsort(jnp.argsort(jnp.where(count > 0, -std, jnp.inf)))
    return mask & (place < kept)[group]


def overlong_penalty(lengths, max_length, buffer, factor):
    """Soft punishment of long responses, added to their score (DAPO).

        penalty = min(-(length - (max_length - buffer)) / buffer * factor, 0)

    0 up to max_length - buffer, -factor at max_length.

    Args:
        lengths: [...] tokens.
        max_length: cap of the response; 20480 in the paper.
        buffer: tokens before the cap in which the penalty grows; 4096 in the paper.
        factor: 1 in the paper.

    Returns:
        [...], not positive.
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"config.advantage.overlong.buffer={buffer} must lie in 1..{max_length}, the cap of the response.")
    exceed = lengths - (max_length - buffer)
    return jnp.minimum(-exceed / buffer * factor, 0.0)
