"""The critic of PPO: the value of the state before each token is fitted to the returns of algorithms/advantages_gae.py.

    L = sum_tokens weight factor max((v - R)^2, (clip(v, v_old - limit, v_old + limit) - R)^2)

Which values are fitted is in the weights: a token critic has weight on every action token, a turn critic on the first one of
each step (spans.first_tokens), before which lies the step's prompt. Values where the weight is 0 are not looked at.
"""

import dataclasses

import jax
import jax.numpy as jnp

from rspo_jax.algorithms import value_loss
from rspo_jax.updates import accumulate

LEAST_VARIANCE = 1e-6  # of the returns, relative to their mean square: float32 sums cannot tell less from 0


@dataclasses.dataclass(frozen=True)
class CriticOptions:
    clip: float  # how far from the old value the loss follows a new one; 0.5 in the public code, inf for no limit
    loss_factor: float  # 1 in the verl behind verl-agent, 0.5 in the verl of 2026

    def __post_init__(self):
        for name in ("clip", "loss_factor"):
            if not getattr(self, name) > 0:
                raise ValueError(f"config.critic.{name}={getattr(self, name)} must be positive.")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ValueBatch:
    """R rows; rows of padding have no action tokens. What stands outside the action mask is not read."""

    tokens: jax.Array  # [R, L] int32
    action_mask: jax.Array  # [R, L] bool
    returns: jax.Array  # [R, L]
    values_old: jax.Array  # [R, L], the critic's before this update
    weight: jax.Array  # [R, L], share of each value in the loss; masking.aggregation_weights


def make_critic_update(value, optimizer, options):
    """`update(state, [ValueBatch, ...]) -> (state, metrics)`, see accumulate.make_update; `summarize` reads the metrics.

    Args:
        value: (params, tokens [R, L]) -> [R, L]; entry l is the value of the state before token l, from tokens[:l].
        optimizer: an optax.GradientTransformation.
        options: CriticOptions.
    """

    def loss(params, batch):
        fitted = batch.action_mask & (batch.weight > 0)
        values, old, returns, weight = (
            jnp.where(fitted, x, 0.0) for x in (value(params, batch.tokens), batch.values_old, batch.returns, batch.weight))
        error = value_loss.clipped(values, old, returns, options.clip, options.loss_factor)
        gap = returns - values
        sums = {
            "fitted": jnp.sum(fitted),
            "clipped": jnp.sum(value_loss.is_clipped(values, old, returns, options.clip)),
            "returns": jnp.sum(returns), "returns_squared": jnp.sum(jnp.square(returns)),
            "gaps": jnp.sum(gap), "gaps_squared": jnp.sum(jnp.square(gap)),
        }
        return jnp.sum(weight * error), (sums, {})

    return accumulate.make_update(accumulate.make_gradient(loss), optimizer)


def summarize(metrics):
    """Host-side metrics of one update.

    explained_variance is 1 - Var(R - v) / Var(R) over the values before the update, each of them once whatever its weight;
    nan where the returns do not vary. return_mean and value_mean are means over the same values, nan where there is none.
    """
    m = {name: float(x) for name, x in jax.device_get(metrics).items()}
    count = m["fitted"] or float("nan")

    def variance(name):
        return m[name + "_squared"] / count - (m[name] / count) ** 2

    spread = variance("returns")
    varies = spread > LEAST_VARIANCE * m["returns_squared"] / count
    return {name: m[name] for name in ("loss", "grad_norm", "skipped_updates")} | {
        "value_clip_fraction": m["clipped"] / count,
        "explained_variance": 1 - variance("gaps") / spread if varies else float("nan"),
        "return_mean": m["returns"] / count, "value_mean": (m["returns"] - m["gaps"]) / count,
    }
