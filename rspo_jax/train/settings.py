"""A config, checked: every section becomes a frozen dataclass, so a missing or unknown key fails before anything is loaded."""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from envs import pool as env_pool
from rspo_jax import generation
from rspo_jax.algorithms import advantages, advantages_istar, masking
from rspo_jax.rollout import batching, dialogue, replay
from rspo_jax.updates import critic, implicit_prm, policy

ESTIMATORS = ("grpo", "dr_grpo", "rloo", "gigpo", "reinforce_pp", "reinforce_pp_baseline", "gae")
DENSE_ADVANTAGES = ("sum", "process")
DENSE_SIGNALS = ("regression_prm", "implicit_prm", "environment", "none")
ISTAR_REWARDS = ("step", "token", "merged", "environment", "prime")
ISTAR_REFERENCES = ("old", "initial")
CRITIC_LEVELS = ("row", "trajectory", "turn")
RSPO_ARMS = ("swap", "dense_only", "own_replay")
KEPT_GROUPS = ("all", "mixed", "between", "widest")

# What a value may be, and how that is said.
_POSITIVE = (lambda x: 0 < x < math.inf, "a positive number")
_NOT_NEGATIVE = (lambda x: 0 <= x < math.inf, "a number from 0 on")
_FRACTION = (lambda x: 0 <= x < 1, "at least 0 and below 1")
_SHARE = (lambda x: 0 <= x <= 1, "from 0 to 1")


def _one_of(names):
    return names.__contains__, "one of " + ", ".join(names)


def _require(section, options, **rules):
    for name, (holds, allowed) in rules.items():
        value = getattr(options, name)
        if not holds(value):
            raise ValueError(f"config.{section}.{name}={value!r} is not allowed; use {allowed}.")


@dataclasses.dataclass(frozen=True)
class Mesh:
    fsdp: int
    tensor: int


@dataclasses.dataclass(frozen=True)
class Model:
    directory: str  # Hugging Face directory of the initial policy, which is the KL reference and the PRM's backbone too
    compute_dtype: str
    logprob_chunk: int  # tokens of each row whose logits are held at once
    remat: bool  # recompute blocks in the backward pass

    def __post_init__(self):
        _require("model", self, compute_dtype=_one_of(("float32", "bfloat16")), logprob_chunk=_POSITIVE)


@dataclasses.dataclass(frozen=True)
class Data:
    train_split: str
    max_steps: int  # steps of an episode

    def __post_init__(self):
        _require("data", self, max_steps=_POSITIVE)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    learning_rate: float
    warmup_updates: int
    b1: float
    b2: float
    weight_decay: float
    max_grad_norm: float

    def __post_init__(self):
        _require("optimizer", self, learning_rate=_POSITIVE, warmup_updates=_NOT_NEGATIVE, b1=_FRACTION, b2=_FRACTION,
                 weight_decay=_NOT_NEGATIVE, max_grad_norm=_POSITIVE)


@dataclasses.dataclass(frozen=True)
class Overlong:
    """DAPO's soft punishment of a response that comes near config.sampler.max_new_tokens."""

    buffer: int  # tokens before the cap in which the penalty grows
    factor: float  # the penalty at the cap; 0 for none

    def __post_init__(self):
        _require("advantage.overlong", self, buffer=_POSITIVE, factor=_NOT_NEGATIVE)


@dataclasses.dataclass(frozen=True)
class Gigpo:
    omega: float  # weight of the step part
    gamma: float  # discount of the step returns
    form: str  # of both parts: "z_score" (w/ std) or "centered" (w/o std)
    anchor_similarity: float  # smallest likeness of two observations that are one state; 1 for equality

    def __post_init__(self):
        _require("advantage.gigpo", self, omega=_NOT_NEGATIVE, gamma=_SHARE, form=_one_of(("z_score", "centered")),
                 anchor_similarity=(lambda x: 0 < x <= 1, "above 0 and at most 1, which is equality"))


