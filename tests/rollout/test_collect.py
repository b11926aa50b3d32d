"""The collector against a scripted environment and a scripted policy: order, endings, flags, and what reaches a row."""

import dataclasses

import numpy as np
import pytest

from envs import pool as env_pool
from envs import protocol
from rspo_jax import tokenizer as chat
from rspo_jax.rollout import collect, dialogue

OPTIONS = dialogue.DialogueOptions(format="plain", history="full", restate_task=False, show_admissible=False, system="")


class Pool:
    """Counts to the number that the task's id names: `done 3` succeeds at the third step. No processes, no time."""

    workers = 2

    def __init__(self):
        self.answers, self.games, self.log = {}, {}, []

    def worker_of(self, slot):
        return slot % self.workers

    def send(self, requests):
        for slot, request in requests.items():
            assert slot not in self.answers
            if isinstance(request, env_pool.Reset):
                self.games[slot] = [request.task_id, 0]
                self.log.append((slot, request.task_id, request.seed))
                self.answers[slot] = protocol.Observation("start", task="count", admissible=("go",))
                if request.task_id == "broken":
                    self.answers[slot] = protocol.Observation("", done=True, error="killed")
            else:
                self.games[slot][1] += 1
                name, count = self.games[slot]
                kind, _, limit = name.partition(" ")
                done = count == int(limit)
                self.answers[slot] = protocol.Observation(f"at {count}", admissible=("go",), done=done, reward=float(done),
                                                          success=done and kind == "win")

    def receive(self, slots):
        return {slot: self.answers.pop(slot) for slot in slots}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    chat.build_small(["start", "at", "count", "go", "stay"], (), directory)
    return chat.ChatTokenizer.load(directory)


@dataclasses.dataclass
class Reply:
    tokens: np.ndarray
    logp: np.ndarray
    stopped: bool
    overflow: bool


def play(tokenizer, tasks, options=OPTIONS, max_steps=5, say="go", stopped=True, room=99, size=2, together=False):
    asked = []

    def policy(half, asks):
        replies = {}
        for slot, ask in asks.items():
            asked.append((half, slot, ask))
            fits = ask.step < room
            tokens = tokenizer.encode(say) if fits else np.zeros(0, np.int32)
            if stopped and fits:
                tokens = np.append(tokens, tokenizer.stop_tokens[0])
            replies[slot] = Reply(tokens.astype(np.int32), np.full(len(tokens), -0.5, np.float32), stopped and fits, not fits)
        return replies

    pool = Pool()
    collector = collect.Collector(pool, tokenizer, options, half=2, max_steps=max_steps, together=together)
    episodes = [collect.Episode(protocol.Task(task, "count"), group, member, 7 + group)
                for group, task in enumerate(tasks) for member in range(size)]
    return collector.collect(policy, episodes, "agent", 3).trajectories, asked, pool


def test_every_episode_is_played_once_and_comes_back_in_order(tokenizer):
    trajectories, _, pool = play(tokenizer, ["win 1", "lose 2", "win 9", "win 3", "broken"])
    assert [(t.group, t.termination) for t in trajectories] == [
        (0, "success"), (0, "success"), (1, "failure"), (1, "failure"), (2, "step_cap"), (2, "step_cap"), (3, "success"),
        (3, "success"), (4, "error: killed"), (4, "error: killed")]
    assert [len(t.steps) for t in trajectories] == [1, 1, 2, 2, 5, 5, 3, 3, 0, 0]
    assert [t.outcome for t in trajectories] == [1, 1, 1, 1, 0, 0, 1, 1, 0, 0]
    assert {t.update for t in trajectories} == {3} and len(pool.log) == 10


def test_halves_that_decode_together_play_the_same_episodes(tokenizer):
    def played(together):
        trajectories, asked, _ = play(tokenizer, ["win 1", "lose 2", "win 9", "win 3", "broken"], together=together)
        return [(t.group, t.termination, [s.response for s in t.steps]) for t in trajectories], {half for half, _, _ in asked}

    assert played(True) == played(False)
    assert played(True)[1] == {0, 1}


def test_groups_share_the_environment_seed_and_a_worker(tokenizer):
    _, _, pool = play(tokenizer, ["win 2", "lose 2", "win 3", "win 4"])
    seeds = {task: {seed for _, name, seed in pool.log if name == task} for _, task, _ in pool.log}
    assert all(len(found) == 1 for found in seeds.values())
    started = [(task, slot % 2) for slot, task, _ in pool.log[:4]]  # while every queue is full
    assert len({worker for task, worker in started if task == "win 2"}) == 1


def test_full_history_asks_with_new_tokens_only(tokenizer):
    (trajectory, _), asked, _ = play(tokenizer, ["win 3"])
    assert [ask.fresh for _, slot, ask in asked if ask.episode.member == 0] == [True, False, False]
    row = np.concatenate([np.concatenate([s.prompt_tokens, s.response_tokens]) for s in trajectory.steps])
    whole = [tokenizer.first_turn(None, "count\nstart")]
    for count in (1, 2):
        whole += [tokenizer.encode("go"), tokenizer.stop_tokens[:1], tokenizer.next_turn(f"at {count}", closed=True)]
    whole += [tokenizer.encode("go"), tokenizer.stop_tokens[:1]]
    np.testing.assert_array_equal(row, np.concatenate(whole))


def test_window_history_starts_a_row_each_step(tokenizer):
    options = dataclasses.replace(OPTIONS, history="window(1)")
    (trajectory, _), asked, _ = play(tokenizer, ["win 3"], options)
    assert all(ask.fresh for *_, ask in asked)
    expected = tokenizer.first_turn(None, "count\n[Observation 2: at 1, Action 2: go]\nat 2")
    np.testing.assert_array_equal(trajectory.steps[2].prompt_tokens, expected)


def test_flags_rewards_and_observations_belong_to_their_step(tokenizer):
    (trajectory, _), _, _ = play(tokenizer, ["win 2"], say="stay")
    assert [s.observation for s in trajectory.steps] == ["start", "at 1"]
    assert [s.outcome_reward for s in trajectory.steps] == [0.0, 1.0]
    assert all(s.well_formed and not s.admissible for s in trajectory.steps)
    assert np.isnan([s.dense_reward for s in trajectory.steps]).all()


def test_a_response_that_was_cut_is_malformed_and_gets_no_invented_stop_token(tokenizer):
    (trajectory, _), _, _ = play(tokenizer, ["win 2"], stopped=False)
    assert not any(s.well_formed for s in trajectory.steps)
    np.testing.assert_array_equal(trajectory.steps[0].response_tokens, tokenizer.encode("go"))
    np.testing.assert_array_equal(trajectory.steps[1].prompt_tokens, tokenizer.next_turn("at 1", closed=False))


def test_a_full_row_ends_its_episode_flagged(tokenizer):
    trajectories, _, _ = play(tokenizer, ["win 4", "win 2"], room=2)
    assert [(t.termination, len(t.steps)) for t in trajectories] == [("token_cap", 2)] * 2 + [("success", 2)] * 2


def test_nothing_to_play(tokenizer):
    assert play(tokenizer, [])[0] == []
