"""From trajectories to padded arrays and back. Host side, numpy.

A batch is first built whole, [R, L], because advantages and token weights are defined over all of it; then it is split
into micro-batches of few shapes, so that nothing is compiled anew for each length.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rspo_jax import types

LENGTH_MULTIPLE, ROW_MULTIPLE = 128, 16


@dataclasses.dataclass(frozen=True)
class MicrobatchOptions:
    tokens: int  # of a micro-batch, padding included: wide rows come fewer at a time
    widths: tuple[int, ...]  # the row lengths that are compiled, ascending
    multiple: int  # rows of a micro-batch are a multiple of this: the devices that they are spread over

    def __post_init__(self):
        if not self.widths or self.widths[0] < 1 or list(self.widths) != sorted(set(self.widths)):
            raise ValueError(f"config.microbatch.widths={self.widths} must be positive and ascending, for example (256, 1024).")
        if self.tokens < self.widths[-1] * self.multiple:
            raise ValueError(f"config.microbatch.tokens={self.tokens} must be at least {self.widths[-1] * self.multiple}: a row "
                             f"of the widest width for each of the {self.multiple} devices that share the rows.")

    def rows(self, width: int) -> int:
        """Rows of a micro-batch of this width."""
        return self.tokens // width // self.multiple * self.multiple


@dataclasses.dataclass(frozen=True)
class Row:
    tokens: np.ndarray  # [L] int32
    action_mask: np.ndarray  # [L] bool
    step: np.ndarray  # [L] int32, 0 outside the action mask
    logp_behavior: np.ndarray  # [L], 0 outside the action mask


def rows(trajectory: types.Trajectory, full_history: bool) -> list[Row]:
    """The token rows of a trajectory: one that holds all its steps, or one a step."""
    pieces = []
    for number, step in enumerate(trajectory.steps):
        prompt, response = len(step.prompt_tokens), len(step.response_tokens)
        pieces.append(Row(
            tokens=np.concatenate([step.prompt_tokens, step.response_tokens]).astype(np.int32),
            action_mask=np.repeat([False, True], [prompt, response]),
            step=np.repeat([0, number], [prompt, response]).astype(np.int32),
            logp_behavior=np.concatenate([np.zeros(prompt, np.float32), step.logp_behavior]),
        ))
    if full_history and pieces:
        fields = [field.name for field in dataclasses.fields(Row)]
        pieces = [Row(**{name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in fields})]
    return pieces


def pad(trajectories: Sequence[types.Trajectory], full_history: bool) -> types.TrajectoryBatch:
    """All rows of some trajectories in one batch of numpy arrays, [R, L].

    R and L are rounded up, so that what is computed over whole batches meets few shapes; rows of padding have no action
    tokens. logp_old and logp_ref start as logp_behavior, advantage and weight as 0, off_policy as False.
    """
    pairs = [(index, row) for index, trajectory in enumerate(trajectories) for row in rows(trajectory, full_history)]
    length = _round_up(max((len(row.tokens) for _, row in pairs), default=1), LENGTH_MULTIPLE)
    count = _round_up(len(pairs), ROW_MULTIPLE)

    def stack(name, dtype):
        out = np.zeros((count, length), dtype)
        for r, (_, row) in enumerate(pairs):
            out[r, : len(row.tokens)] = getattr(row, name)
        return out

    logp = stack("logp_behavior", np.float32)
    return types.TrajectoryBatch(
        tokens=stack("tokens", np.int32),
        action_mask=stack("action_mask", bool),
        step=stack("step", np.int32),
        trajectory=np.pad(np.array([index for index, _ in pairs], np.int32), (0, count - len(pairs))),
        off_policy=np.zeros(count, bool),
        advantage=np.zeros_like(logp),
        weight=np.zeros_like(logp),
        logp_old=logp.copy(),
        logp_behavior=logp,
        logp_ref=logp.copy(),
    )


def split(batch, options: MicrobatchOptions) -> list[tuple[np.ndarray, Any]]:
    """Micro-batches of `options.tokens` tokens, rows of like length together, each as wide as it needs to be.

    Args:
        batch: a TrajectoryBatch, or another dataclass of [R] and [R, L] arrays with tokens and action_mask among them.

    Returns:
        (index, microbatch) pairs: microbatch row i is batch row index[i]; rows beyond len(index) are padding with weight 0.

    Raises:
        ValueError: a row is longer than the widest width. Nothing is ever cut here.
    """
    lengths = row_lengths(batch)
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]  # the longest first: what is left over is short
    parts = []
    while len(order):
        width = fitting(lengths[order[0]], options)
        rows = options.rows(width)
        index, order = order[:rows], order[rows:]
        arrays = {}
        for field in dataclasses.fields(batch):
            values = getattr(batch, field.name)[index]
            if values.ndim == 2:
                values = values[:, :width]
                values = np.pad(values, ((0, rows - len(index)), (0, width - values.shape[1])))
            else:
                values = np.pad(values, (0, rows - len(index)))
            arrays[field.name] = values
        parts.append((index, type(batch)(**arrays)))
    return parts


def fitting(length: int, options: MicrobatchOptions) -> int:
    """The narrowest width that a row of this length fits."""
    if length > options.widths[-1]:
        raise ValueError(f"A row of {length} tokens does not fit config.microbatch.widths={options.widths}; "
                         f"add a width of at least config.sampler.max_tokens.")
    return next(width for width in options.widths if width >= length)


def row_lengths(batch) -> np.ndarray:
    """[R] int, of a batch as in split: up to each row's last action token. What follows it could influence nothing."""
    return np.max(np.where(batch.action_mask, np.arange(1, batch.tokens.shape[1] + 1), 0), axis=1, initial=0)


