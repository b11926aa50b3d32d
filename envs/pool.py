"""A supervised pool of worker processes that host environment slots (`envs.worker`), for one machine.

    with pool.Pool(options) as games:                      # before JAX starts, so that a missing data path costs no time
        games.send({slot: pool.Reset(task_id, seed) for slot in range(8)})
        observations = games.receive(range(8))             # slots may be awaited in any portions
        games.send({slot: pool.Step(action) for slot in range(8)})

Slot s lives on worker s % workers, so that the members of a group, given slots of one worker, share its caches of games.
Sending never waits; while one half of the slots is being played, the other half can be decoded.

An environment fails alone. One that raises ends its episode with `error="raised KeyError"`; one that hangs ends it with
`error="timeout"`, its worker is killed and replaced; when a worker is killed, its unfinished steps end with `error="killed"`,
its idle episodes end so at their next step, and its unfinished resets are played again by the new worker. All of it happens
in `send` and `receive`: there are no threads, and what a replaced worker still had to say is never read.
"""

import collections
import dataclasses
import logging
import math
import select
import time
from collections.abc import Collection, Mapping
from typing import Any

from envs import process, protocol, worker

log = logging.getLogger(__name__)

GRACE = 3.0  # seconds in which closed workers may end by themselves
STARTS = 3  # times that a worker may be killed before it is ready, in a row, until the pool gives up


@dataclasses.dataclass(frozen=True)
class PoolOptions:
    """What is played, and by how many processes."""

    family: str  # import path of a module with make(), e.g. "envs.alfworld"
    options: Mapping[str, Any]  # arguments of make(), as JSON has them: a tuple arrives as a list
    workers: int
    slots: int  # of all workers together
    start_timeout: float  # seconds until a worker is ready, and for the listing of a split
    reset_timeout: float  # seconds of one reset
    step_timeout: float  # seconds of one step

    def __post_init__(self):
        for name in ("workers", "slots", "start_timeout", "reset_timeout", "step_timeout"):
            value = self.__dict__[name]
            if not 0 < value < math.inf:
                raise ValueError(f"config.pool.{name}={value}: give a positive number.")
        if self.slots % self.workers:
            raise ValueError(f"config.pool.slots={self.slots} is not a multiple of config.pool.workers={self.workers}; "
                             f"use {math.ceil(self.slots / self.workers) * self.workers}.")


@dataclasses.dataclass(frozen=True)
class Reset:
    """Starts an episode in a slot, also in the middle of another one."""

    task_id: str
    seed: int


@dataclasses.dataclass(frozen=True)
class Step:
    """Plays one action of the episode of a slot."""

    action: str


@dataclasses.dataclass(frozen=True)
class _Start:
    """The first request of a worker; answered when it is ready."""

    family: str
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Tasks:
    split: str


_KINDS = {_Start: "start", _Tasks: "tasks", Reset: "reset", Step: "step"}


@dataclasses.dataclass(frozen=True)
class _Pending:
    """A request that a worker has not answered."""

    slot: int
    request: Reset | Step | _Start | _Tasks
    retried: bool = False  # a worker died of it already

    def message(self):
        """As the worker reads it."""
        return [_KINDS[type(self.request)], self.slot, *vars(self.request).values()]


class StartError(RuntimeError):
    """A worker could not start: no such family, or its make() raised."""