@dataclasses.dataclass(frozen=True)
class Advantage:
    estimator: str  # one of ESTIMATORS, see train/estimate.py
    gigpo: Gigpo
    overlong: Overlong
    kl_coef: float  # of log pi_old - log pi_ref in the reward; that in the loss is config.policy.kl_coef
    statistics: str  # one of advantages.STATISTICS
    singleton: str  # one of advantages.SINGLETONS
    invalid_penalty: float  # taken off the score of a step whose response was malformed
    aggregation: str  # one of masking.AGGREGATIONS

    def __post_init__(self):
        _require("advantage", self, estimator=_one_of(ESTIMATORS), kl_coef=_NOT_NEGATIVE,
                 statistics=_one_of(advantages.STATISTICS), singleton=_one_of(advantages.SINGLETONS),
                 invalid_penalty=_NOT_NEGATIVE, aggregation=_one_of(masking.AGGREGATIONS))


@dataclasses.dataclass(frozen=True)
class Loop:
    updates: int  # updates of the agent, in all
    tasks_per_update: int  # B, tasks whose episodes one update learns from
    group_size: int  # N, episodes of one task
    minibatches: int  # optimiser steps of one update; each holds the same share of off-policy data
    temperature: float  # of the rollouts, and of every log-prob
    keep_groups: str  # one of KEPT_GROUPS, see train/gather.py
    sampling_tries: int  # batches that are played at most to fill an update with such groups

    def __post_init__(self):
        _require("loop", self, updates=_POSITIVE, tasks_per_update=_POSITIVE, minibatches=_POSITIVE, temperature=_POSITIVE,
                 keep_groups=_one_of(KEPT_GROUPS), sampling_tries=_POSITIVE,
                 group_size=_POSITIVE)


@dataclasses.dataclass(frozen=True)
class Prm:
    episodes: int  # rollouts of the initial policy that it learns from
    validation_fraction: float
    width: int  # of the head's hidden layer
    learning_rate: float
    batch_size: int  # episodes
    epochs: int  # at most; the epoch with the lowest validation error is kept

    def __post_init__(self):
        _require("rspo.prm", self, episodes=(lambda x: x > 1, "at least 2"), width=_POSITIVE, learning_rate=_POSITIVE,
                 validation_fraction=(lambda x: 0 < x < 1, "between 0 and 1"), batch_size=_POSITIVE, epochs=_POSITIVE)


@dataclasses.dataclass(frozen=True)
class Rspo:
    arm: str  # "swap" is RSPO; see train/rspo.py
    updates_per_phase: int  # k
    off_policy_fraction: float  # alpha
    explorer_learning_rate: float  # 0: an explorer that takes no dense step, the control of the papers' central claim
    dense_signal: str  # one of DENSE_SIGNALS, see train/dense.py
    dense_advantage: str  # one of DENSE_ADVANTAGES
    reward_noise: float  # sigma of the noise on each dense reward; RSPO table 5
    replay: str  # one of replay.STRATEGIES
    prm: Prm

    def __post_init__(self):
        _require("rspo", self, arm=_one_of(RSPO_ARMS), updates_per_phase=_POSITIVE, off_policy_fraction=_FRACTION,
                 explorer_learning_rate=_NOT_NEGATIVE, dense_signal=_one_of(DENSE_SIGNALS),
                 dense_advantage=_one_of(DENSE_ADVANTAGES), reward_noise=_NOT_NEGATIVE, replay=_one_of(replay.STRATEGIES))
        if (self.dense_signal == "none") != (self.arm == "own_replay"):
            raise ValueError(f"config.rspo.dense_signal={self.dense_signal} does not go with config.rspo.arm={self.arm}; "
                             "own_replay has no use for dense rewards, and the other arms are trained on them.")


