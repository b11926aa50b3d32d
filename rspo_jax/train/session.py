"""What every loop works with, opened once: environments, model, sampler, records. And the three things that loops do with
it: draw tasks, play episodes, learn from them."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import math
import pathlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from envs import pool as env_pool
from envs import protocol
from rspo_jax import checkpoint, generation, metrics, sharding, types
from rspo_jax import tokenizer as chat
from rspo_jax.algorithms import logprobs
from rspo_jax.models import config as model_config
from rspo_jax.models import decoder, hf
from rspo_jax.rollout import batching, collect
from rspo_jax.train import options as run_options
from rspo_jax.train import settings as run_settings

# Streams of random numbers. A generator is keyed by (seed, stream, counter), so two streams never meet.
TRAINING, EVALUATION, PRM, WARM_START, PRM_SPLIT, PRM_FIT, REWARD_NOISE, REPLAY = range(8)
MODEL = "model"  # the Hugging Face directory that a finished workdir has


class UsageError(Exception):
    """What was asked for cannot be done; the message says why and what to do. Anything else is a bug, with its traceback."""


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
    env_steps: int = 0
    last_dense: float = math.nan  # of the last episodes of a policy that is trained on dense rewards
    last_success: float = math.nan
    gamed: int = 0  # how often in a row the former rose and the latter fell


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

    @property
    def full_history(self) -> bool:
        return self.settings.dialogue.window is None

    @functools.cached_property
    def train_tasks(self) -> list[protocol.Task]:
        return self.tasks(self.settings.data.train_split)

    @functools.cached_property
    def panels(self) -> dict[str, list[protocol.Task]]:
        """The games of each evaluation, by split: so many of each task type, spread evenly over the split's own order."""
        return {split: _panel(self.tasks(split), self.settings.evaluation.games_per_type)
                for split in self.settings.evaluation.splits}

    @functools.cached_property
    def task_types(self) -> list[str]:
        return sorted({task.type for tasks in (self.train_tasks, *self.panels.values()) for task in tasks})

    def tasks(self, split: str) -> list[protocol.Task]:
        """The tasks of a split, at least one."""
        try:
            tasks = self.pool.tasks(split)
        except ValueError as error:
            raise UsageError(str(error)) from error
        if not tasks:
            raise UsageError(f"split {split!r} of config.pool.options={dict(self.settings.pool.options)} has no games.")
        return tasks


@contextlib.contextmanager
def open_session(settings: run_settings.Settings, config: Mapping[str, Any], workdir: str, record: str) -> Iterator[Session]:
    """Opens everything, cheapest and most likely to fail first, and closes it whatever happens.

    Args:
        workdir: where checkpoints, the PRM and the model lie.
        record: where metrics are written; the workdir itself for what trains.
    """
    with contextlib.ExitStack() as stack:
        tokenizer = chat.ChatTokenizer.load(settings.model.directory)
        mesh = sharding.make_mesh(settings.mesh.fsdp, settings.mesh.tensor)
        stack.enter_context(jax.set_mesh(mesh))
        # Master weights and moments are float32 whatever the compute dtype: bfloat16 does not move at a learning rate of 1e-6.
        model, initial = hf.load(settings.model.directory, "float32")
        model = dataclasses.replace(model, compute_dtype=settings.model.compute_dtype)
        sharding.check(model, mesh)
        run = stack.enter_context(metrics.Run(record, resume=True, total_updates=settings.loop.updates))
        pool = stack.enter_context(env_pool.Pool(settings.pool))
        session = Session(
            settings=settings, workdir=pathlib.Path(workdir), mesh=mesh, pool=pool,
            collector=collect.Collector(pool, tokenizer, settings.dialogue, settings.sampler.slots, settings.data.max_steps,
                                        together=jax.default_backend() == "cpu" and jax.process_count() == 1),
            tokenizer=tokenizer, model=model, initial=initial,
            score=jax.jit(make_score(settings, model, tokenizer.vocab_size, settings.loop.temperature)),
            sampler=generation.Sampler(model, settings.sampler, tokenizer.stop_tokens, tokenizer.vocab_size),
            run=run, checkpoints=stack.enter_context(checkpoint.Checkpointer(pathlib.Path(workdir) / "checkpoints",
                                                                              settings.checkpoint.keep)))
        run.header(config, _facts(session))
        run.note("compiling the sampler ...")
        session.sampler.warm_up(initial)
        yield session


def make_score(settings: run_settings.Settings, model: model_config.DecoderConfig, vocab_size: int, temperature: float):
    """(params, tokens [R, L]) -> (logp [R, L], entropy [R, L]) of each token given those before it; position 0 is 0."""

    def score(params, tokens):
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
        states = decoder.hidden(params, model, tokens, positions, remat=settings.model.remat)
        return logprobs.sequence_logprobs(states, decoder.unembedding(params, model), tokens,
                                          temperature, settings.model.logprob_chunk, vocab_size)

    return score


