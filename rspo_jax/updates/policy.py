"""The policy update: RSPO's mixed on/off-policy step (eq. 1, 3, 4). With no off-policy rows it is PPO's and GRPO's, and
with dense advantages it is the explorer's.

    J = sum_tokens weight (min(r A, clip(r, c - eps, c + eps) A) - kl_coef KL(pi, pi_ref) + entropy_coef H(pi))

(1 - alpha) and alpha, and the aggregation of a paper, are in the weights. The ratios r = pi / pi_B and c = pi_old / pi_B are
those of tokens, or of the steps or rows that the tokens belong to, both of the same level. KL and entropy are of tokens.

A token that must not train needs no field of its own: advantage 0 takes it out of the surrogate (`covariance_clip`), weight
0 out of the whole objective, and the weights of the other tokens keep the denominators.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from rspo_jax.algorithms import masking, policy_loss, self_imitation, spans
from rspo_jax.updates import accumulate, histogram

KL_ESTIMATORS = (*policy_loss.KL_ESTIMATORS, "k3_ratio_weighted")
QUANTILES = {"p01": 0.01, "p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclasses.dataclass(frozen=True)
class PolicyOptions:
    ratio: str  # one of policy_loss.RATIO_LEVELS
    epsilon_low: float
    epsilon_high: float
    clip: str  # one of policy_loss.CLIPS
    dual_clip: float  # bound on the ratio of tokens with a negative advantage; inf for none
    off_dual_clip: float  # the same for off-policy tokens
    kl_coef: float
    kl_estimator: str  # one of KL_ESTIMATORS
    entropy_coef: float

    def __post_init__(self):
        for name in ("epsilon_low", "epsilon_high", "dual_clip", "off_dual_clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"config.policy.{name}={getattr(self, name)} must be positive.")
        for name in ("kl_coef", "entropy_coef"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"config.policy.{name}={getattr(self, name)} must not be negative.")
        for name, allowed in (("ratio", policy_loss.RATIO_LEVELS), ("clip", policy_loss.CLIPS), ("kl_estimator", KL_ESTIMATORS)):
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
        behavior, ref, advantage = (jnp.where(mask, x, 0.0) for x in (batch.logp_behavior, batch.logp_ref, batch.advantage))

        log_ratio, log_center, ratio, center = _ratios(batch, logp, options)
        surrogate = policy_loss.clipped_surrogate(ratio, center, advantage, options.epsilon_low, options.epsilon_high)
        limit = jnp.where(batch.off_policy[:, None], options.off_dual_clip, options.dual_clip)
        surrogate = policy_loss.dual_clip(surrogate, advantage, limit)
        if options.kl_estimator in policy_loss.KL_ESTIMATORS:
            divergence = policy_loss.kl(logp, ref, options.kl_estimator)
        else:
            divergence = policy_loss.kl_ratio_weighted(logp, behavior, ref)

        weight = jnp.where(mask, batch.weight, 0.0)
        policy_term, kl_term, entropy_term = (jnp.sum(weight * jnp.where(mask, x, 0.0)) for x in (surrogate, divergence, entropy))
        value = -(policy_term - options.kl_coef * kl_term + options.entropy_coef * entropy_term)
        on, off = mask & ~batch.off_policy[:, None], mask & batch.off_policy[:, None]
        clipped = _is_clipped(ratio, center, advantage, options)
        sums = {
            "policy_loss": -policy_term, "tokens_on": jnp.sum(on), "tokens_off": jnp.sum(off),
            "kl_on": _sum(divergence, on), "entropy_on": _sum(entropy, on),
            "clipped_on": jnp.sum(clipped & on), "clipped_off": jnp.sum(clipped & off),
            "ratio_on": _sum(ratio, on), "ratio_off": _sum(ratio, off),
            "center_low": jnp.sum(off & (center < options.epsilon_low)),
            "center_high": jnp.sum(off & (center > 1 / options.epsilon_low)),
            "log_ratio_on": histogram.counts(log_ratio, on), "log_weight_off": histogram.counts(log_center, off),
        }
        return value, (sums, {"ratio_max": masking.largest(ratio, mask)})

    return loss


def covariance_clip(batch, logp, options, band, fraction, key):
    """The batch with advantage 0 on the few tokens that would cost the most entropy (self_imitation.covariance_clip).

    Args:
        batch: TrajectoryBatch of a whole update, before it is split: means and count are taken over all of it.
        logp: [R, L], of the current policy; garbage outside the action mask.
        options: PolicyOptions; what they clip anyway is not chosen.
        band, fraction, key: as in self_imitation.covariance_clip.
    """
    _, _, ratio, center = _ratios(batch, logp, options)
    candidates = ~_is_clipped(ratio, center, batch.advantage, options)
    dropped = self_imitation.covariance_clip(logp, batch.advantage, candidates, batch.action_mask, band, fraction, key)
    return dataclasses.replace(batch, advantage=jnp.where(dropped, 0.0, batch.advantage))


def make_policy_gradient(score, options):
    """The gradient of make_loss over TrajectoryBatches, for accumulate.make_update. Agent and explorer share it."""
    return accumulate.make_gradient(make_loss(score, options))


def summarize(metrics):
    """Host-side metrics of one update: counts become fractions and quantiles. A fraction of nothing is nan.

    log_ratio_p50 and the like are quantiles of log(pi / pi_B) over on-policy tokens, off_policy_weight_p50 and the like of
    pi_old / pi_B over off-policy ones, of the level of config.policy.ratio.
    """
    m = jax.device_get(metrics)
    histograms = {"log_ratio": m.pop("log_ratio_on"), "off_policy_weight": m.pop("log_weight_off")}
    m = {name: float(value) for name, value in m.items()}

    def share(count, total):
        return m[count] / m[total] if m[total] else float("nan")

    def quantiles(name, transform):
        return {f"{name}_{label}": transform(histogram.quantile(histograms[name], q)) for label, q in QUANTILES.items()}

    kept = ("loss", "policy_loss", "grad_norm", "skipped_updates", "ratio_max")
    return {name: m[name] for name in kept} | {
        "entropy": share("entropy_on", "tokens_on"), "kl_ref": share("kl_on", "tokens_on"),
        "ratio_mean": share("ratio_on", "tokens_on"), "ratio_mean_off": share("ratio_off", "tokens_off"),
        "clip_fraction_on": share("clipped_on", "tokens_on"), "clip_fraction_off": share("clipped_off", "tokens_off"),
        "center_below_epsilon": share("center_low", "tokens_off"),
        "center_above_inverse_epsilon": share("center_high", "tokens_off"),
    } | quantiles("log_ratio", float) | quantiles("off_policy_weight", math.exp)


def _sum(values, mask):
    return jnp.sum(jnp.where(mask, values, 0.0))


def _ratios(batch, logp, options):
    """log(pi / pi_B), log(pi_old / pi_B), ratio and centre of each action token, or of its step or row; four of [R, L].

    All four are finite outside the action mask, whatever stands there in the log-probs.
    """
    layout = spans.Layout(batch.action_mask, batch.trajectory, batch.step)
    log_ratio, log_center = (policy_loss.log_ratio(x, batch.logp_behavior, layout, options.ratio) for x in (logp, batch.logp_old))
    return log_ratio, log_center, *policy_loss.ratio_and_center(log_ratio, log_center, jnp.zeros_like(logp), options.clip)


def _is_clipped(ratio, center, advantage, options):
    """Marks the tokens, [R, L] bool, that are beyond the clip in the direction in which their advantage pushes."""
    too_high = (advantage > 0) & (ratio > center + options.epsilon_high)
    too_low = (advantage < 0) & (ratio < center - options.epsilon_low)
    return too_high | too_low
