"""Sampling the responses of many live episodes at once, turn by turn.

Each slot holds the row of one live episode. Its keys and values survive from turn to turn, so that a turn reads only its
new tokens and then decodes:

    sampler.warm_up(params)
    cache = sampler.empty_cache()
    cache, responses = sampler.turn(params, cache, prompts, fresh=prompts, keys=keys, temperature=1.0)
    cache, responses = sampler.turn(params, cache, next_prompts, fresh=(), keys=next_keys, temperature=1.0)

The last token of a response is not in the cache when the response is returned, because nothing was predicted from it yet.
It is read at the head of the slot's next turn, at the position that it has in the row.

What a slot samples depends on its own tokens and its own key, and on nothing else: not on the other slots, its index, or
the shapes that it was computed in. All shapes come from `SamplerOptions`; nothing compiles after `warm_up`.
"""

import bisect
import dataclasses
import hashlib
import itertools
import threading
import time
from collections.abc import Collection, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax import decoding, sharding
from rspo_jax.models import config as model_config
from rspo_jax.models import kv_cache

# Slots that are served at once, see `decoding`. Few, so that a rollout's last live slots do not pay for the idle ones.
GROUP = 8


@dataclasses.dataclass(frozen=True)
class SamplerOptions:
    """Every shape that the sampler computes in."""

    slots: int  # S
    max_tokens: int  # of a row, prompts and responses together
    max_new_tokens: int  # of a response
    prefill_widths: tuple[int, ...]  # ascending; new tokens are read in pieces of these widths
    read_sizes: tuple[int, ...]  # ascending up to max_tokens; how many positions of the cache attention looks at

    def __post_init__(self):
        for name in ("slots", "max_tokens", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"config.sampler.{name}={getattr(self, name)} must be at least 1.")
        for name in ("prefill_widths", "read_sizes"):
            sizes = getattr(self, name)
            if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
                raise ValueError(f"config.sampler.{name}={sizes} must be positive and ascending, for example (32, 256).")
        if self.read_sizes[-1] != self.max_tokens:
            raise ValueError(f"config.sampler.read_sizes={self.read_sizes} must end with max_tokens={self.max_tokens}.")


@dataclasses.dataclass(frozen=True)
class Response:
    """What one slot sampled in one turn."""

    tokens: np.ndarray  # [n] int32, exactly the sampled ids, the stop token included
    logp: np.ndarray  # [n] float32, of logits / temperature; at temperature 0 of the logits
    stopped: bool  # the last token is a stop token
    overflow: bool  # the row is full: cut before max_new_tokens, or, when empty, its prompt was not even read


@dataclasses.dataclass(frozen=True)
class LiveCache:
    """The rows of S slots between two turns. `turn` consumes one and returns the next: the old one is gone."""

    kv: kv_cache.Cache  # its `length` is not maintained; `written` is
    hidden: jax.Array  # [S, d], state of each slot's newest prompt token
    written: np.ndarray  # [S] int32, tokens of the row that are in the cache
    pending: np.ndarray  # [S] int32, the sampled token that is not in the cache yet, or -1