@dataclasses.dataclass(frozen=True)
class Critic(critic.CriticOptions):
    level: str  # one of CRITIC_LEVELS, see train/critic.py
    gamma: float
    lambda_: float
    bootstrap_on_truncation: bool  # level "turn": an episode that a cap cut off is worth more than it was paid
    learning_rate: float

    def __post_init__(self):
        super().__post_init__()
        _require("critic", self, level=_one_of(CRITIC_LEVELS), gamma=_SHARE, lambda_=_SHARE, learning_rate=_POSITIVE)
        if self.bootstrap_on_truncation and self.level != "turn":
            raise ValueError(f"config.critic.bootstrap_on_truncation is for config.critic.level=turn, not {self.level}.")


@dataclasses.dataclass(frozen=True)
class Istar(implicit_prm.ImplicitPrmOptions):
    """The implicit PRM, and how its rewards reach the advantages. RSPO with dense_signal=implicit_prm reads the former only."""

    reference: str  # one of ISTAR_REFERENCES, see train/implicit.py
    learning_rate: float
    max_grad_norm: float
    rewards: str  # one of ISTAR_REWARDS, see train/istar.py
    step_advantage_coef: float  # alpha; for `prime` the weight of the process part beside 1 for the outcome
    baseline: str  # one of advantages_istar.BASELINES
    divide_by_largest: bool  # rewards / max |reward| of the batch, as the released code does

    def __post_init__(self):
        super().__post_init__()
        _require("istar", self, reference=_one_of(ISTAR_REFERENCES), learning_rate=_POSITIVE, max_grad_norm=_POSITIVE,
                 rewards=_one_of(ISTAR_REWARDS), step_advantage_coef=_NOT_NEGATIVE, baseline=_one_of(advantages_istar.BASELINES))


@dataclasses.dataclass(frozen=True)
class Spear:
    replay_episodes: int  # of one replay update at most; it is made when half as many again are worth it
    tolerance: int  # updates that an episode may be old
    horizon: int  # updates over which the bonus fades and the replay's weight grows
    bonus_coef: float
    imitation_coef: float

    def __post_init__(self):
        _require("spear", self, replay_episodes=_POSITIVE, tolerance=_NOT_NEGATIVE, horizon=_POSITIVE, bonus_coef=_NOT_NEGATIVE,
                 imitation_coef=_NOT_NEGATIVE)


@dataclasses.dataclass(frozen=True)
class NewModel:
    """Architecture (Qwen2.5's) of a policy that is made from nothing."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int

    def __post_init__(self):
        heads = self.num_attention_heads
        _require("sft.model", self,
                 hidden_size=(lambda x: heads > 0 and x > 0 and x % (2 * heads) == 0, f"a multiple of 2 * {heads} heads"),
                 intermediate_size=_POSITIVE, num_hidden_layers=_POSITIVE, num_attention_heads=_POSITIVE,
                 num_key_value_heads=(lambda x: x > 0 and heads % x == 0, f"a divisor of {heads}"))


@dataclasses.dataclass(frozen=True)
class Sft:
    """The warm start: behaviour cloning of the environment family's expert."""

    episodes: int
    expert_noise: float  # share of the expert's actions that are random
    updates: int  # each on one full micro-batch
    learning_rate: float  # falls linearly to 0
    environment_weight: float  # of tokens that the environment wrote, beside 1 for those of the expert
    model: NewModel

    def __post_init__(self):
        _require("sft", self, episodes=_POSITIVE, expert_noise=_FRACTION, updates=_POSITIVE,
                 learning_rate=_POSITIVE, environment_weight=_NOT_NEGATIVE)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    every: int  # updates between evaluations; the first and the last weights are always evaluated
    splits: tuple[str, ...]
    games_per_type: int  # the panel of a split: so many of each task type, the same in every evaluation
    temperatures: tuple[float, ...]  # 0 is greedy

    def __post_init__(self):
        _require("evaluation", self, every=_POSITIVE, splits=(bool, "at least one split"), games_per_type=_POSITIVE,
                 temperatures=(
                     lambda x: x and len(set(x)) == len(x) and all(0 <= t < math.inf for t in x), "different numbers from 0 on"))


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    every: int  # ticks: updates of the agent or of the explorer, and harvests
    keep: int

    def __post_init__(self):
        _require("checkpoint", self, every=_POSITIVE, keep=_POSITIVE)


