"""Sections that several configs share. Each function gives a fresh, complete ConfigDict: no config changes another's.

Every default of rspo_jax is written here or in a config file, nowhere else.
"""

import math
import pathlib

from ml_collections import ConfigDict

WARM_START = pathlib.Path(__file__).parent / "warm_start"


def alfworld_tiny() -> ConfigDict:
    """ALFWorld with the 0.4M-parameter policy that the project makes itself: what two cores train in minutes."""
    config = ConfigDict()
    config.seed = 0
    config.mesh = ConfigDict({"fsdp": 1, "tensor": 1})
    config.model = ConfigDict({
        "directory": str(WARM_START / "alfworld"),
        "compute_dtype": "float32",  # XLA:CPU computes bfloat16 slower
        "logprob_chunk": 128,
        "remat": False,
    })
    config.pool = ConfigDict({
        "family": "envs.alfworld",
        "options": {"data": "data/alfworld"},  # "" for the official data that ALFWORLD_DATA points at
        "workers": 2,
        "slots": 64,
        "start_timeout": 60.0,
        "reset_timeout": 60.0,
        "step_timeout": 20.0,
    })
    config.data = ConfigDict({"train_split": "train", "max_steps": 20})
    config.dialogue = ConfigDict({
        "format": "plain",
        "history": "full",
        "restate_task": True,  # without it, two layers had not learned to take what the task names after 300 updates of sft
        "show_admissible": False,
        "system": "",
    })
    config.sampler = ConfigDict({
        "max_tokens": 640,
        "max_new_tokens": 12,
        "prefill_widths": (24, 96),
        "read_sizes": (128, 192, 256, 320, 384, 512, 640),
    })
    config.microbatch = ConfigDict({"tokens": 4096, "widths": (192, 320, 448, 640)})
    config.evaluation = ConfigDict({
        "every": 18,
        "splits": ("valid_unseen", "valid_seen"),
        "games_per_type": 16,
        "temperatures": (0.4, 0.0),  # 0.4 as the public code evaluates, and greedy
    })
    config.checkpoint = ConfigDict({"every": 1, "keep": 2})
    config.sft = ConfigDict({
        "episodes": 7000,
        "expert_noise": 0.12,
        "expert_hesitation": 0.57,
        "updates": 1300,
        "muon_learning_rate": 1e-2,
        "adam_learning_rate": 2e-3,
        "environment_weight": 0.5,  # most of what the engine says repeats names: copying them is learned from that too
        "model": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 2},
    })
    return config


def base_algorithm() -> ConfigDict:
    """The optimiser, the policy loss and the advantages of GRPO, at the scale of the tiny policy."""
    config = ConfigDict()
    config.optimizer = ConfigDict({
        "learning_rate": 3e-4,
        "warmup_updates": 10,  # optimiser steps; Adam's first ones are as large as it ever makes them
        "b1": 0.9,
        "b2": 0.95,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
    })
    config.policy = ConfigDict({
        "ratio": "token",  # what the public code does; iStar eq. 6 is "step_sum", GSPO "row" with an epsilon of 3e-4 or so
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "clip": "generalized",  # RSPO eq. 4
        "dual_clip": 3.0,
        "off_dual_clip": math.inf,  # the paper bounds nothing here
        "kl_coef": 0.0,
        "kl_estimator": "k3",
        "entropy_coef": 0.0,
    })
    config.advantage = ConfigDict({
        "estimator": "grpo",
        "gigpo": {"omega": 1.0, "gamma": 0.95, "form": "z_score", "anchor_similarity": 1.0},  # read by estimator "gigpo"
        "overlong": {"buffer": 4, "factor": 0.0},
        "kl_coef": 0.0,
        "statistics": "trajectory",
        "singleton": "zero",
        "invalid_penalty": 0.1,
        "aggregation": "trajectory_mean",  # token_mean hardly learns here: docs/decisions/0004
    })
    config.loop = ConfigDict({
        "updates": 36,
        "tasks_per_update": 16,  # B
        "group_size": 8,  # N
        "minibatches": 2,
        "temperature": 0.6,  # decision 0004: rollouts at 1 teach little about 0.4, where it is evaluated
        "keep_groups": "all",
        "sampling_tries": 1,
    })
    return config


def critic() -> ConfigDict:
    """PPO's critic, as the public code runs it; algorithms.md 1.1."""
    return ConfigDict({
        "level": "row",
        "gamma": 1.0,
        "lambda_": 1.0,
        "bootstrap_on_truncation": False,
        "clip": 0.5,
        "loss_factor": 1.0,
        "learning_rate": 1e-3,  # ten times the policy's in the public code, at the scale of the tiny policy
    })


def istar() -> ConfigDict:
    """iStar's own options; the letters of the paper in the comments."""
    return ConfigDict({
        "loss": "preference",  # eq. 2
        "logit": "sum",  # eq. 2; the released code has the mean over steps
        "beta": 0.05,
        "reference": "old",
        "learning_rate": 6e-4,  # twice the policy's, as in the paper
        "max_grad_norm": 10.0,
        "rewards": "step",
        "step_advantage_coef": 1.0,  # alpha
        "baseline": "group",  # eq. 4; the released code has `first_row`
        "divide_by_largest": False,  # the released code does
    })


def spear() -> ConfigDict:
    """SPEAR's own options, at the scale of 64 episodes an update; the public code replays up to 2048 step rows."""
    return ConfigDict({
        "replay_episodes": 64,
        "tolerance": 5,
        "horizon": 200,
        "bonus_coef": 1.0,
        "imitation_coef": 1.0,
    })


def rspo() -> ConfigDict:
    """The wrapper's own options; the letters of the paper in the comments."""
    return ConfigDict({
        "arm": "swap",
        "updates_per_phase": 3,  # k; RSPO table 4: 3 is best, 10 loses 4.7 points of success rate
        "off_policy_fraction": 1 / 8,  # alpha; RSPO table 3: falls off a cliff at 1/4
        "explorer_learning_rate": 3e-4,
        "dense_signal": "regression_prm",
        "dense_advantage": "sum",
        "reward_noise": 0.0,  # sigma; RSPO table 5
        "replay": "reward",  # RSPO table 2: random 12.8, variance 63.0, reward 70.6
        "prm": {
            "episodes": 512,
            "validation_fraction": 0.1,
            "width": 128,
            "learning_rate": 1e-3,
            "batch_size": 64,
            "epochs": 30,
        },
    })


def smoke(config: ConfigDict) -> ConfigDict:
    """The same run, as short as it can be: two loops at most, a few episodes."""
    config.data.max_steps = 6
    config.pool.slots = 8
    config.sampler.max_tokens = 512
    config.sampler.read_sizes = (512,)
    config.sampler.prefill_widths = (64,)
    config.microbatch = ConfigDict({"tokens": 4096, "widths": (512,)})
    config.loop.updates = 2
    config.loop.tasks_per_update = 2
    config.loop.group_size = 4
    config.loop.minibatches = 1
    config.evaluation.every = 2
    config.evaluation.games_per_type = 1
    config.sft.episodes = 16
    config.sft.updates = 4
    if config.spear is not None:
        config.spear.replay_episodes = 1
    if config.rspo is not None:
        config.rspo.updates_per_phase = 1
        config.rspo.off_policy_fraction = 1 / 2
        config.rspo.prm.episodes = 8
        config.rspo.prm.epochs = 2
    return config
