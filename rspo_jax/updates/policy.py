"""The policy update: RSPO's mixed on/off-policy step (eq. 1, 3, 4). With no off-policy rows it is PPO's and GRPO's, and
with dense advantages it is the explorer's.

    J = sum_tokens weight (min(r A, clip(r, c - eps, c + eps) A) - kl_coef KL(pi, pi_ref) + entropy_coef H(pi))

(1 - alpha) and alpha, and the aggregation of a paper, are in the weights.
"""

import dataclasses

import jax.numpy as jnp

from rspo_jax.algorithms import masking, policy_loss
from rspo_jax.updates import accumulate


@dataclasses.dataclass(frozen=True)
class PolicyOptions:
    epsilon_low: float
    epsilon_high: float
    clip: str  # one of policy_loss.CLIPS
    dual_clip: float  # bound on the ratio of tokens with a negative advantage; inf for none
    off_dual_clip: float  # the same for off-policy tokens
    kl_coef: float
    kl_estimator: str  # one of policy_loss.KL_ESTIMATORS
    entropy_coef: float

    def __post_init__(self):
        for name in ("epsilon_low", "epsilon_high", "dual_clip", "off_dual_clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"config.policy.{name}={getattr(self, name)} must be positive.")
        for name in ("kl_coef", "entropy_coef"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"config.policy.{name}={getattr(self, name)} must not be negative.")
        for name, allowed in (("clip", policy_loss.CLIPS), ("kl_estimator", policy_loss.KL_ESTIMATORS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"config.policy.{name}={getattr(self, name)!r} is unknown; use one of {', '.join(allowed)}.")


def make_loss(score, options):
    """The loss of one micro-batch.

    Args:
        score: (params, tokens [R, L]) -> (logp [R, L], entropy [R, L]) under the rollout temperature.
        options: PolicyOptions.

    Returns:
        loss(params, TrajectoryBatch) -> (value, (sums, maxima)), see updates/accumulate.py.
    """

    def loss(params, batch):
        logp, entropy = score(params, batch.tokens)
        mask = batch.action_mask
        # Padding and prompt tokens: whatever stands there must not reach an exp.
        logp = jnp.where(mask, logp, 0.0)
        old, behavior, ref = (jnp.where(mask, x, 0.0) for x in (batch.logp_old, batch.logp_behavior, batch.logp_ref))
        advantage = jnp.where(mask, batch.advantage, 0.0)

        ratio, center = policy_loss.ratio_and_center(logp, old, behavior, options.clip)
        surrogate = policy_loss.clipped_surrogate(ratio, center, advantage, options.epsilon_low, options.epsilon_high)
        limit = jnp.where(batch.off_policy[:, None], options.off_dual_clip, options.dual_clip)
        surrogate = policy_loss.dual_clip(surrogate, advantage, limit)
        divergence = policy_loss.kl(logp, ref, options.kl_estimator)

        weight = jnp.where(mask, batch.weight, 0.0)
        policy_term, kl_term, entropy_term = (jnp.sum(weight * jnp.where(mask, x, 0.0)) for x in (surrogate, divergence, entropy))
        value = -(policy_term - options.kl_coef * kl_term + options.entropy_coef * entropy_term)
        on = mask & ~batch.off_policy[:, None]
        sums = {"policy_loss": -policy_term, "kl_on": jnp.sum(jnp.where(on, divergence, 0.0)),
                "entropy_on": jnp.sum(jnp.where(on, entropy, 0.0))}
        return value, _statistics(sums, ratio, center, advantage, options, batch)

    return loss


def _statistics(sums, ratio, center, advantage, options, batch):
    """Counts that `summarize` turns into fractions; on and off policy apart."""
    off = batch.action_mask & batch.off_policy[:, None]
    on = batch.action_mask & ~batch.off_policy[:, None]
    too_high = (advantage > 0) & (ratio > center + options.epsilon_high)
    too_low = (advantage < 0) & (ratio < center - options.epsilon_low)
    clipped = too_high | too_low
    sums = sums | {
        "tokens_on": jnp.sum(on), "tokens_off": jnp.sum(off),
        "clipped_on": jnp.sum(clipped & on), "clipped_off": jnp.sum(clipped & off),
        "ratio_on": jnp.sum(jnp.where(on, ratio, 0.0)), "ratio_off": jnp.sum(jnp.where(off, ratio, 0.0)),
        "center_low": jnp.sum(off & (center < options.epsilon_low)),
        "center_high": jnp.sum(off & (center > 1 / options.epsilon_low)),
    }
    return sums, {"ratio_max": masking.largest(ratio, batch.action_mask)}


def make_policy_gradient(score, options):
    """The gradient of make_loss over TrajectoryBatches, for accumulate.make_update. Agent and explorer share it."""
    return accumulate.make_gradient(make_loss(score, options))


def summarize(metrics):
    """Host-side metrics of one update: counts become fractions. A fraction of nothing is nan."""
    m = {name: float(value) for name, value in metrics.items()}

    def share(count, total):
        return m[count] / m[total] if m[total] else float("nan")

    kept = ("loss", "policy_loss", "grad_norm", "skipped_updates", "ratio_max")
    return {name: m[name] for name in kept} | {
        "entropy": share("entropy_on", "tokens_on"), "kl_ref": share("kl_on", "tokens_on"),
        "ratio_mean": share("ratio_on", "tokens_on"), "ratio_mean_off": share("ratio_off", "tokens_off"),
        "clip_fraction_on": share("clipped_on", "tokens_on"), "clip_fraction_off": share("clipped_off", "tokens_off"),
        "center_below_epsilon": share("center_low", "tokens_off"),
        "center_above_inverse_epsilon": share("center_high", "tokens_off"),
    }