def make_optimizer(options: run_options.Optimizer, learning_rate: float) -> optax.GradientTransformation:
    """AdamW after a global-norm clip, with a linear warm-up. The learning rate is an argument: the explorer has its own."""
    schedule = optax.linear_schedule(learning_rate / (options.warmup_updates + 1), learning_rate, options.warmup_updates)
    return optax.chain(
        optax.clip_by_global_norm(options.max_grad_norm),
        optax.adamw(schedule, b1=options.b1, b2=options.b2, weight_decay=options.weight_decay))


def draw(session: Session, progress: Progress, tasks: int, members: int, stream: int = TRAINING) -> list[collect.Episode]:
    """The episodes of the next groups. The order of tasks is a new permutation in each pass over the split."""
    episodes = []
    for group in range(progress.groups, progress.groups + tasks):
        epoch, place = divmod(group, len(session.train_tasks))
        order = np.random.default_rng([session.settings.seed, stream, epoch]).permutation(len(session.train_tasks))
        seed = int(np.random.SeedSequence([session.settings.seed, stream, group]).generate_state(1)[0])
        episodes += [collect.Episode(session.train_tasks[order[place]], group, member, seed)
                     for member in range(members)]
    progress.groups += tasks
    progress.episodes += len(episodes)
    return episodes


def play(session: Session, params, episodes: Sequence[collect.Episode], name: str, update: int,
         stream: int = TRAINING) -> collect.Rollout:
    """Plays episodes at the rollout temperature and stores the trainer's log-probs of what was sampled.

    Seconds: waiting for environments, prefill, decode, host (tokenising, parsing, sending) and score (log-probs).
    """
    policy = sampling_policy(session, params, session.settings.loop.temperature, stream)
    before = dict(session.sampler.seconds)
    rollout = session.collector.collect(policy, episodes, name, update)
    began = time.perf_counter()
    at_once = 2 if session.collector.together else 1  # both halves' seconds pass at the same time
    seconds = {phase: (total - before[phase]) / at_once for phase, total in session.sampler.seconds.items()}
    seconds |= {"env": rollout.seconds["env"], "host": rollout.seconds["sample"] - sum(seconds.values())}
    batch = batching.pad(rollout.trajectories, session.full_history)
    logp = token_logps(session, params, batch)
    trajectories = batching.with_logp_behavior(rollout.trajectories, batch, logp)
    return dataclasses.replace(rollout, trajectories=trajectories,
                               seconds=seconds | {"score": time.perf_counter() - began})


def sampling_policy(session: Session, params, temperature: float, stream: int) -> collect.Policy:
    """The collector's policy: the sampler with these weights, and one cache for each half of the slots."""
    caches = [session.sampler.empty_cache(), session.sampler.empty_cache()]

    def answer(half, asks):
        with jax.set_mesh(session.mesh):  # of this thread
            return turn(half, asks)

    def turn(half, asks):
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
    try:
        return session.checkpoints.restore(tick, like)
    except ValueError as error:
        raise UsageError(str(error)) from error


def save(session: Session, progress: Progress, arrays: Mapping[str, Any], host: Mapping[str, Any], now: bool) -> None:
    """A checkpoint, where one is due: every so many ticks, at the end, and `now`, before a requested stop."""
    finished = progress.updates >= session.settings.loop.updates
    if progress.tick % session.settings.checkpoint.every == 0 or finished or now:
        session.checkpoints.save(progress.tick, arrays, {"progress": dataclasses.asdict(progress), **host})


def save_model(session: Session, params) -> None:
    """Writes WORKDIR/model, a Hugging Face directory with the tokenizer along; one that an earlier end wrote is replaced."""
    directory = session.workdir / MODEL
    partial = directory.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    hf.save(partial, session.model, params, "float32")
    session.tokenizer.save(partial)
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)
    session.run.note(f"wrote {directory}")


def _panel(tasks, games_per_type):
    """So many tasks of each type, spread evenly, because neighbours are of one object or scene."""
    chosen = []
    for kind in sorted({task.type for task in tasks}):
        mine = [task for task in tasks if task.type == kind]
        count = min(games_per_type, len(mine))
        chosen += [mine[math.floor(place * len(mine) / count)] for place in range(count)]
    return chosen


def _facts(session: Session) -> dict[str, Any]:
    settings = session.settings
    return {
        "data": settings.pool.family,
        "data_options": dict(settings.pool.options),
        "split": settings.data.train_split,
        "games": len(session.train_tasks),
        "evaluation_games": {split: len(panel) for split, panel in session.panels.items()},
        "history": settings.dialogue.history,
        "step_cap": settings.data.max_steps,
        "temperature": settings.loop.temperature,
        "evaluation_temperatures": list(settings.evaluation.temperatures),
        "seed": settings.seed,
        "model": settings.model.directory,
        "parameters": sum(x.size for x in jax.tree.leaves(session.initial)),
        "devices": [str(device) for device in jax.devices()],
        "jax": jax.__version__,
        "rspo_jax": importlib.metadata.version("rspo_jax"),
    }