def take(batch, rows: np.ndarray):
    """Some rows of a batch, copied; of any dataclass of arrays that have their rows on axis 0."""
    return type(batch)(**{name: values[rows].copy() for name, values in vars(batch).items()})


def merge(parts: Sequence[tuple[np.ndarray, np.ndarray]], like: np.ndarray) -> np.ndarray:
    """Undoes split for one [rows, width] result a micro-batch: the values in their batch rows, [R, L]."""
    out = np.zeros_like(like)
    for index, values in parts:
        width = min(values.shape[1], out.shape[1])
        out[index, :width] = values[: len(index), :width]
    return out


def with_logp_behavior(trajectories: Sequence[types.Trajectory], batch: types.TrajectoryBatch, logp: np.ndarray):
    """The trajectories with the trainer's log-probs, [R, L], stored token by token in their steps."""
    filled = []
    for index, trajectory in enumerate(trajectories):
        mine = batch.trajectory == index
        mask, step, values = batch.action_mask[mine], batch.step[mine], logp[mine]
        steps = tuple(dataclasses.replace(s, logp_behavior=values[mask & (step == number)].astype(np.float32))
                      for number, s in enumerate(trajectory.steps))
        filled.append(dataclasses.replace(trajectory, steps=steps))
    return filled


def step_array(trajectories: Sequence[types.Trajectory], name: str, dtype=np.float32) -> np.ndarray:
    """One field of every step, [B, T] with T the longest episode; 0 beyond an episode's end."""
    out = np.zeros((len(trajectories), max((len(t.steps) for t in trajectories), default=0) or 1), dtype)
    for index, trajectory in enumerate(trajectories):
        out[index, : len(trajectory.steps)] = [getattr(step, name) for step in trajectory.steps]
    return out


def step_mask(trajectories: Sequence[types.Trajectory]) -> np.ndarray:
    """[B, T] bool: the steps that exist."""
    lengths = np.array([len(t.steps) for t in trajectories], int)
    return np.arange(max(lengths.max(initial=0), 1)) < lengths[:, None]


def _round_up(number, multiple):
    return max(-(-number // multiple), 1) * multiple


def group_index(trajectories: Sequence[types.Trajectory]) -> np.ndarray:
    """[B] int32: each trajectory's group, numbered from 0."""
    return np.unique([t.group for t in trajectories], return_inverse=True)[1].astype(np.int32)
