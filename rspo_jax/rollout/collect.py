"""Plays episodes: the policy on the device and the environments in their workers, in turns.

The slots are two halves. While the environments of one half step, the other half decodes; or, where the policy runs on the
cores of a CPU, both halves decode at once, each in a thread of its own (`together`): twice as fast on two cores. A slot whose
episode ended takes the next one at once. The episodes of a group go to one worker, which parses their game once.

Everything is a function of the episodes and the policy, never of timing: a half waits for all of its slots, and what a slot
samples depends on its own seed alone.
"""

import collections
import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from envs import pool as env_pool
from envs import protocol
from rspo_jax import tokenizer as chat
from rspo_jax import types
from rspo_jax.rollout import dialogue


@dataclasses.dataclass(frozen=True)
class Episode:
    """What to play. Members of a group share the task and the environment's seed."""

    task: protocol.Task
    group: int
    member: int
    seed: int


@dataclasses.dataclass(frozen=True)
class Ask:
    """One slot's request for a response."""

    episode: Episode
    task: str  # the goal in words
    step: int
    observation: protocol.Observation
    prompt: np.ndarray  # [L] int32, ids that the row does not hold yet
    fresh: bool  # the row starts here


# (half, {slot of the half: Ask}) -> {slot of the half: reply}; a reply has tokens [n] int32, logp [n] float32, stopped
# (a stop token was sampled) and overflow (the row had no room left), as generation.Response has.
Policy = Callable[[int, Mapping[int, Ask]], Mapping[int, object]]


@dataclasses.dataclass(frozen=True)
class Rollout:
    trajectories: list[types.Trajectory]  # sorted by group and member; every started episode, whatever ended it
    seconds: dict[str, float]  # waiting for environments, and sampling

    @property
    def trainable(self) -> list[types.Trajectory]:
        """Without the episodes that an environment error ended: they say nothing about the policy."""
        return [trajectory for trajectory in self.trajectories if not trajectory.termination.startswith("error")]


@dataclasses.dataclass(frozen=True)
class Collector:
    pool: env_pool.Pool
    tokenizer: chat.ChatTokenizer
    dialogue: dialogue.DialogueOptions
    half: int  # slots of a half; the pool has twice as many
    max_steps: int
    together: bool  # call the policy for both halves at once

    def collect(self, policy: Policy, episodes: Sequence[Episode], name: str, update: int) -> Rollout:
        """Plays all episodes to their end.

        Args:
            policy: see Policy.
            episodes: in the order in which they are started.
            name: who samples, "agent" or "explorer".
            update: update counter of the sampling weights.
        """
        queues = self._queues(episodes)
        live: dict[int, _Live] = {}
        ended: list[tuple[int, int, types.Trajectory]] = []
        seconds = {"env": 0.0, "sample": 0.0}
        halves = [range(self.half), range(self.half, 2 * self.half)]
        for slots in halves:
            self.pool.send(self._start(slots, queues, live))
        with concurrent.futures.ThreadPoolExecutor(len(halves)) as threads:
            ask = threads.map if self.together else map
            while live:
                for turn in ([0, 1],) if self.together else ([0], [1]):
                    mine = {half: [slot for slot in halves[half] if slot in live] for half in turn}
                    began = time.perf_counter()
                    for slot, observation in self.pool.receive([slot for slots in mine.values() for slot in slots]).items():
                        live[slot].observe(observation, self.max_steps)
                    received = time.perf_counter()
                    asks = [{slot - half * self.half: live[slot].ask(self.tokenizer, self.dialogue)
                             for slot in slots if not live[slot].end} for half, slots in mine.items()]
                    answers = ask(lambda half, asks: policy(half, asks) if asks else {}, turn, asks)
                    for half, replies in zip(turn, answers, strict=True):
                        for slot, reply in replies.items():
                            live[half * self.half + slot].answer(reply, self.tokenizer, self.dialogue)
                    for half, slots in mine.items():
                        requests = {slot: env_pool.Step(live[slot].action.text) for slot in slots if not live[slot].end}
                        for slot in [slot for slot in slots if live[slot].end]:
                            episode = live.pop(slot)
                            ended.append((episode.episode.group, episode.episode.member, episode.trajectory(name, update)))
                        self.pool.send(requests | self._start(halves[half], queues, live))
                    seconds["env"] += received - began
                    seconds["sample"] += time.perf_counter() - received
        return Rollout([trajectory for _, _, trajectory in sorted(ended, key=lambda item: item[:2])], seconds)

    def _queues(self, episodes: Sequence[Episode]) -> list[collections.deque[Episode]]:
        """One queue a worker; whole groups are dealt out in turn."""
        workers = [self.pool.worker_of(slot) for slot in range(2 * self.half)]
        queues = [collections.deque() for _ in range(max(workers) + 1)]
        place = {group: index % len(queues) for index, group in enumerate(dict.fromkeys(e.group for e in episodes))}
        for episode in episodes:
            queues[place[episode.group]].append(episode)
        return queues

    def _start(self, slots, queues, live) -> dict[int, env_pool.Reset]:
        """Fills the free slots: from the queue of their own worker, else, at the end, from the longest one."""
        resets = {}
        for slot in slots:
            queue = queues[self.pool.worker_of(slot)] or max(queues, key=len)
            if slot not in live and queue:
                episode = queue.popleft()
                live[slot] = _Live(episode)
                resets[slot] = env_pool.Reset(episode.task.id, episode.seed)
        return resets