@dataclasses.dataclass(frozen=True)
class Settings:
    """A whole run. `rspo` is None for the plain on-policy loop, `sft` where the initial policy comes from elsewhere."""

    seed: int
    mesh: Mesh
    model: Model
    pool: env_pool.PoolOptions
    data: Data
    dialogue: dialogue.DialogueOptions
    sampler: generation.SamplerOptions
    microbatch: batching.MicrobatchOptions
    optimizer: Optimizer
    policy: policy.PolicyOptions
    advantage: Advantage
    loop: Loop
    critic: Critic | None
    rspo: Rspo | None
    istar: Istar | None
    spear: Spear | None
    sft: Sft | None
    evaluation: Evaluation
    checkpoint: Checkpoint

    def __post_init__(self):
        if self.seed < 0:
            raise ValueError(f"config.seed={self.seed} must not be negative.")
        if self.microbatch.widths[-1] < self.sampler.max_tokens:
            raise ValueError(f"config.microbatch.widths={self.microbatch.widths} must reach config.sampler.max_tokens="
                             f"{self.sampler.max_tokens}, the longest row.")
        if self.advantage.overlong.factor and self.advantage.overlong.buffer > self.sampler.max_new_tokens:
            raise ValueError(f"config.advantage.overlong.buffer={self.advantage.overlong.buffer} is more than "
                             f"config.sampler.max_new_tokens={self.sampler.max_new_tokens}, the cap that it lies before.")
        if (self.advantage.estimator == "gae") != (self.critic is not None):
            raise ValueError(f"config.advantage.estimator={self.advantage.estimator} does not go with config.critic, which is "
                             f"{'there' if self.critic else 'None'}: gae needs it, as configs/base.py:alfworld,ppo has it, and "
                             "no other estimator has use for it.")
        if self.rspo and (self.rspo.dense_signal == "implicit_prm") != (self.istar is not None):
            raise ValueError(f"config.rspo.dense_signal={self.rspo.dense_signal} does not go with config.istar, which is "
                             f"{'there' if self.istar else 'None'}: implicit_prm needs it, as configs/rspo.py:alfworld,implicit "
                             "has it, and the other signals have no use for it.")
        if self.spear and (self.rspo or self.istar or self.critic):
            raise ValueError("config.spear goes with neither config.rspo, config.istar nor config.critic; set those to None.")
        if self.istar and not self.rspo and self.advantage.estimator in ("gigpo", "gae"):
            raise ValueError(f"config.advantage.estimator={self.advantage.estimator} is no base of iStar; use grpo, dr_grpo, "
                             "rloo, reinforce_pp or reinforce_pp_baseline.")
        if self.critic and self.rspo and self.rspo.dense_advantage != "sum":
            raise ValueError(f"config.rspo.dense_advantage={self.rspo.dense_advantage} compares within groups; use sum with a "
                             "critic, which then learns the dense returns.")
        if self.loop.group_size < 2 and self.advantage.estimator not in ("gae", "reinforce_pp"):
            raise ValueError(f"config.loop.group_size={self.loop.group_size} must be at least 2: a group of one has nothing to "
                             "be compared with.")
        if self.loop.sampling_tries > 1 and self.loop.keep_groups not in ("mixed", "between"):
            raise ValueError(f"config.loop.sampling_tries={self.loop.sampling_tries} needs config.loop.keep_groups=mixed or "
                             f"between; {self.loop.keep_groups} keeps the same share of every batch.")
        if self.loop.minibatches > self.on_policy_tasks:
            raise ValueError(f"config.loop.minibatches={self.loop.minibatches} is more than the {self.on_policy_tasks} on-policy "
                             f"tasks of an update; use at most that.")
        share = self.off_policy_episodes / self.loop.group_size
        if share != int(share):
            raise ValueError(f"config.rspo.off_policy_fraction={self.rspo.off_policy_fraction} of config.loop.tasks_per_update="
                             f"{self.loop.tasks_per_update} tasks is {share:g} tasks; make it a whole number.")
        if self.rspo and self.rspo.updates_per_phase * self.rspo.off_policy_fraction > 1:
            raise ValueError(f"config.rspo.updates_per_phase={self.rspo.updates_per_phase} times config.rspo.off_policy_fraction="
                             f"{self.rspo.off_policy_fraction} is more than the harvest, one batch; lower one of them.")
        if self.rspo and self.rspo.prm.episodes < 2 * self.loop.group_size:
            raise ValueError(f"config.rspo.prm.episodes={self.rspo.prm.episodes} must be at least two groups of "
                             f"config.loop.group_size={self.loop.group_size}: one is held out.")

    @property
    def off_policy_episodes(self) -> int:
        """alpha B N: replayed trajectories of one update."""
        alpha = self.rspo.off_policy_fraction if self.rspo and self.rspo.arm != "dense_only" else 0.0
        return round(alpha * self.loop.tasks_per_update * self.loop.group_size)

    @property
    def on_policy_tasks(self) -> int:
        """(1 - alpha) B: tasks that are played afresh for one update."""
        return self.loop.tasks_per_update - self.off_policy_episodes // self.loop.group_size


