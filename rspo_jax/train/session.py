"""What every loop works with, opened once: environments, model, sampler, records. And the three things that loops do with
it: draw tasks, play episodes, learn from them."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from envs import pool as env_pool
from envs import protocol
from rspo_jax import checkpoint, generation, interrupt, metrics, sharding, types
from rspo_jax import tokenizer as chat
from rspo_jax.algorithms import logprobs
from rspo_jax.models import config as model_config
from rspo_jax.models import decoder, hf
from rspo_jax.rollout import batching, collect
from rspo_jax.train import settings as run_settings

TRAINING, EVALUATION, PRM, WARM_START = range(4)  # streams of random numbers that never meet


@dataclasses.dataclass
class Progress:
    """Where a run is. Saved with every checkpoint; all randomness derives from it and the seed."""

    tick: int = 0  # updates of either policy, and harvests
    loop: int = 0
    phase: str = "agent"
    phase_updates: int = 0
    updates: int = 0  # of the agent
    groups: int = 0  # tasks drawn
    episodes: int = 0


@dataclasses.dataclass(frozen=True)
class Session:
    settings: run_settings.Settings
    workdir: pathlib.Path
    mesh: jax.sharding.Mesh
    pool: env_pool.Pool
    collector: collect.Collector
    tokenizer: chat.ChatTokenizer
    model: model_config.DecoderConfig
    initial: Any  # params of the initial policy: never donated, never moved
    score: Any  # jitted (params, tokens [R, L]) -> (logp [R, L], entropy [R, L]) at the rollout temperature
    sampler: generation.Sampler
    run: metrics.Run
    checkpoints: checkpoint.Checkpointer
    stop: interrupt.Stop

    @property
    def full_history(self) -> bool:
        return self.settings.dialogue.window is None

    @functools.cached_property
    def train_tasks(self) -> list[protocol.Task]:
        return self.pool.tasks(self.settings.data.train_split)

    @functools.cached_property
    def task_types(self) -> list[str]:
        splits = {self.settings.data.train_split, *self.settings.evaluation.splits}
        return sorted({task.type for split in splits for task in self.pool.tasks(split)})


@contextlib.contextmanager
def open_session(settings: run_settings.Settings, config: Mapping[str, Any], workdir: str) -> Iterator[Session]:
    """Opens everything, cheapest and most likely to fail first, and closes it whatever happens."""
    with contextlib.ExitStack() as stack:
        tokenizer = chat.ChatTokenizer.load(settings.model.directory)
        mesh = sharding.make_mesh(settings.mesh.fsdp, settings.mesh.tensor)
        stack.enter_context(jax.set_mesh(mesh))
        model, initial = hf.load(settings.model.directory, settings.model.compute_dtype)
        sharding.check(model, mesh)
        run = stack.enter_context(metrics.Run(workdir, resume=True, total_updates=settings.loop.updates))
        stop = stack.enter_context(interrupt.Stop())
        pool = stack.enter_context(env_pool.Pool(settings.pool))
        session = Session(
            settings=settings, workdir=pathlib.Path(workdir), mesh=mesh, pool=pool,
            collector=collect.Collector(pool, tokenizer, settings.dialogue, settings.sampler.slots, settings.data.max_steps),
            tokenizer=tokenizer, model=model, initial=initial,
            score=jax.jit(make_score(settings, model, tokenizer.vocab_size)),
            sampler=generation.Sampler(model, settings.sampler, tokenizer.stop_tokens, tokenizer.vocab_size),
            run=run, checkpoints=stack.enter_context(checkpoint.Checkpointer(pathlib.Path(workdir) / "checkpoints",
                                                                              settings.checkpoint.keep)),
            stop=stop)
        run.header(config, _facts(session))
        yield session


def make_score(settings: run_settings.Settings, model: model_config.DecoderConfig, vocab_size: int):
    """(params, tokens [R, L]) -> (logp [R, L], entropy [R, L]) of each token given those before it; position 0 is 0."""

    def score(params, tokens):
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
        states = decoder.hidden(params, model, tokens, positions, remat=settings.model.remat)
        return logprobs.sequence_logprobs(states, decoder.unembedding(params, model), tokens,
                                          settings.loop.temperature, settings.model.logprob_chunk, vocab_size)

    return score


def make_optimizer(options: run_settings.Optimizer, learning_rate: float) -> optax.GradientTransformation:
    """AdamW after a global-norm clip, with a linear warm-up. The learning rate is an argument: the explorer has its own."""
    schedule = optax.linear_schedule(learning_rate / (options.warmup_updates + 1), learning_rate, options.warmup_updates)
    return optax.chain(
        optax.clip_by_global_norm(options.max_grad_norm),
        optax.adamw(schedule, b1=options.b1, b2=options.b2, weight_decay=options.weight_decay))


def draw(session: Session, progress: Progress, tasks: int, stream: int = TRAINING) -> list[collect.Episode]:
    """The episodes of the next groups. The order of tasks is a new permutation in each pass over the split."""
    episodes = []
    for group in range(progress.groups, progress.groups + tasks):
        epoch, place = divmod(group, len(session.train_tasks))
        order = np.random.default_rng([session.settings.seed, stream, epoch]).permutation(len(session.train_tasks))
        seed = int(np.random.SeedSequence([session.settings.seed, stream, group]).generate_state(1)[0])
        episodes += [collect.Episode(session.train_tasks[order[place]], group, member, seed)
                     for member in range(session.settings.loop.group_size)]
    progress.groups += tasks
    progress.episodes += len(episodes)
    return episodes


def play(session: Session, params, episodes: Sequence[collect.Episode], name: str, update: int,
         stream: int = TRAINING) -> collect.Rollout:
    """Plays episodes at the rollout temperature and stores the trainer's log-probs of what was sampled."""
    policy = sampling_policy(session, params, session.settings.loop.temperature, stream)
    rollout = session.collector.collect(policy, episodes, name, update)
    began = time.perf_counter()
    batch = batching.pad(rollout.trajectories, session.full_history)
    logp = token_logps(session, params, batch)
    trajectories = batching.with_logp_behavior(rollout.trajectories, batch, logp)
    return collect.Rollout(trajectories, rollout.seconds | {"score": time.perf_counter() - began})