@dataclasses.dataclass
class _Live:
    """An episode while it is played."""

    episode: Episode
    began: float = dataclasses.field(default_factory=time.perf_counter)
    task: str = ""
    observation: protocol.Observation | None = None  # what the next response answers
    asked: Ask | None = None
    reply: object | None = None
    response: str = ""
    action: dialogue.Action | None = None
    steps: list[types.Step] = dataclasses.field(default_factory=list)
    end: str = ""

    def observe(self, observation: protocol.Observation, max_steps: int) -> None:
        """Takes what the environment answered to the reset or to the last action."""
        if self.observation is None:
            self.task = observation.task
        else:
            self.steps.append(self._step(observation.reward))
        self.observation = observation
        if observation.error:
            self.end = f"error: {observation.error}"
        elif observation.done:
            self.end = "success" if observation.success else "failure"
        elif len(self.steps) >= max_steps:
            self.end = "step_cap"

    def ask(self, tokenizer: chat.ChatTokenizer, options: dialogue.DialogueOptions) -> Ask:
        """What the policy reads next."""
        fresh = not self.steps or options.window is not None
        if options.window is not None:
            message = dialogue.window_message(self.task, self.steps, self.observation, options)
        elif fresh:
            message = dialogue.first_message(self.task, self.observation, options)
        else:
            message = dialogue.next_message(self.task, self.observation, options)
        if fresh:
            prompt = tokenizer.first_turn(options.system or None, message)
        else:
            prompt = tokenizer.next_turn(message, self.reply.stopped)
        self.asked = Ask(self.episode, self.task, len(self.steps), self.observation, prompt, fresh)
        return self.asked

    def answer(self, reply, tokenizer: chat.ChatTokenizer, options: dialogue.DialogueOptions) -> None:
        """Takes the policy's response, or ends the episode where the row has no room for one."""
        self.reply = reply
        self.response = tokenizer.decode(reply.tokens)
        self.action = dialogue.parse(self.response, reply.stopped, options)
        if reply.overflow and not len(reply.tokens):
            self.end = "token_cap"

    def trajectory(self, name: str, update: int) -> types.Trajectory:
        return types.Trajectory(
            task_id=self.episode.task.id, task_type=self.episode.task.type, task=self.task, group=self.episode.group,
            seed=self.episode.seed, policy=name, update=update, steps=tuple(self.steps),
            outcome=float(np.clip(sum(step.outcome_reward for step in self.steps), 0.0, 1.0)),
            success=self.end == "success", termination=self.end, seconds=time.perf_counter() - self.began)

    def _step(self, reward: float) -> types.Step:
        admissible = self.observation.admissible
        return types.Step(
            observation=self.observation.text, response=self.response, action=self.action.text,
            prompt_tokens=self.asked.prompt, response_tokens=self.reply.tokens, logp_sampler=self.reply.logp,
            logp_behavior=self.reply.logp, well_formed=self.action.well_formed,
            admissible=self.action.text in admissible if admissible else self.action.well_formed,
            outcome_reward=reward, dense_reward=float("nan"))
