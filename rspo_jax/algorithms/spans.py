"""Between tokens and steps: sums over a step's tokens, values for a step's tokens, and running sums from token to token.

An action token belongs to a trajectory and to one of its steps (`Layout`), so the same functions serve a row that holds a
whole trajectory and a row that holds one step. What may flow from which token to which is data, not a flag:

| layout                | a running sum goes                                                                            |
| Layout(...)           | along the whole trajectory: over observation tokens as if they were not there, from row to row |
| row_local(mask)       | along its row only: nothing is bootstrapped from another row (the public code's step rows)     |
| row_local(step_mask)  | from step to step, for arrays with one entry a step, [B, T]                                   |
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class Layout(NamedTuple):
    """Where each token of a batch belongs; three fields of types.TrajectoryBatch. A step's action tokens lie in one row."""

    action_mask: jax.Array  # [R, L] bool
    trajectory: jax.Array  # [R] int32
    step: jax.Array  # [R, L] int32


def row_local(mask):
    """A layout in which each row of mask, [R, L] bool, stands for itself, as one trajectory of one step."""
    return Layout(mask, jnp.arange(mask.shape[0]), jnp.zeros(mask.shape, jnp.int32))


def spread(step_values, layout):
    """Gives each action token its step's value.

    Args:
        step_values: [B, T].
        layout: Layout of [R, L] tokens.

    Returns:
        [R, L], 0 outside the action mask.
    """
    chex.assert_rank(step_values, 2)
    chex.assert_equal_shape([layout.action_mask, layout.step])
    return jnp.where(layout.action_mask, step_values[layout.trajectory[:, None], layout.step], 0.0)


def step_sum(token_values, layout, shape):
    """Sum of each step's action tokens.

    Args:
        token_values: [R, L], garbage outside the action mask.
        layout: Layout.
        shape: static (B, T).

    Returns:
        [B, T]; 0 for a step without action tokens.
    """
    chex.assert_equal_shape([token_values, layout.action_mask, layout.step])
    values = jnp.where(layout.action_mask, token_values, 0.0)
    return jnp.zeros(shape, values.dtype).at[layout.trajectory[:, None], layout.step].add(values)


def first_tokens(layout):
    """Marks the first action token of each step, [R, L] bool. The value before it is that of the step's prompt."""
    chex.assert_equal_shape([layout.action_mask, layout.step])
    step = jnp.where(layout.action_mask, layout.step, -1)  # steps ascend along a row
    before = jnp.pad(jax.lax.cummax(step, axis=1), ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return step > before


def last_tokens(layout):
    """Marks the last action token of each step, [R, L] bool.

    Where a source drops the last response token (PRIME and iStar at token granularity), it is this one.
    """
    chex.assert_equal_shape([layout.action_mask, layout.step])
    later = jnp.roll(layout.step, -1, axis=1)
    # The step of the next action token of the row: steps ascend along a row, so it is the smallest one that follows.
    beyond = jnp.iinfo(jnp.int32).max
    following = jnp.where(jnp.roll(layout.action_mask, -1, axis=1), later, beyond).at[:, -1].set(beyond)
    following = jax.lax.cummin(following, axis=1, reverse=True)
    return layout.action_mask & (following != layout.step)


def at_last_tokens(step_values, layout):
    """Puts each step's value, [B, T], on the step's last action token, where a reward is paid; 0 on all others, [R, L]."""
    return jnp.where(last_tokens(layout), spread(step_values, layout), 0.0)


def next_value(values, layout):
    """The value at the next action token of the same trajectory, 0 behind the last one.

    Args:
        values: [R, L], garbage outside the action mask.
        layout: Layout.

    Returns:
        [R, L], 0 outside the action mask.
    """
    chex.assert_equal_shape([values, layout.action_mask, layout.step])
    order, continues = _in_order(layout)
    return _restore(jnp.where(continues, jnp.roll(values.reshape(-1)[order], -1), 0.0), order, layout)


def discounted_sum(values, layout, discount):
    """Running sum from the end:  S_l = x_l + discount S_l',  l' the next action token of the same trajectory.

    Tokens outside the action mask are transparent: they neither reset the sum nor discount it.

    Args:
        values: [R, L], garbage outside the action mask.
        layout: Layout.
        discount: number.

    Returns:
        [R, L], 0 outside the action mask.
    """
    chex.assert_equal_shape([values, layout.action_mask, layout.step])
    order, continues = _in_order(layout)
    values = jnp.where(layout.action_mask, values, 0.0).reshape(-1)[order]

    def chain(later, earlier):  # two stretches of  S = x + c S_next,  composed
        return later[0] * earlier[0], earlier[1] + earlier[0] * later[1]

    decay = jnp.where(continues, discount, 0.0).astype(values.dtype)
    _, sums = jax.lax.associative_scan(chain, (decay, values), reverse=True)
    return _restore(sums, order, layout)


def _in_order(layout):
    """The flat tokens sorted by trajectory, step and position, masked ones last, and whether the next one continues it."""
    rows, length = layout.action_mask.shape
    # [R, L] -> [R * L]
    mask = layout.action_mask.reshape(-1)
    trajectory = jnp.broadcast_to(layout.trajectory[:, None], (rows, length)).reshape(-1)
    order = jnp.lexsort((layout.step.reshape(-1), trajectory, ~mask))  # stable: positions of one step keep their order
    mask, trajectory = mask[order], trajectory[order]
    continues = mask & jnp.roll(mask, -1) & (trajectory == jnp.roll(trajectory, -1))
    return order, continues.at[-1].set(False)


def _restore(values, order, layout):
    # [R * L] -> [R, L]
    values = jnp.zeros_like(values).at[order].set(values).reshape(layout.action_mask.shape)
    return jnp.where(layout.action_mask, values, 0.0)
