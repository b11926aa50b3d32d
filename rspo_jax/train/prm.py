"""RSPO's process reward model: trained once, before the loop, on episodes of the initial policy (eq. 5 to 7).

The backbone is the initial policy, frozen, so an episode's features are computed once and the head trains on them alone.
"""

import dataclasses
import json
import math
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors import numpy as safetensors

from rspo_jax import types
from rspo_jax.algorithms import reward_loss
from rspo_jax.models import decoder, heads
from rspo_jax.report import jsonl, summary
from rspo_jax.rollout import batching
from rspo_jax.train import learn
from rspo_jax.train import session as sessions
from rspo_jax.updates import accumulate, prm

HEAD, RESULT = "head.safetensors", "result.json"


def load_or_train(session: sessions.Session):
    """The head of this workdir, params as models/heads.py has them, and its result; trained first if it is not there yet."""
    directory = session.workdir / "prm"
    made_with = {"model": session.settings.model.directory, "seed": session.settings.seed,
                 **dataclasses.asdict(session.settings.rspo.prm)}
    if not (directory / RESULT).exists():
        head, result = train(session)
        directory.mkdir(parents=True, exist_ok=True)
        safetensors.save_file({name: np.ascontiguousarray(x) for name, x in head.items()}, directory / HEAD)
        # Written last and whole: a head without a result is not complete.
        partial = directory / (RESULT + ".partial")
        partial.write_text(json.dumps(jsonl.plain(result | {"made_with": made_with}), indent=2) + "\n", encoding="utf-8")
        partial.rename(directory / RESULT)
    result = json.loads((directory / RESULT).read_text(encoding="utf-8"))
    if result["made_with"] != made_with:
        raise sessions.UsageError(f"{directory} was made with {result['made_with']}, not {made_with}; use another --workdir.")
    return jax.tree.map(jnp.asarray, safetensors.load_file(directory / HEAD)), result


def train(session: sessions.Session):
    """Plays episodes with the initial policy and fits a head to their outcomes.

    Returns:
        The head of the epoch with the lowest held-out error, and a dict of what it is worth: held-out mse and auc (of the
        predicted return against success), beside the mse of predicting the mean.
    """
    options = session.settings.rspo.prm
    began = time.perf_counter()
    size = session.settings.loop.group_size
    session.run.note(f"training the PRM: playing {options.episodes} episodes with the initial policy ...")
    progress = sessions.Progress()  # its own: a run that finds the PRM ready draws the same tasks as one that trained it
    episodes = sessions.draw(session, progress, math.ceil(options.episodes / size), size, sessions.PRM)
    rollout = sessions.play(session, session.initial, episodes, "agent", 0, sessions.PRM)
    played = time.perf_counter()
    trajectories = rollout.trainable
    data = prm.FeatureBatch(
        features=features(session, trajectories), step_mask=batching.step_mask(trajectories),
        outcome=np.array([t.outcome for t in trajectories], np.float32), weight=np.zeros(len(trajectories)))
    # Whole groups are held out: siblings play the same game. They choose the epoch too, so their error is a little flattering.
    group = batching.group_index(trajectories)
    order = np.random.default_rng([session.settings.seed, sessions.PRM_SPLIT, 0]).permutation(group.max() + 1)
    held_out = np.isin(group, order[: max(1, round(options.validation_fraction * len(order)))])
    head, epoch = _fit(session, batching.take(data, ~held_out), batching.take(data, held_out))
    predicted = np.asarray(_returns(head, batching.take(data, held_out)))
    outcome = data.outcome[held_out]
    result = {
        "episodes": len(rollout.trajectories), "env_steps": sum(len(t.steps) for t in rollout.trajectories),
        "success": summary.mean(t.success for t in rollout.trajectories),
        "held_out": int(held_out.sum()), "mse": float(np.mean((predicted - outcome) ** 2)),
        "mse_of_the_mean": float(np.var(outcome)), "auc": summary.auc(predicted, outcome > 0), "best_epoch": epoch,
        "seconds/play": played - began, "seconds/fit": time.perf_counter() - played,
    }
    session.run.log(0, "prm", learn.rollout_metrics(session, progress, rollout) | result)
    return head, result


