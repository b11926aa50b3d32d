"""The implicit PRM's train step: iStar's trajectory preference (eq. 2), or PRIME's cross-entropy.

The PRM is a copy of the policy. Its reward for a step is the log-ratio to a reference (iStar eq. 1), and the sum or mean of
a trajectory's step rewards is the logit z by which it should be a success, or beat a failed one of its group.

    r(a_t) = beta log(pi_prm(a_t) / pi_ref(a_t)),    z = sum_t r(a_t),    dL/dparams = sum_i (dL/dz_i) dz_i/dparams

The loss couples trajectories, and a trajectory's rows may lie in different micro-batches. So an update is two passes: one
for the logits of all trajectories, from which dL/dz follows in closed form (algorithms/reward_loss.py), and one that
accumulates the gradient of  sum_tokens (dL/dz) beta logp,  which at these parameters is the gradient of the loss.
"""

import dataclasses

import jax
import jax.numpy as jnp

from rspo_jax.algorithms import advantages_istar, masking, reward_loss
from rspo_jax.updates import accumulate

LOSSES = ("preference", "cross_entropy")


@dataclasses.dataclass(frozen=True)
class ImplicitPrmOptions:
    loss: str  # one of LOSSES: iStar's, PRIME's
    logit: str  # one of reward_loss.LOGITS
    beta: float  # 0.05 in both papers

    def __post_init__(self):
        for name, allowed in (("loss", LOSSES), ("logit", reward_loss.LOGITS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"config.istar.{name}={getattr(self, name)!r} is unknown; use one of {', '.join(allowed)}.")
        if not self.beta > 0:
            raise ValueError(f"config.istar.beta={self.beta} must be positive.")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outcomes:
    """What became of the B trajectories of a batch. Unscored ones, ended by an error, and padding are neither positive nor
    negative. With rows in place of trajectories, here and in TrajectoryBatch.trajectory, each row has a logit of its own."""

    positive: jax.Array  # [B] bool
    negative: jax.Array  # [B] bool
    group: jax.Array  # [B] int32
    step_mask: jax.Array  # [B, T] bool, the steps that exist


def make_implicit_prm_update(score, optimizer, options):
    """`update(state, microbatches, outcomes) -> (state, metrics)`.

    Args:
        score: (params, tokens [R, L]) -> (logp [R, L], entropy [R, L]) under the temperature of logp_ref.
        optimizer: an optax.GradientTransformation.
        options: ImplicitPrmOptions.

    Returns:
        update; it donates `state`, which must not be touched again.
        microbatches: TrajectoryBatches, split between any rows. Read are tokens, action_mask, step, trajectory, which indexes
        `outcomes`, and logp_ref, the reference: iStar's is the policy that played, PRIME's the initial one.
        metrics: those of `summarize`, on the device, and step_rewards [B, T] by the PRM *before* this update, 0 outside
        step_mask. Without a pair, or for the cross-entropy a labelled trajectory, nothing moves, moments and counter included.
    """

    @jax.jit
    def token_rewards(params, batch):
        return advantages_istar.token_rewards(score(params, batch.tokens)[0], batch.logp_ref, batch.action_mask, options.beta)

    def weighted_logp(params, batch):
        logp = jnp.where(batch.action_mask, score(params, batch.tokens)[0], 0.0)
        return jnp.sum(batch.weight * logp), ({}, {})

    judge = jax.jit(lambda step_rewards, outcomes: _judge(step_rewards, outcomes, options))
    move = accumulate.make_update(accumulate.make_gradient(weighted_logp), optimizer)

    def update(state, microbatches, outcomes):
        step_rewards = jnp.zeros(outcomes.step_mask.shape)
        for batch in microbatches:
            step_rewards = _add_steps(step_rewards, token_rewards(state.params, batch), batch)
        weights, metrics = judge(step_rewards, outcomes)
        moved = {"grad_norm": 0.0, "skipped_updates": 0.0}
        if metrics["terms"] > 0:
            state, moved = move(state, [_weighted(batch, weights) for batch in microbatches])
        return state, moved | metrics | {"step_rewards": step_rewards}

    return update


def summarize(metrics):
    """Host-side metrics of one update; loss, accuracy and margin are nan where the loss had no terms.

    loss, accuracy (share of pairs in the right order, or of logits with the right sign), margin (mean by which they are),
    terms (pairs, or labelled trajectories), reward_scale (mean size of a step reward), grad_norm, skipped_updates.
    """
    m = {name: float(x) for name, x in jax.device_get(metrics).items() if name != "step_rewards"}
    return m if m["terms"] else m | dict.fromkeys(("loss", "accuracy", "margin"), float("nan"))


def _judge(step_rewards, outcomes, options):
    """beta dL/dz of each trajectory's log-likelihood, [B], and the metrics of the loss."""
    labels = (outcomes.positive, outcomes.negative, outcomes.group)
    logits = reward_loss.trajectory_logits(step_rewards, outcomes.step_mask, options.logit)
    if options.loss == "preference":
        loss, terms = reward_loss.preference(logits, *labels)
        weights = reward_loss.preference_weights(logits, *labels)
        accuracy, margin = reward_loss.preference_accuracy(logits, *labels), reward_loss.preference_margin(logits, *labels)
    else:
        labelled = outcomes.positive | outcomes.negative
        terms = jnp.sum(labelled)
        loss = masking.mean(reward_loss.cross_entropy(logits, outcomes.positive), labelled)
        weights = reward_loss.cross_entropy_weights(logits, outcomes.positive)
        weights = jnp.where(labelled, weights, 0.0) / jnp.maximum(terms, 1)
        right = jnp.where(outcomes.positive, logits, -logits)
        accuracy, margin = masking.mean(right > 0, labelled), masking.mean(right, labelled)
    if options.logit == "mean":
        weights = weights / jnp.maximum(jnp.sum(outcomes.step_mask, axis=1), 1)
    scale = masking.mean(jnp.abs(step_rewards), outcomes.step_mask)
    return options.beta * weights, {"loss": loss, "accuracy": accuracy, "margin": margin, "terms": terms, "reward_scale": scale}


@jax.jit
def _add_steps(total, token_values, batch):
    """total [B, T] and the sums of token_values [R, L], 0 outside the action mask, over each step's tokens."""
    in_row = jax.vmap(lambda values, step: jax.ops.segment_sum(values, step, num_segments=total.shape[1]))
    by_row = in_row(token_values, jnp.where(batch.action_mask, batch.step, 0))  # [R, T]
    return total + jnp.sum(jnp.where(_is_of(batch, len(total))[:, :, None], by_row[:, None, :], 0.0), axis=0)


@jax.jit
def _weighted(batch, weights):
    """The batch with its trajectory's weight, [B], on each action token."""
    of_row = jnp.sum(jnp.where(_is_of(batch, len(weights)), weights, 0.0), axis=1)
    return dataclasses.replace(batch, weight=jnp.where(batch.action_mask, of_row[:, None], 0.0))


def _is_of(batch, count):
    """Whether row r belongs to trajectory b, [R, B]. By comparison: a gather would be ambiguous where rows are sharded."""
    return batch.trajectory[:, None] == jnp.arange(count)
