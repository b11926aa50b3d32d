"""A policy, a critic and a PRM small enough to be tables, batches for them, and every train step on one of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rspo_jax import types
from rspo_jax.algorithms import masking
from rspo_jax.updates import accumulate, critic, implicit_prm, policy, prm, sft

V, R, L, B, T = 5, 6, 4, 5, 4
OPTIONS = policy.PolicyOptions(ratio="token", epsilon_low=0.2, epsilon_high=0.2, clip="generalized", dual_clip=3.0,
                               off_dual_clip=np.inf, kl_coef=0.1, kl_estimator="k3", entropy_coef=0.01)
CRITIC = critic.CriticOptions(clip=0.5, loss_factor=0.5)
IMPLICIT = implicit_prm.ImplicitPrmOptions(loss="preference", logit="sum", beta=0.5)
# Six rows of four trajectories, of which three rows hold two steps each; trajectory 4 is padding.
TRAJECTORY = np.array([0, 0, 1, 2, 2, 3], np.int32)
FIRST_STEP = np.array([0, 2, 0, 0, 1, 0], np.int32)
TWO_STEPS = np.array([1, 0, 1, 0, 0, 1], bool)
STEP_MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]], bool)


def score(params, tokens):
    """A bigram policy: log-softmax of a row of a table by the previous token. Without a gather, for sharded rows."""
    logits = jax.nn.log_softmax(params["table"], axis=-1)
    previous = jax.nn.one_hot(jnp.roll(tokens, 1, axis=1), V, dtype=logits.dtype)
    here = previous @ logits  # [R, L, V]
    return jnp.sum(jnp.where(tokens[..., None] == jnp.arange(V), here, 0.0), axis=-1), -jnp.sum(jnp.exp(here) * here, axis=-1)


def value(params, tokens):
    """A critic that looks at the previous token."""
    return jax.nn.one_hot(jnp.roll(tokens, 1, axis=1), V, dtype=params["table"].dtype) @ params["table"][0]


def reward(params, features):
    """A PRM of one layer."""
    return jnp.tanh(features @ params["table"][0])


def table(seed=0):
    return {"table": jnp.asarray(np.random.default_rng(seed).normal(size=(V, V)), jnp.float32)}


def batch(seed=0, alpha=0.25):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, V, (R, L)).astype(np.int32)
    mask = rng.random((R, L)) < 0.7
    mask[:, 0], mask[:, 1], mask[:, 3] = False, True, True
    off = np.arange(R) >= 4
    old = np.asarray(score(table(), tokens)[0])
    behavior = np.where(off[:, None], old + rng.normal(size=(R, L)) * 0.3, old)
    sides = [jnp.asarray(mask & side[:, None]) for side in (~off, off)]
    on_weight, off_weight = (np.asarray(masking.aggregation_weights(side, jnp.arange(R), "token_mean", L)) for side in sides)
    weight = (1 - alpha) * on_weight + alpha * off_weight
    step = FIRST_STEP[:, None] + TWO_STEPS[:, None] * (np.arange(L, dtype=np.int32) >= 2)
    arrays = dict(tokens=tokens, action_mask=mask, step=step, trajectory=TRAJECTORY,
                  off_policy=off, advantage=rng.normal(size=(R, L)), weight=weight, logp_old=old, logp_behavior=behavior,
                  logp_ref=np.asarray(score(table(1), tokens)[0]))
    return types.TrajectoryBatch(**{k: jnp.asarray(v, jnp.float32) if v.dtype == np.float64 else jnp.asarray(v)
                                    for k, v in arrays.items()})


def values(seed=0):
    """A ValueBatch; the values before the update lie around those of table(2), near enough for some to be within the clip."""
    data, rng = batch(seed), np.random.default_rng(seed + 100)
    old = np.asarray(value(table(2), data.tokens)) + rng.normal(size=(R, L)).astype(np.float32) / 2
    returns = jnp.asarray(rng.normal(size=(R, L)), jnp.float32)
    return critic.ValueBatch(data.tokens, data.action_mask, returns, jnp.asarray(old), data.weight)


def features(seed=0):
    rng = np.random.default_rng(seed)
    arrays = dict(features=rng.normal(size=(R, T, V)), outcome=rng.random(R), weight=np.full(R, 1 / R))
    mask = jnp.arange(T) < jnp.array([4, 1, 2, 3, 2, 1])[:, None]
    return prm.FeatureBatch(step_mask=mask, **{name: jnp.asarray(x, jnp.float32) for name, x in arrays.items()})


def outcomes():
    """Two groups of a success and a failure each, and padding."""
    return implicit_prm.Outcomes(positive=np.array([1, 0, 1, 0, 0], bool), negative=np.array([0, 1, 0, 1, 0], bool),
                                 group=np.array([0, 0, 1, 1, 0], np.int32), step_mask=STEP_MASK)


def episodes(steps, seed=0):
    """Four trajectories of so many steps, two groups of two, with log-probs around those of table()."""
    rng = np.random.default_rng(seed)

    def step():
        prompt, response = (rng.integers(0, V, rng.integers(1, 4)).astype(np.int32) for _ in range(2))
        before = np.concatenate([prompt[-1:], response])[None]
        behavior = np.asarray(score(table(), before)[0])[0, 1:] + 0.1 * rng.normal(size=len(response))
        return types.Step("see", "say", "do", prompt, response, behavior.astype(np.float32), behavior.astype(np.float32),
                          True, True, 0.0, 0.0)

    return [types.Trajectory("game", "pick", "do it", index // 2, 0, "agent", 0, tuple(step() for _ in range(steps)),
                             1.0 - index % 2, index % 2 == 0, "failure" if index % 2 else "success", 0.1) for index in range(4)]


def rows(data, index):
    return jax.tree.map(lambda x: x[index], data)


def padded(data, garbage, count=2):
    """The batch with two more columns, of tokens or of steps, and `count` more rows, all of them masked: weight 0, and garbage
    in every other float."""
    def grow(x):
        x = jnp.concatenate([x, x[:count]])
        return x if x.ndim == 1 else jnp.concatenate([x, x[:, :2]], axis=1)

    size, name = len(data.weight), "step_mask" if isinstance(data, prm.FeatureBatch) else "action_mask"
    data = jax.tree.map(grow, data)
    mask = getattr(data, name).at[size:].set(False).at[:, -2:].set(False)
    data = dataclasses.replace(data, **{name: mask})
    changed = {}
    for field, x in vars(data).items():
        if jnp.issubdtype(x.dtype, jnp.floating):
            held = mask.any(axis=1) if x.ndim == 1 else mask
            changed[field] = jnp.where(held if x.ndim < 3 else held[..., None], x, 0.0 if field == "weight" else garbage)
    return dataclasses.replace(data, **changed)


def _implicit(options):
    def make(optimizer):
        update = implicit_prm.make_implicit_prm_update(score, optimizer, options)
        return lambda state, microbatches: update(state, microbatches, outcomes())

    return make


# name -> (optimizer -> update(state, microbatches), seed -> batch)
STEPS = {
    "policy": (lambda o: accumulate.make_update(policy.make_policy_gradient(score, OPTIONS), o), batch),
    "critic": (lambda o: critic.make_critic_update(value, o, CRITIC), values),
    "prm": (lambda o: prm.make_prm_update(reward, o), features),
    "preference_sum": (_implicit(IMPLICIT), batch),
    "preference_mean": (_implicit(dataclasses.replace(IMPLICIT, logit="mean")), batch),
    "cross_entropy": (_implicit(dataclasses.replace(IMPLICIT, loss="cross_entropy")), batch),
    "sft": (lambda o: sft.make_sft_update(score, o), batch),
}
OPTIMIZERS = {"sgd": optax.sgd(1.0), "adam": optax.adam(0.1), "still": optax.adam(0.0)}


@functools.cache
def update_of(step, optimizer):
    """A train step by name, compiled once for all tests."""
    return STEPS[step][0](OPTIMIZERS[optimizer])


def start(optimizer, params=None):
    return accumulate.new_state(table(2) if params is None else params, OPTIMIZERS[optimizer])


def gradient(step, microbatches, params=None):
    """The gradient, as the difference that one step of SGD with learning rate 1 makes, and the metrics."""
    state = start("sgd", params)
    before = state.params["table"] + 0  # the state is donated
    after, metrics = update_of(step, "sgd")(state, microbatches)
    return before - after.params["table"], metrics