def sampling_policy(session: Session, params, temperature: float, stream: int) -> collect.Policy:
    """The collector's policy: the sampler with these weights, and one cache for each half of the slots."""
    caches = [session.sampler.empty_cache(), session.sampler.empty_cache()]

    def answer(half, asks):
        prompts = {slot: ask.prompt for slot, ask in asks.items()}
        fresh = {slot for slot, ask in asks.items() if ask.fresh}
        keys = {slot: (session.settings.seed, stream, ask.episode.group, ask.episode.member, ask.step)
                for slot, ask in asks.items()}
        caches[half], replies = session.sampler.turn(params, caches[half], prompts, fresh, keys, temperature)
        return replies

    return answer


def token_logps(session: Session, params, batch: types.TrajectoryBatch) -> np.ndarray:
    """Log-prob of every token of a whole batch, [R, L]."""
    parts = [(index, np.asarray(session.score(params, place(session, part.tokens))[0]))
             for index, part in batching.split(batch, session.settings.microbatch)]
    return batching.merge(parts, np.zeros(batch.tokens.shape, np.float32))


def place(session: Session, batch):
    """Host arrays on the mesh, rows over its first axis."""
    return jax.device_put(batch, sharding.batch_sharding(session.mesh))


def restore(session: Session, like: Mapping[str, Any]):
    """Arrays and host data of the newest checkpoint; two empty dicts where there is none yet."""
    tick = session.checkpoints.latest()
    if tick is None:
        return {}, {}
    session.run.note(f"resuming from checkpoint {tick}")
    return session.checkpoints.restore(tick, like)


def save(session: Session, progress: Progress, arrays: Mapping[str, Any], host: Mapping[str, Any]) -> None:
    """A checkpoint, where one is due: every so many ticks, at the end, and before a requested stop."""
    finished = progress.updates >= session.settings.loop.updates
    if progress.tick % session.settings.checkpoint.every == 0 or finished or session.stop.requested:
        session.checkpoints.save(progress.tick, arrays, {"progress": dataclasses.asdict(progress), **host})


def _facts(session: Session) -> dict[str, Any]:
    settings = session.settings
    panel = {split: len(session.pool.tasks(split)) for split in settings.evaluation.splits}
    return {
        "data": settings.pool.family, "data_options": dict(settings.pool.options), "split": settings.data.train_split,
        "games": len(session.train_tasks), "evaluation_games": panel, "history": settings.dialogue.history,
        "step_cap": settings.data.max_steps, "temperature": settings.loop.temperature,
        "evaluation_temperatures": list(settings.evaluation.temperatures), "seed": settings.seed,
        "model": settings.model.directory, "parameters": sum(x.size for x in jax.tree.leaves(session.initial)),
        "devices": [str(device) for device in jax.devices()], "jax": jax.__version__,
        "rspo_jax": importlib.metadata.version("rspo_jax"),
    }
