"""The regression PRM's train step (RSPO eq. 7): the head moves, the frozen backbone's features arrive as data."""

import dataclasses

import jax
import jax.numpy as jnp

from rspo_jax.algorithms import reward_loss
from rspo_jax.updates import accumulate


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FeatureBatch:
    features: jax.Array  # [B, T, d], last-layer state at the last token of each step
    step_mask: jax.Array  # [B, T] bool
    outcome: jax.Array  # [B] in [0, 1]
    weight: jax.Array  # [B], share of each trajectory in the loss


def make_prm_update(reward, optimizer):
    """`update(state, [FeatureBatch, ...]) -> (state, metrics)`.

    Args:
        reward: (params, features [B, T, d]) -> step rewards [B, T] in (-1, 1).
        optimizer: an optax.GradientTransformation.
    """

    def loss(params, batch):
        # Masked before the head: a reward that is nan would make the head's gradient nan although its own is 0.
        features = jnp.where(batch.step_mask[..., None], batch.features, 0.0)
        outcome = jnp.where(batch.weight > 0, batch.outcome, 0.0)
        error = reward_loss.regression(reward(params, features), batch.step_mask, outcome)
        return jnp.sum(batch.weight * error), ({}, {})

    return accumulate.make_update(accumulate.make_gradient(loss), optimizer)