def read(config: Mapping[str, Any]) -> Settings:
    """Settings from the nested dict of a resolved config.

    Raises:
        ValueError: an unknown or missing key (full path, closest match), a wrong type, or a value out of range.
    """
    config = dict(config)
    sampler, microbatch, pool = dict(config.get("sampler", {})), dict(config.get("microbatch", {})), config.get("pool", {})
    sampler["slots"] = pool.get("slots", 2) // 2  # one sampler for each half of the pool
    microbatch["multiple"] = config.get("mesh", {}).get("fsdp", 1)
    if pool.get("slots", 2) % 2:
        raise ValueError(f"config.pool.slots={pool['slots']} must be even: one half decodes while the other half steps.")
    return build(Settings, config | {"sampler": sampler, "microbatch": microbatch}, "config")


def build(kind, values, path):
    """`kind(**values)`, sections and all, with errors that name the key's full path."""
    fields = {field.name: field.type for field in dataclasses.fields(kind)}
    if not isinstance(values, Mapping):
        raise ValueError(f"{path}={values!r} must be a section with the keys {', '.join(fields)}.")
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            raise ValueError(f"{path}.{key} is unknown" + (f"; did you mean {path}.{near[0]}?" if near else "."))
    for key in fields:
        if key not in values:
            raise ValueError(f"{path}.{key} is missing.")
    return kind(**{key: _value(fields[key], values[key], f"{path}.{key}") for key in fields})


def _value(wanted, value, path):
    if isinstance(wanted, types.UnionType):
        if value is None:
            return None
        wanted = wanted.__args__[0]
    if dataclasses.is_dataclass(wanted):
        return build(wanted, value, path)
    if wanted in (int, float, bool, str):
        integer = isinstance(value, int) and not isinstance(value, bool)
        if wanted is float and integer:
            return float(value)
        if not (integer if wanted is int else isinstance(value, wanted)):
            raise ValueError(f"{path}={value!r} must be of type {wanted.__name__}.")
        if wanted is float and math.isnan(value):
            raise ValueError(f"{path} is nan.")
        return value
    if typing.get_origin(wanted) is tuple:
        if not isinstance(value, tuple | list):
            raise ValueError(f"{path}={value!r} must be a tuple of {typing.get_args(wanted)[0].__name__}.")
        return tuple(_value(typing.get_args(wanted)[0], each, f"{path}[{place}]") for place, each in enumerate(value))
    return value
