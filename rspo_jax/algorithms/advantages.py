"""Group-relative advantages: GRPO and the dense returns of RSPO's explorer.

A group is N episodes of one task. Everything here is per step, [B, T]: a trajectory's return reaches each of its steps,
and a caller spreads a step's advantage over the step's tokens, whatever the layout of its rows.
"""

import chex
import jax.numpy as jnp

EPSILON = 1e-6  # added to the standard deviation, outside the root
STATISTICS = ("trajectory", "step")
SINGLETONS = ("zero", "raw")


def step_scores(returns, invalid, invalid_penalty):
    """Score of each step: its trajectory's return, less a penalty on the steps whose own response was malformed.

    Args:
        returns: [B].
        invalid: [B, T] bool.
        invalid_penalty: positive number; 0.1 in the public code.

    Returns:
        [B, T].
    """
    chex.assert_rank([returns, invalid], [1, 2])
    return returns[:, None] - invalid_penalty * invalid


def group_relative(scores, returns, step_mask, group, statistics, singleton):
    """Advantage of each step against its group (GRPO).

        A[i, t] = (score[i, t] - mean_g) / (std_g + 1e-6),   std_g the sample standard deviation (ddof 1)

    The mean and std run over `returns`, each trajectory once (`trajectory`, the papers' formula), or over the scores of
    all steps, so that long trajectories weigh more (`step`, the later public code).

    A group whose statistic set is all equal gets exactly 0, its penalised steps included: a float32 mean of equal numbers
    is off by an ulp, which a division by 1e-6 would turn into an advantage of order 1. A group with one entry gets 0
    (`zero`) or its raw score (`raw`, parity with the public code).

    Args:
        scores: [B, T], see step_scores.
        returns: [B], un-penalised.
        step_mask: [B, T] bool.
        group: [B] int32, in 0..B-1.
        statistics: one of STATISTICS.
        singleton: one of SINGLETONS.

    Returns:
        [B, T], 0 outside step_mask.
    """
    chex.assert_equal_shape([scores, step_mask])
    chex.assert_equal_shape([returns, group])
    if statistics not in STATISTICS or singleton not in SINGLETONS:
        raise ValueError(f"config.statistics={statistics!r} and config.singleton={singleton!r}: "
                         f"use one of {STATISTICS} and one of {SINGLETONS}.")
    groups = jnp.broadcast_to(group[:, None], scores.shape)
    if statistics == "trajectory":
        mean, std, count, equal = group_statistics(returns, group, jnp.any(step_mask, axis=1))
    else:
        # [B, T] -> [B * T]
        mean, std, count, equal = group_statistics(scores.reshape(-1), groups.reshape(-1), step_mask.reshape(-1))
    advantage = (scores - mean[groups]) / (std[groups] + EPSILON)
    advantage = jnp.where(equal[groups], 0.0, advantage)
    advantage = jnp.where(count[groups] == 1, scores if singleton == "raw" else 0.0, advantage)
    return jnp.where(step_mask, advantage, 0.0)


def process(step_rewards, step_mask, group):
    """Reward-to-go of z-scored step rewards (process supervision; RSPO's explorer with config.dense_advantage=process).

        A[i, t] = sum_{u >= t} (r[i, u] - mean_g) / (std_g + 1e-6),   statistics over all steps of the group

    Args:
        step_rewards: [B, T].
        step_mask: [B, T] bool.
        group: [B] int32, in 0..B-1.

    Returns:
        [B, T], 0 outside step_mask.
    """
    chex.assert_equal_shape([step_rewards, step_mask])
    groups = jnp.broadcast_to(group[:, None], step_rewards.shape)
    # [B, T] -> [B * T]
    mean, std, _, equal = group_statistics(step_rewards.reshape(-1), groups.reshape(-1), step_mask.reshape(-1))
    normalised = (step_rewards - mean[groups]) / (std[groups] + EPSILON)
    normalised = jnp.where(step_mask & ~equal[groups], normalised, 0.0)
    to_go = jnp.cumsum(normalised[:, ::-1], axis=1)[:, ::-1]
    return jnp.where(step_mask, to_go, 0.0)


def group_statistics(values, group, mask):
    """Mean, sample standard deviation, size and all-equal flag of each group, in float32 with a centred second pass.

    Args:
        values: [M], finite or masked.
        group: [M] int32, in 0..M-1.
        mask: [M] bool.

    Returns:
        Four [M] arrays, indexed by group; an empty group has mean 0, std 0, count 0 and counts as equal.
    """
    chex.assert_equal_shape([values, group, mask])
    values = values.astype(jnp.float32)
    size = len(values)

    def total(x):
        return jnp.zeros(size).at[group].add(jnp.where(mask, x, 0.0))

    count = total(jnp.ones(size))
    mean = total(values) / jnp.maximum(count, 1.0)
    variance = total(jnp.square(values - mean[group])) / jnp.maximum(count - 1.0, 1.0)
    lowest = jnp.full(size, jnp.inf).at[group].min(jnp.where(mask, values, jnp.inf))
    highest = jnp.full(size, -jnp.inf).at[group].max(jnp.where(mask, values, -jnp.inf))
    return mean, jnp.sqrt(variance), count, highest <= lowest