class Pool:
    """The slots of one machine. Used by one thread at a time; a context manager."""

    def __init__(self, options: PoolOptions):
        """Starts all workers and waits until they are ready.

        Raises:
          RuntimeError: a worker could not start; with the text of what was raised in it.
          TimeoutError: a worker took longer than start_timeout.
        """
        self.errors = collections.Counter()  # observations with an error, by its kind
        self._options = options
        start = options.start_timeout
        self._timeouts = {_Start: start, _Tasks: start, Reset: options.reset_timeout, Step: options.step_timeout}
        self._slots = ["idle"] * options.slots  # "idle", "live" (in an episode) or "lost" (its episode died with a worker)
        self._sent = set()  # slots with a request whose observation was not received
        self._answers = {}  # observations, by slot, that were not received
        self._listing = None  # the answer to _Tasks: tasks, or the exception that came of it
        self._failed_starts = collections.Counter()  # by worker, since it was last ready
        self._workers = []
        try:
            for index in range(options.workers):
                self._workers.append(self._started(index))
            while any(isinstance(pending.request, _Start) for each in self._workers for pending in each.pending):
                self._advance()
        except BaseException:
            process.close(self._workers, grace=0.0)
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends all workers. Those that are idle close their environments; those that are busy for long are killed."""
        process.close(self._workers, GRACE)
        self._workers = []

    def tasks(self, split: str) -> list[protocol.Task]:
        """The tasks of a split, sorted by id. Raises ValueError, as the environment does, for an unknown one."""
        self._listing = None
        self._workers[0].push([_Pending(0, _Tasks(split))])
        while self._listing is None:
            self._advance()
        if isinstance(self._listing, Exception):
            raise self._listing
        return self._listing

    def worker_of(self, slot: int) -> int:
        return slot % self._options.workers

    def send(self, requests: Mapping[int, Reset | Step]) -> None:
        """Hands requests to the workers, one message per worker, and does not wait.

        Raises:
          ValueError: no such slot, a slot with an observation yet to be received, or a step without an episode. Nothing
            was sent then.
        """
        for slot, request in requests.items():
            self._check(slot, request)
        batches = collections.defaultdict(list)
        for slot, request in requests.items():
            self._sent.add(slot)
            if self._slots[slot] == "lost" and isinstance(request, Step):
                self._fail(slot, "killed")
            else:
                batches[self.worker_of(slot)].append(_Pending(slot, request))
        for index, batch in batches.items():
            self._workers[index].push(batch)

    def receive(self, slots: Collection[int]) -> dict[int, protocol.Observation]:
        """Waits until all of these slots have answered or failed.

        Raises:
          ValueError: one of the slots was sent nothing.
          RuntimeError, TimeoutError: a worker that had to be replaced cannot be started any more.
        """
        awaited = set(slots)
        if not awaited <= self._sent:
            raise ValueError(f"slots {sorted(awaited - self._sent)} have no request to be answered; send them one first.")
        while not awaited <= self._answers.keys():
            self._advance()
        self._sent -= awaited
        return {slot: self._answers.pop(slot) for slot in sorted(awaited)}

    def _check(self, slot, request):
        if not 0 <= slot < self._options.slots:
            raise ValueError(f"slot {slot} does not exist; config.pool.slots={self._options.slots}.")
        if slot in self._sent:
            raise ValueError(f"slot {slot} was sent a request whose observation was not received; receive it first.")
        match request:
            case Step(str()):
                if self._slots[slot] == "idle":
                    raise ValueError(f"slot {slot} was sent a Step outside an episode; send a Reset first.")
            case Reset(str(), int()):
                pass
            case _:
                raise TypeError(f"slot {slot} was sent {request!r}; send a Reset(str, int) or a Step(str).")

    def _started(self, index):
        """A new process for a worker; ready when it has answered _Start."""
        started = process.Process()
        started.push([_Pending(index, _Start(self._options.family, dict(self._options.options)))])
        return started

    def _deadline(self, each):
        """When the request that a worker is busy with will have taken too long. Those behind it do not age."""
        return each.since + self._timeouts[type(each.pending[0].request)] if each.pending else math.inf

    def _advance(self):
        """Waits for one event, an answer, a death or a deadline, and deals with what there is."""
        poll = select.poll()
        for each in self._workers:
            poll.register(each.channel, select.POLLIN | (select.POLLOUT if each.outbox else 0))
        patience = min(map(self._deadline, self._workers)) - time.monotonic()
        ready = {descriptor for descriptor, _ in poll.poll(None if patience == math.inf else max(0, math.ceil(1000 * patience)))}
        for index, each in enumerate(self._workers):
            if each.channel.fileno() in ready:  # before its deadline is looked at: the trainer may have been away for long
                self._attend(index)
            elif time.monotonic() > self._deadline(each):
                self._replace(index, "timeout")

    def _attend(self, index):
        """Reads what a worker has written, and replaces it if that was its last."""
        each = self._workers[index]
        each.flush()
        answers, ended = each.pull()
        for slot, value, error, message, trace in answers:
            pending = each.pending.popleft()
            if slot != pending.slot:
                raise RuntimeError(f"worker {index} answered for slot {slot} where slot {pending.slot} was due.")
            self._take(index, pending, value, error, message, trace)
        if ended:
            self._replace(index, "killed")

    def _take(self, index, pending, value, error, message, trace):
        """Takes one answer."""
        request = pending.request
        if isinstance(request, (_Start, _Tasks)) and error:
            kind = ValueError if error == "ValueError" else StartError
            failure = kind(f"{self._options.family} in environment worker {index}: {error}: {message}")
            failure.add_note(trace)
            if isinstance(request, _Start):
                raise failure
            self._listing = failure
        elif isinstance(request, _Tasks):
            self._listing = [protocol.Task(*task) for task in value]
        elif isinstance(request, _Start):
            self._failed_starts[index] = 0
        elif error:
            log.warning("The environment of slot %d raised:\n%s", pending.slot, trace)
            self._fail(pending.slot, f"raised {error}")
        else:
            fields = dict(zip(worker.OBSERVATION_FIELDS, value, strict=True))
            self._answer(pending.slot, protocol.Observation(**fields | {"admissible": tuple(fields["admissible"])}))

    def _fail(self, slot, kind):
        self._answer(slot, protocol.Observation(text="", done=True, error=kind))

    def _answer(self, slot, observation):
        if observation.error:
            self.errors[observation.error] += 1
        self._slots[slot] = "idle" if observation.done else "live"
        self._answers[slot] = observation

    def _replace(self, index, reason):
        """Ends a worker that died ("killed") or whose request took too long ("timeout") and starts its successor.

        The oldest request is the one that the worker was busy with, so a hang is its fault, and a death may be: as a reset it
        is tried once more, by the successor. Resets behind it are innocent and simply move over.
        """
        old = self._workers[index]
        output = old.kill()
        blamed = next(iter(old.pending), None)
        request = blamed and blamed.request
        log.warning("Environment worker %d is replaced: %s in %s, exit %d. %s", index, reason, request, old.returncode, output)
        if isinstance(request, _Start):
            self._fail_start(index, reason, old.returncode, output)
        if isinstance(request, _Tasks):
            self._listing = RuntimeError(f"{self._options.family} in environment worker {index}: {reason} in {request}. {output}")
        moved = []
        for pending in old.pending:
            guilty = pending is blamed
            if isinstance(pending.request, Step) or guilty and (reason == "timeout" or pending.retried):
                self._fail(pending.slot, reason if guilty else "killed")
            elif isinstance(pending.request, Reset) or isinstance(pending.request, _Tasks) and not guilty:
                moved.append(dataclasses.replace(pending, retried=pending.retried or guilty))
        for slot in range(index, self._options.slots, self._options.workers):
            if self._slots[slot] == "live":
                self._slots[slot] = "lost"
        self._workers[index] = self._started(index)
        self._workers[index].push(moved)

    def _fail_start(self, index, reason, returncode, output):
        """Raises if a worker that did not become ready is not worth another attempt; after a kill from outside it is, twice."""
        if reason == "timeout":
            raise TimeoutError(f"{self._options.family}: environment worker {index} was not ready after "
                               f"config.pool.start_timeout={self._options.start_timeout} seconds. {output}")
        self._failed_starts[index] += 1
        if returncode >= 0 or self._failed_starts[index] == STARTS:
            raise StartError(f"{self._options.family}: environment worker {index} ended before it was ready, with exit code "
                               f"{returncode}. {output}")