class Sampler:
    """Samples turns. Holds options and compiled functions; all that changes from turn to turn is in the LiveCache.

    One sampler serves any number of caches and params of its config: both halves of the slots, agent and explorer.
    """

    def __init__(self, config: model_config.DecoderConfig, options: SamplerOptions, stop_tokens: tuple[int, ...],
                 vocab_limit: int):
        """
        Args:
            stop_tokens: any of them ends a response.
            vocab_limit: ids at and above it, the padded rows of the vocabulary, are never sampled.
        """
        if not 0 < vocab_limit <= config.vocab_size:
            raise ValueError(f"vocab_limit={vocab_limit}, but the model has {config.vocab_size} rows; use its own tokenizer.")
        if not stop_tokens or not all(0 <= token < vocab_limit for token in stop_tokens):
            raise ValueError(f"stop_tokens={stop_tokens} must be at least one id, each below vocab_limit={vocab_limit}.")
        self.config, self.options = config, options
        self.seconds = {"prefill": 0.0, "decode": 0.0}  # spent in turns so far, which may be in several threads
        self._lock = threading.Lock()
        self.compilations = 0  # shapes traced so far; at most (len(prefill_widths) + 1) * len(read_sizes)

        def read(params, *args, size):
            self.compilations += 1
            return decoding.read_tokens(params, config, *args, size)

        def sample(params, *args, size):
            self.compilations += 1
            return decoding.sample_tokens(params, config, *args, stop_tokens, vocab_limit, options.max_new_tokens, size)

        # Argument 1 is the cache, 2 the hidden states.
        self._read = jax.jit(read, static_argnames="size", donate_argnums=(1, 2))
        self._sample = jax.jit(sample, static_argnames="size", donate_argnums=1)

    def empty_cache(self) -> LiveCache:
        """A cache in which no slot has a row."""
        slots = self.options.slots
        return LiveCache(
            kv=kv_cache.empty(self.config, slots, self.options.max_tokens),
            hidden=jnp.zeros((slots, self.config.hidden_size), jnp.dtype(self.config.compute_dtype),
                             out_sharding=sharding.spec("rows", None)),
            written=np.zeros(slots, np.int32),
            pending=np.full(slots, -1, np.int32),
        )

    def warm_up(self, params) -> float:
        """Compiles every shape that a turn can need. Returns the seconds that it took."""
        began = time.perf_counter()
        cache, widths = self.empty_cache(), self.options.prefill_widths
        for size in self.options.read_sizes:
            for narrower, width in zip((0, *widths), widths, strict=False):
                if size > narrower:  # a piece of this width ends behind position `narrower`
                    cache = self._read_pieces(params, cache, width, size, {})
            cache, _ = self._draw(params, cache, {}, {}, 1.0, size)
        jax.block_until_ready(cache.kv)
        return time.perf_counter() - began

    def turn(self, params, cache: LiveCache, prompts: Mapping[int, np.ndarray], fresh: Collection[int],
             keys: Mapping[int, tuple[int, ...]], temperature: float) -> tuple[LiveCache, dict[int, Response]]:
        """Reads the new tokens of the slots in `prompts` and samples a response for each.

        A row never grows beyond max_tokens: a response has min(max_new_tokens, max_tokens - row length) tokens at most, and
        a prompt that leaves no room for one sampled token is not read. Both are reported as overflow.

        Args:
            cache: consumed.
            prompts: slot -> [n] ids that the slot's row does not hold yet, at least one.
            fresh: the slots of `prompts` that start a new row.
            keys: slot -> integers that name this draw, such as (seed, update, episode, step). Equal keys, equal noise.
            temperature: logits are divided by it; 0 takes the likeliest token.
        Returns:
            The next cache, and slot -> Response for the slots of `prompts`.
        Raises:
            FloatingPointError: logits are not finite. The cache is lost.
        """
        self._check(prompts, fresh, keys, temperature)
        began = time.perf_counter()
        cache, length = self._prefill(params, cache, prompts, fresh)
        jax.block_until_ready(cache.hidden)  # decoding waits for it anyway
        read = time.perf_counter()
        # Slots at similar positions go together: the farthest one decides how much of the cache is looked at.
        in_order = sorted(np.flatnonzero(length).tolist(), key=lambda slot: length[slot])
        group = self._group(self.options.prefill_widths[0])
        groups, drawn = [in_order[i:i + group] for i in range(0, len(in_order), group)], []
        for slots in groups:
            room = self.options.max_tokens - length[slots]
            budgets = dict(zip(slots, np.minimum(room, self.options.max_new_tokens).tolist(), strict=True))
            size = self._size(max(length[slot] + budgets[slot] for slot in slots))
            cache, draws = self._draw(params, cache, budgets, keys, temperature, size)
            drawn.append(draws)
        drawn = jax.device_get(drawn)
        with self._lock:
            self.seconds["prefill"] += read - began
            self.seconds["decode"] += time.perf_counter() - read
        return self._collect(cache, prompts, length, groups, drawn)

    def _check(self, prompts, fresh, keys, temperature) -> None:
        for slot, prompt in prompts.items():
            if not 0 <= slot < self.options.slots:
                raise ValueError(f"slot {slot} of prompts is not below config.sampler.slots={self.options.slots}.")
            if not len(prompt) or np.min(prompt) < 0 or np.max(prompt) >= self.config.vocab_size:
                raise ValueError(f"the prompt of slot {slot} must have at least one id, all below the model's vocabulary of "
                                 f"{self.config.vocab_size}: {prompt}.")
        if not prompts or not set(fresh) <= prompts.keys() <= keys.keys():
            raise ValueError(f"the slots of prompts, {sorted(prompts)}, must not be none, must include fresh={sorted(fresh)}, "
                             f"and must have keys, which are there for {sorted(keys)}.")
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"temperature={temperature} must be positive, or 0 for the likeliest token.")

    def _prefill(self, params, cache: LiveCache, prompts, fresh) -> tuple[LiveCache, np.ndarray]:
        """Reads all prompts, each behind its slot's pending token, the longest pieces first.

        Returns the cache, and [S] int32 lengths of the rows that can now be continued; 0 for all other slots.
        """
        written, pending = cache.written.copy(), cache.pending.copy()
        written[list(fresh)], pending[list(fresh)] = 0, -1
        length, unread = np.zeros_like(written), {}
        for slot, prompt in prompts.items():
            tokens = np.asarray(prompt, np.int32) if pending[slot] < 0 else np.append(pending[slot], prompt).astype(np.int32)
            if written[slot] + len(tokens) < self.options.max_tokens:
                length[slot], unread[slot], pending[slot] = written[slot] + len(tokens), tokens, -1
        cache = dataclasses.replace(cache, written=written, pending=pending)
        widths = self.options.prefill_widths
        while unread:
            # Of each slot the narrowest width that takes all of it; the widest ones first.
            best = {slot: bisect.bisect_left(widths[:-1], len(tokens)) for slot, tokens in unread.items()}
            width = widths[max(best.values())]
            group = sorted((slot for slot in unread if widths[best[slot]] == width), key=lambda slot: cache.written[slot])
            pieces = {slot: unread[slot][:width] for slot in group[:self._group(width)]}
            size = self._size(max(cache.written[slot] + len(tokens) for slot, tokens in pieces.items()))
            cache = self._read_pieces(params, cache, width, size, pieces)
            rest = {slot: tokens[len(pieces.get(slot, ())):] for slot, tokens in unread.items()}
            unread = {slot: tokens for slot, tokens in rest.items() if len(tokens)}
        return cache, length

    def _collect(self, cache, prompts, length, groups, drawn) -> tuple[LiveCache, dict[int, Response]]:
        """The responses, and the cache that counts their tokens."""
        written, pending, broken = cache.written.copy(), cache.pending.copy(), []
        nothing = Response(np.zeros(0, np.int32), np.zeros(0, np.float32), stopped=False, overflow=True)
        responses = dict.fromkeys(prompts, nothing)
        for slots, draws in zip(groups, drawn, strict=True):
            for row, slot in enumerate(slots):
                tokens, logp = draws.tokens[row, :draws.count[row]], draws.logp[row, :draws.count[row]]
                stopped = bool(draws.stopped[row])
                responses[slot] = Response(tokens, logp, stopped, not stopped and len(tokens) < self.options.max_new_tokens)
                written[slot] += len(tokens) - 1
                pending[slot] = tokens[-1]
                if not draws.finite[row]:
                    broken.append(slot)
        if broken:
            raise FloatingPointError(
                f"The policy's logits are not finite in slots {broken}, at row lengths {length[broken].tolist()}: its weights "
                "have diverged or are damaged. Go back to an earlier checkpoint and lower the learning rate.")
        return dataclasses.replace(cache, written=written, pending=pending), responses

    def _read_pieces(self, params, cache: LiveCache, width: int, size: int, pieces: Mapping[int, np.ndarray]) -> LiveCache:
        """Appends a piece of at most `width` tokens to each slot of `pieces`, a group at most."""
        slots = self._filled_up(pieces, self._group(width))
        tokens, lengths = np.zeros((len(slots), width), np.int32), np.zeros(len(slots), np.int32)
        for row, piece in enumerate(pieces.values()):
            tokens[row, :len(piece)], lengths[row] = piece, len(piece)
        kv, hidden = self._read(params, cache.kv, cache.hidden, slots, tokens, lengths, cache.written[slots], size=size)
        written = cache.written.copy()
        written[slots] += lengths
        return dataclasses.replace(cache, kv=kv, hidden=hidden, written=written)

    def _draw(self, params, cache: LiveCache, budgets: Mapping[int, int], keys, temperature: float, size: int):
        """Starts to draw up to budgets[slot] tokens for each slot of `budgets`, a group at most.

        Returns the cache, which does not count the new tokens yet, and decoding.Draws on the device.
        """
        slots = self._filled_up(budgets, self._group(self.options.prefill_widths[0]))
        budget, key_data = np.zeros(len(slots), np.int32), np.zeros((len(slots), 2), np.uint32)
        for row, slot in enumerate(budgets):
            budget[row], key_data[row] = budgets[slot], _key_data(keys[slot])
        kv, draws = self._sample(params, cache.kv, cache.hidden, slots, cache.written[slots], budget, key_data,
                                 np.float32(temperature), size=size)
        return dataclasses.replace(cache, kv=kv), draws

    def _filled_up(self, slots: Collection[int], group: int) -> np.ndarray:
        """These slots and then others, which sit idle, up to a whole group; [group] int32."""
        others = (slot for slot in range(self.options.slots) if slot not in slots)
        return np.asarray([*slots, *itertools.islice(others, group - len(slots))], np.int32)

    def _group(self, width: int) -> int:
        """Slots that read a piece of this width at once: GROUP at the narrowest, and about as many tokens at the others."""
        devices = jax.sharding.get_abstract_mesh().shape["fsdp"]
        group = min(self.options.slots, -(-GROUP // devices) * devices)
        return max(1, group * self.options.prefill_widths[0] // width // devices) * devices

    def _size(self, positions: int) -> int:
        return self.options.read_sizes[bisect.bisect_left(self.options.read_sizes, positions)]


def _key_data(key: tuple[int, ...]) -> np.ndarray:
    """The two words of a random key, hashed from its integers on the host: folding them in would cost calls per slot."""
    text = ",".join(str(int(part)) for part in key)
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), "<u4")
