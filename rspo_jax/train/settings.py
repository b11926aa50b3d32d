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
from rspo_jax.rollout import batching, dialogue
from rspo_jax.train import options
from rspo_jax.updates import policy


@dataclasses.dataclass(frozen=True)
class Settings:
    """A whole run. `rspo` is None for the plain on-policy loop, `sft` where the initial policy comes from elsewhere."""

    seed: int
    mesh: options.Mesh
    model: options.Model
    pool: env_pool.PoolOptions
    data: options.Data
    dialogue: dialogue.DialogueOptions
    sampler: generation.SamplerOptions
    microbatch: batching.MicrobatchOptions
    optimizer: options.Optimizer
    policy: policy.PolicyOptions
    advantage: options.Advantage
    loop: options.Loop
    critic: options.Critic | None
    rspo: options.Rspo | None
    istar: options.Istar | None
    spear: options.Spear | None
    sft: options.Sft | None
    evaluation: options.Evaluation
    checkpoint: options.Checkpoint

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
