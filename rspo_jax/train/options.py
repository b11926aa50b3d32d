"""The sections of a config that belong to training, checked one by one; settings.py reads them and checks them together."""

import dataclasses
import math

from rspo_jax.algorithms import advantages, advantages_istar, masking
from rspo_jax.rollout import replay
from rspo_jax.updates import critic, implicit_prm

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
    expert_noise: float  # share of the expert's actions that are errors
    expert_hesitation: float  # share of its turns in which it looks around instead of acting
    updates: int  # each on one full micro-batch
    muon_learning_rate: float  # of the layers' matrices; both fall linearly to 0
    adam_learning_rate: float  # of embeddings, norms and biases
    environment_weight: float  # of tokens that the environment wrote, beside 1 for those of the expert
    model: NewModel

    def __post_init__(self):
        _require("sft", self, episodes=_POSITIVE, expert_noise=_FRACTION, expert_hesitation=_FRACTION, updates=_POSITIVE,
                 muon_learning_rate=_POSITIVE, adam_learning_rate=_POSITIVE, environment_weight=_NOT_NEGATIVE)


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
