"""Advantages of one entry against its peers: GRPO, Dr.GRPO, RLOO, and the dense returns of RSPO's explorer.

A group is N episodes of one task. Everything here is per step, [B, T]: a trajectory's return reaches each of its steps,
and a caller spreads a step's advantage over the step's tokens (spans.spread), whatever the layout of its rows.

| method             | function                                                                                     |
| GRPO, DAPO, GSPO   | group_relative                                                                               |
| Dr.GRPO            | group_centered; its other half is the aggregation `dr_grpo` (masking.py)                      |
| RLOO               | leave_one_out                                                                                |
| RSPO's explorer    | group_relative of the summed step rewards, or process                                        |
| GiGPO, iStar       | relative_to_peers of step returns or step rewards (advantages_gigpo.py, advantages_istar.py) |
"""

import chex
import jax.numpy as jnp

EPSILON = 1e-6  # added to the standard deviation, outside the root
STATISTICS = ("trajectory", "step")
SINGLETONS = ("zero", "raw")
FORMS = ("z_score", "centered", "leave_one_out")


def step_scores(returns, invalid, invalid_penalty):
    """Score of each step: its trajectory's return, less what its own response costs: a penalty on malformed ones.

    Args:
        returns: [B].
        invalid: [B, T] bool, or a cost of each step.
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
    return _outcome(scores, returns, step_mask, group, statistics, singleton, "z_score")


def group_centered(scores, returns, step_mask, group, statistics, singleton):
    """Advantage without the division (Dr.GRPO; GiGPO's `mean_norm`; the baseline of REINFORCE++-baseline).

        A[i, t] = score[i, t] - mean_g

    Args, Returns and edge cases as in group_relative.
    """
    return _outcome(scores, returns, step_mask, group, statistics, singleton, "centered")


def leave_one_out(scores, returns, step_mask, group, statistics, singleton):
    """Advantage against the other members of the group (RLOO), K entries in the statistics.

        A[i, t] = K / (K - 1) (score[i, t] - mean_g),   which with `trajectory` is  R_i - mean_{j != i} R_j

    With `step` it is a length-weighted centring, scaled: K counts steps, as in the public code.

    Args, Returns and edge cases as in group_relative.
    """
    return _outcome(scores, returns, step_mask, group, statistics, singleton, "leave_one_out")


def relative_to_peers(values, peers, mask, reference, form):
    """Advantage of each entry against those that share its peer id, whatever the entries are: steps [B, T], tokens [R, L].

        z_score:        (x - mean) / (std + 1e-6)
        centered:        x - mean
        leave_one_out:   K / (K - 1) (x - mean)

    mean, std and K are those of the reference entries. Equal reference entries get exactly 0, and where they leave
    nothing to compare with (fewer than two, or a z-score over equal ones) all their peers do.

    Args:
        values: any shape, finite or masked.
        peers: int32, same shape, in 0..values.size-1.
        mask: bool, same shape: the entries that get an advantage.
        reference: bool, same shape: those that enter the statistics; usually `mask`.
        form: one of FORMS.

    Returns:
        same shape, 0 outside mask.
    """
    chex.assert_equal_shape([values, peers, mask, reference])
    statistics = group_statistics(values.reshape(-1), peers.reshape(-1), reference.reshape(-1))
    _, _, count, equal = (x[peers] for x in statistics)
    nothing = (count < 2) | equal if form == "z_score" else count < 2
    return jnp.where(mask & ~nothing, _compare(values, statistics, peers, form), 0.0)


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
    normalised = relative_to_peers(step_rewards, groups, step_mask, step_mask, "z_score")
    to_go = jnp.cumsum(normalised[:, ::-1], axis=1)[:, ::-1]
    return jnp.where(step_mask, to_go, 0.0)


def group_statistics(values, group, mask):
    """Mean, sample standard deviation, size and all-equal flag of each group, in float32 with a centred second pass.

    Args:
        values: [M], finite or masked.
        group: [M] int32, in 0..M-1.
        mask: [M] bool.

    Returns:
        Four [M] arrays, indexed by group. A group of equal values has exactly their value as its mean and std 0; an empty
        group has mean 0, std 0, count 0 and counts as equal.
    """
    chex.assert_equal_shape([values, group, mask])
    values = values.astype(jnp.promote_types(values.dtype, jnp.float32))
    size = len(values)

    def total(x):
        return jnp.zeros(size, values.dtype).at[group].add(jnp.where(mask, x, 0.0))

    count = total(jnp.ones(size))
    lowest = jnp.full(size, jnp.inf, values.dtype).at[group].min(jnp.where(mask, values, jnp.inf))
    highest = jnp.full(size, -jnp.inf, values.dtype).at[group].max(jnp.where(mask, values, -jnp.inf))
    equal = highest <= lowest
    mean = jnp.where(equal & (count > 0), lowest, total(values) / jnp.maximum(count, 1.0))
    variance = total(jnp.square(values - mean[group])) / jnp.maximum(count - 1.0, 1.0)
    return mean, jnp.sqrt(variance), count, equal


def _outcome(scores, returns, step_mask, group, statistics, singleton, form):
    chex.assert_equal_shape([scores, step_mask])
    chex.assert_equal_shape([returns, group])
    if statistics not in STATISTICS or singleton not in SINGLETONS:
        raise ValueError(f"config.statistics={statistics!r} and config.singleton={singleton!r}: "
                         f"use one of {STATISTICS} and one of {SINGLETONS}.")
    groups = jnp.broadcast_to(group[:, None], scores.shape)
    if statistics == "trajectory":
        of_group = group_statistics(returns, group, jnp.any(step_mask, axis=1))
    else:
        # [B, T] -> [B * T]
        of_group = group_statistics(scores.reshape(-1), groups.reshape(-1), step_mask.reshape(-1))
    _, _, count, equal = (x[groups] for x in of_group)
    advantage = jnp.where(equal, 0.0, _compare(scores, of_group, groups, form))
    advantage = jnp.where(count == 1, scores if singleton == "raw" else 0.0, advantage)
    return jnp.where(step_mask, advantage, 0.0)


def _compare(values, statistics, peers, form):
    mean, std, count, _ = (x[peers] for x in statistics)
    if form == "z_score":
        return (values - mean) / (std + EPSILON)
    if form == "centered":
        return values - mean
    if form == "leave_one_out":
        return (values - mean) * count / jnp.maximum(count - 1.0, 1.0)
    raise ValueError(f"config.advantage_form={form!r} is unknown; use one of {', '.join(FORMS)}.")