def step_rewards(session: sessions.Session, head, trajectories: Sequence[types.Trajectory]) -> np.ndarray:
    """r_hat_t of each step, [B, T] (RSPO eq. 5)."""
    return np.asarray(heads.prm_head(head, jnp.asarray(features(session, trajectories))))


def features(session: sessions.Session, trajectories: Sequence[types.Trajectory]) -> np.ndarray:
    """Last-layer state of the frozen backbone at the last token of each step (h_t of eq. 5), [B, T, d]; 0 beyond the end."""
    batch = batching.pad(trajectories, session.full_history)
    mask = batching.step_mask(trajectories)
    out = np.zeros((*mask.shape, session.model.hidden_size), np.float32)
    steps = session.settings.data.max_steps if session.full_history else 1
    for _, part in batching.split(batch, session.settings.microbatch):
        ends, exists = _step_ends(part, steps)
        states = np.asarray(_states_at(session.initial, session.model, *sessions.place(session, (part.tokens, ends))))
        row, slot = np.nonzero(exists)
        out[part.trajectory[row], part.step[row, ends[row, slot]]] = states[row, slot]
    return out


def _step_ends(part, steps):
    """Position of the last token of each step of a row, [rows, steps], and which of them exist."""
    ends = np.zeros((len(part.tokens), steps), np.int32)
    exists = np.zeros_like(ends, bool)
    last = part.action_mask & ~(np.roll(part.action_mask, -1, axis=1) & (np.roll(part.step, -1, axis=1) == part.step))
    last[:, -1] = part.action_mask[:, -1]
    for row in range(len(part.tokens)):
        found = np.flatnonzero(last[row])
        ends[row, : len(found)], exists[row, : len(found)] = found, True
    return ends, exists


def _states_at_impl(params, model, tokens, ends):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    states = decoder.hidden(params, model, tokens, positions, remat=False)
    return jnp.take_along_axis(states, ends[..., None], axis=1).astype(jnp.float32)


_states_at = jax.jit(_states_at_impl, static_argnums=1)


@jax.jit
def _returns(head, data):
    return reward_loss.predicted_return(heads.prm_head(head, data.features), data.step_mask)


def _fit(session, training, held_out):
    """The head with the lowest held-out error, and its epoch."""
    options = session.settings.rspo.prm
    optimizer = optax.adamw(options.learning_rate)
    key = jax.random.key(session.settings.seed)
    state = accumulate.new_state(heads.init_prm_head(key, session.model.hidden_size, options.width), optimizer)
    step = prm.make_prm_update(heads.prm_head, optimizer)
    rng = np.random.default_rng([session.settings.seed, sessions.PRM_FIT, 0])
    best, best_error, best_epoch = jax.tree.map(jnp.copy, state.params), math.inf, -1
    for epoch in range(options.epochs):
        order = rng.permutation(len(training.outcome))
        for start in range(0, len(order), options.batch_size):
            rows = batching.take(training, order[start : start + options.batch_size])
            short = options.batch_size - len(rows.outcome)
            padded = {name: np.pad(values, [(0, short)] + [(0, 0)] * (values.ndim - 1)) for name, values in vars(rows).items()}
            padded["weight"][: len(rows.outcome)] = 1 / len(rows.outcome)
            state, _ = step(state, [prm.FeatureBatch(**padded)])
        error = float(np.mean((np.asarray(_returns(state.params, held_out)) - held_out.outcome) ** 2))
        if error < best_error:
            best, best_error, best_epoch = jax.tree.map(jnp.copy, state.params), error, epoch
    return best, best_epoch
