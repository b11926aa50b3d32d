"""The warm start: a small policy made from nothing and taught by behaviour cloning on episodes of a noisy expert."""

import dataclasses
import importlib
import math
import pathlib
import shutil
import time

import jax
import numpy as np
import optax

from rspo_jax import sharding
from rspo_jax import tokenizer as chat
from rspo_jax.models import config as model_config
from rspo_jax.models import decoder, hf
from rspo_jax.report import summary
from rspo_jax.rollout import batching
from rspo_jax.train import evaluate
from rspo_jax.train import options as run_options
from rspo_jax.train import session as sessions
from rspo_jax.train import settings as run_settings
from rspo_jax.updates import accumulate, sft

SHORTEST_SHARE = 0.2  # of the rows, from which the first batch is drawn; all of them from two fifths of the updates on


@dataclasses.dataclass(frozen=True)
class Reply:
    """What the collector takes for a response; an expert's has no log-probs."""

    tokens: np.ndarray
    logp: np.ndarray
    stopped: bool = True
    overflow: bool = False


def make_model(settings: run_settings.Settings, directory: pathlib.Path) -> None:
    """Writes a randomly initialised Qwen2.5-architecture model and its word-level tokenizer as a Hugging Face directory."""
    shutil.rmtree(directory, ignore_errors=True)  # of an earlier start in the same workdir
    family = importlib.import_module(settings.pool.family)
    chat.build_small(family.words(), family.phrases(), directory)
    tokenizer = chat.ChatTokenizer.load(directory)
    options = settings.sft.model
    config = model_config.DecoderConfig(
        model_type="qwen2", vocab_size=tokenizer.padded_vocab_size, hidden_size=options.hidden_size,
        intermediate_size=options.intermediate_size, num_hidden_layers=options.num_hidden_layers,
        num_attention_heads=options.num_attention_heads, num_key_value_heads=options.num_key_value_heads,
        head_dim=options.hidden_size // options.num_attention_heads, rms_norm_eps=1e-6, rope_type="default",
        rope_theta=10_000.0, max_position_embeddings=32_768, tie_word_embeddings=True,
        compute_dtype=settings.model.compute_dtype)
    with jax.set_mesh(sharding.make_mesh(settings.mesh.fsdp, settings.mesh.tensor)):
        hf.save(directory, config, decoder.init(jax.random.key(settings.seed), config), "float32")


def make_optimizer(options: run_options.Sft) -> optax.GradientTransformation:
    """Muon for the layers' stacked matrices [layers, in, out], Adam for the rest; linearly to zero over the updates.

    The same on every device: Muon multiplies each gradient with itself, which leaves open how the product would be laid out.
    """
    def matrices(params):
        return jax.tree.map(lambda x: optax.contrib.MuonDimensionNumbers((1,), (2,)) if x.ndim == 3 else None, params)

    def everywhere(tree):
        return jax.tree.map(lambda x: sharding.shard(x, ()), tree)

    def to_zero(rate):
        return optax.linear_schedule(rate, 0.0, options.updates)

    muon = optax.contrib.muon(
        to_zero(options.muon_learning_rate), adam_learning_rate=to_zero(options.adam_learning_rate), adam_b2=0.95,
        muon_weight_dimension_numbers=matrices)

    def update(gradients, state, params):
        updates, state = muon.update(everywhere(gradients), state, everywhere(params))
        return jax.tree.map(lambda new, old: jax.sharding.reshard(new, jax.typeof(old).sharding.spec), updates, params), state

    return optax.GradientTransformation(lambda params: muon.init(everywhere(params)), update)


def run(session: sessions.Session) -> None:
    """Clones the expert for config.sft.updates updates and writes WORKDIR/model."""
    options = session.settings.sft
    optimizer = make_optimizer(options)
    # What is cloned is the policy at temperature 1, whatever a run plays at later.
    score = sessions.make_score(session.settings, session.model, session.tokenizer.vocab_size, temperature=1.0)
    step = sft.make_sft_update(score, optimizer)
    state = accumulate.new_state(session.initial, optimizer)
    session.run.note(f"playing {options.episodes} episodes with an expert that hesitates in {options.expert_hesitation:.0%} "
                     f"of its turns and errs in {options.expert_noise:.0%} of the others ...")
    played = play_expert(session)
    longest = session.settings.sampler.max_tokens
    trajectories = [t for t in played if all(len(row.tokens) <= longest for row in batching.rows(t, session.full_history))]
    batch = batching.pad(trajectories, session.full_history)
    order = np.argsort(batching.row_lengths(batch), kind="stable")  # the shortest first, of which some hold nothing
    batch = batching.take(batch, order[np.count_nonzero(batching.row_lengths(batch) == 0):])
    lengths = batching.row_lengths(batch)
    written = np.arange(batch.tokens.shape[1]) < lengths[:, None]
    importance = np.where(batch.action_mask, 1.0, options.environment_weight * written).astype(np.float32)
    session.run.log(0, "sft_data", {
        "episodes": len(played), "left_out_as_too_long": len(played) - len(trajectories),
        "success": summary.mean(t.success for t in played), "steps": summary.mean(len(t.steps) for t in played),
        "tokens": summary.mean(lengths)})
    began = time.perf_counter()
    for update in range(options.updates):
        rng = np.random.default_rng([session.settings.seed, sessions.WARM_START, update])
        # Short rows first: copying an object's name from the observation is learned there, and they cost least.
        share = min(1.0, SHORTEST_SHARE + 2 * update / options.updates)
        # A row and those a little shorter, as many as one micro-batch holds: nearly no padding.
        last = rng.integers(math.ceil(share * len(lengths)))
        width = batching.fitting(lengths[last], session.settings.microbatch)
        rows = np.arange(max(0, last + 1 - session.settings.microbatch.rows(width)), last + 1)
        part = batching.take(batch, rows)
        part.weight[:] = importance[rows] / importance[rows].sum()
        microbatches = [sessions.place(session, micro) for _, micro in batching.split(part, session.settings.microbatch)]
        state, metrics = step(state, microbatches)
        if (update + 1) % 50 == 0 or update + 1 == options.updates:
            session.run.log(update + 1, "sft", {
                "loss": float(metrics["loss"]), "action_logp": float(metrics["action_logp"] / metrics["action_tokens"]),
                "seconds/total": time.perf_counter() - began})
    evaluate.evaluate(session, state.params, options.updates)
    sessions.save_model(session, state.params)


def play_expert(session: sessions.Session):
    """Episodes of the environment family's own expert, through the same dialogue and tokenizer as the policy's."""
    options = session.settings.sft
    family = importlib.import_module(session.settings.pool.family)
    episodes = sessions.draw(session, sessions.Progress(), options.episodes, 1, sessions.WARM_START)
    experts = {}

    def answer(half, asks):
        replies = {}
        for slot, ask in asks.items():
            if ask.step == 0:
                experts[half, slot] = family.Expert(ask.episode.task.type, ask.task, ask.episode.seed, options.expert_noise,
                                                     options.expert_hesitation)
            action = experts[half, slot].act(ask.observation)
            tokens = np.append(session.tokenizer.encode(action), session.tokenizer.stop_tokens[0]).astype(np.int32)
            replies[slot] = Reply(tokens, np.zeros(len(tokens), np.float32))
        return replies

    # One half's environments step while the other half's expert thinks; `together` is for policies that compute.
    collector = dataclasses.replace(session.collector, together=False)
    return collector.collect(answer, episodes, "expert", 0).trajectories

