"""The pool of environment workers: what a failure costs, and whom."""

import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

from envs import pool
from envs.pool import Reset, Step

HERE = str(pathlib.Path(__file__).parent)


@pytest.fixture(autouse=True)
def _family_on_path(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


def options(workers=1, slots=2, start_timeout=20.0, reset_timeout=5.0, step_timeout=5.0, **make_options):
    return pool.PoolOptions(family="scripted_environment", options=make_options, workers=workers, slots=slots,
                            start_timeout=start_timeout, reset_timeout=reset_timeout, step_timeout=step_timeout)


def play(games, requests):
    games.send(requests)
    return games.receive(requests.keys())


def pid(games, slot):
    return int(play(games, {slot: Step("ask pid")})[slot].text)


def runs(process):
    """Whether a process exists and is no zombie."""
    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE


def children():
    """Workers that still run below this process."""
    return [each for each in psutil.Process().children() if "envs.worker" in each.cmdline()]


def test_plays_and_pins_slots_to_workers():
    with pool.Pool(options(workers=2, slots=6)) as games:
        assert [games.worker_of(slot) for slot in range(6)] == [0, 1, 0, 1, 0, 1]
        first = play(games, {slot: Reset("a task", 10 * slot) for slot in range(6)})
        assert first[3].task == "a task" and first[3].admissible == ("count", "é\u2028\ud800") and not first[3].done
        counted = play(games, {slot: Step("count") for slot in range(6)})
        assert [counted[slot].text for slot in range(6)] == ["1", "11", "21", "31", "41", "51"]
        assert math.isnan(counted[0].reward)
        pids = [pid(games, slot) for slot in range(6)]
        assert pids[0] == pids[2] == pids[4] != pids[1] == pids[3] == pids[5]
        won = play(games, {0: Step("win")})[0]
        assert (won.reward, won.done, won.success, won.error) == (1.0, True, True, "")
        assert games.errors == {}


def test_text_of_any_kind_and_size_goes_both_ways():
    # Larger than both socket buffers, in both directions at once: a pool that waited in send would wait for ever.
    texts = [kind * 100_000 for kind in ("\n\"", "é\u2028", "\ud800", "\x00")] * 4
    with pool.Pool(options(slots=16)) as games:
        play(games, {slot: Reset("t", 0) for slot in range(16)})
        for _ in range(2):
            games.send({slot: Step(f"echo {texts[slot]}") for slot in range(8)})
            games.send({slot: Step(f"echo {texts[slot]}") for slot in range(8, 16)})
            answers = games.receive(range(16))
            assert all(answers[slot].text == texts[slot] for slot in range(16))


def test_options_and_tasks_reach_the_environment():
    with pool.Pool(options(answer=[42, "x"])) as games:
        assert [(task.id, task.type) for task in games.tasks("train")] == [(f"train/{n}", "counting") for n in range(3)]
        play(games, {0: Reset("t", 0)})
        assert play(games, {0: Step("ask options")})[0].text == "{'answer': [42, 'x']}"


def test_unknown_split_is_refused_and_disturbs_nothing():
    with pool.Pool(options()) as games:
        play(games, {0: Reset("t", 7)})
        games.send({0: Step("sleep 0.2"), 1: Reset("t", 3)})  # still being played when the tasks are asked for
        with pytest.raises(ValueError, match="unknown split 'test'; splits are train, other"):
            games.tasks("test")
        assert games.receive([0, 1])[0].text == "8"
        assert play(games, {0: Step("count"), 1: Step("count")})[0].text == "9"


def test_listing_that_hangs_is_an_error():
    with pool.Pool(options(start_timeout=1.0)) as games:
        with pytest.raises(RuntimeError, match=r"timeout in _Tasks\(split='hang'\)"):
            games.tasks("hang")
        assert len(games.tasks("train")) == 3


def test_raise_ends_one_episode_and_renews_its_environment():
    with pool.Pool(options(slots=4)) as games:
        assert play(games, {slot: Reset("t", 0) for slot in range(4)})[0].text == "reset 1"
        before = pid(games, 0)
        answers = play(games, {0: Step("raise key"), 1: Step("exit"), 2: Step("unserialisable"), 3: Step("count")})
        assert [answers[slot].error for slot in range(4)] == ["raised KeyError", "raised SystemExit", "raised TypeError", ""]
        assert answers[0] == pool.protocol.Observation(text="", done=True, error="raised KeyError")
        assert games.errors == {"raised KeyError": 1, "raised SystemExit": 1, "raised TypeError": 1}
        again = play(games, {slot: Reset("t", 0) for slot in range(4)})
        assert [again[slot].text for slot in range(4)] == ["reset 1", "reset 1", "reset 1", "reset 2"]  # three new objects
        assert pid(games, 0) == before


def test_killed_worker_costs_its_episodes_only():
    with pool.Pool(options(workers=2, slots=8)) as games:
        play(games, {slot: Reset("t", slot) for slot in range(8)})
        killed, other = pid(games, 0), pid(games, 1)
        os.kill(killed, signal.SIGKILL)
        time.sleep(0.1)
        # Worker 0 has slots 0, 2, 4, 6: two are stepped now, one later, one is reset.
        answers = play(games, {0: Step("count"), 1: Step("count"), 2: Step("count"), 3: Step("count"), 4: Reset("t", 9)})
        assert [answers[slot].error for slot in range(5)] == ["killed", "", "killed", "", ""]
        assert answers[0].done and (answers[1].text, answers[3].text) == ("3", "4")
        assert play(games, {6: Step("count"), 4: Step("count"), 5: Step("count")})[6].error == "killed"
        assert games.errors == {"killed": 3}
        assert not play(games, {slot: Reset("t", 5) for slot in range(8)})[6].error
        assert play(games, {6: Step("count")})[6].text == "6"
        assert pid(games, 1) == other and pid(games, 0) != killed
        assert not runs(killed)


def test_all_workers_killed_in_flight_and_again_while_they_start():
    with pool.Pool(options(workers=2, slots=4)) as games:
        for _ in range(3):
            play(games, {slot: Reset("t", 0) for slot in range(4)})
            games.send({slot: Step("sleep 30") for slot in range(4)})
            for each in games._workers:
                os.kill(each.pid, signal.SIGKILL)
            assert {answer.error for answer in games.receive(range(4)).values()} == {"killed"}
            for each in games._workers:  # the successors, before they are ready
                os.kill(each.pid, signal.SIGKILL)
        assert play(games, {0: Reset("t", 0)})[0].text == "reset 1"
        assert games.errors == {"killed": 12}


def test_engine_that_kills_its_process():
    with pool.Pool(options(slots=3)) as games:
        play(games, {slot: Reset("t", 0) for slot in range(3)})
        answers = play(games, {0: Step("count"), 1: Step("kill"), 2: Step("count")})
        assert [answers[slot].error for slot in range(3)] == ["", "killed", "killed"]  # slot 0 had answered already
        assert play(games, {0: Step("count")})[0].error == "killed"  # but its state is gone


def test_reset_is_played_again_once(tmp_path):
    with pool.Pool(options(slots=3)) as games:
        answers = play(games, {0: Reset(f"die {tmp_path / 'mark'}", 0), 1: Reset("t", 0)})
        assert [answers[slot].error for slot in range(2)] == ["", ""]
        answers = play(games, {0: Reset("t", 0), 1: Reset("die-always", 0), 2: Reset("t", 0)})
        assert [answers[slot].error for slot in range(3)] == ["", "killed", ""]
        assert games.errors == {"killed": 1}


def test_hang_ends_at_its_timeout_and_others_go_on():
    with pool.Pool(options(workers=2, slots=8, step_timeout=0.5)) as games:
        play(games, {slot: Reset("t", slot) for slot in range(8)})
        hung = pid(games, 0)
        start = time.monotonic()
        games.send({0: Step("sleep 60"), 1: Step("count"), 2: Step("count"), 4: Reset("t", 40)})
        assert games.receive([1])[1].text == "2" and time.monotonic() - start < 0.4  # the other worker's does not wait
        answers = games.receive([0, 2, 4])
        assert 0.5 <= time.monotonic() - start < 3
        assert [answers[slot].error for slot in (0, 2, 4)] == ["timeout", "killed", ""]
        assert play(games, {6: Step("count")})[6].error == "killed"
        assert games.errors == {"timeout": 1, "killed": 2}
        assert not runs(hung)
        assert not play(games, {0: Reset("t", 0)})[0].error


def test_hanging_reset_is_not_tried_again():
    with pool.Pool(options(reset_timeout=0.5)) as games:
        start = time.monotonic()
        answers = play(games, {0: Reset("hang", 0), 1: Reset("t", 0)})
        assert (answers[0].error, answers[1].error) == ("timeout", "")
        assert time.monotonic() - start < 3


def test_timeout_is_per_call_not_per_batch():
    # Eight calls of 0.2 s each: 1.6 s of work in one batch, none of which may count as a hang of 0.6 s.
    with pool.Pool(options(slots=8, step_timeout=0.6)) as games:
        play(games, {slot: Reset("t", 0) for slot in range(8)})
        assert not any(answer.error for answer in play(games, {slot: Step("sleep 0.2") for slot in range(8)}).values())


def test_answers_that_waited_for_the_trainer_are_not_late():
    with pool.Pool(options(step_timeout=0.3)) as games:
        play(games, {0: Reset("t", 0), 1: Reset("t", 0)})
        games.send({0: Step("count"), 1: Step("count")})
        time.sleep(0.6)  # the trainer does something else
        assert [answer.text for answer in games.receive([0, 1]).values()] == ["1", "1"]


def test_late_answer_is_dropped():
    with pool.Pool(options(step_timeout=0.4)) as games:
        play(games, {0: Reset("t", 100), 1: Reset("t", 0)})
        games.send({0: Step("sleep 0.7")})
        assert games.receive([0])[0].error == "timeout"
        time.sleep(0.5)  # by now the old worker would have answered "101"
        assert play(games, {0: Reset("t", 0)})[0].text == "reset 1"
        assert play(games, {0: Step("count")})[0].text == "1"


def test_fast_slot_does_not_wait_for_a_slow_one():
    with pool.Pool(options()) as games:
        play(games, {0: Reset("t", 0), 1: Reset("t", 0)})
        games.send({0: Step("count"), 1: Step("sleep 1")})
        start = time.monotonic()
        games.receive([0])
        assert time.monotonic() - start < 0.5
        games.receive([1])


def test_wrong_use_is_refused_and_sends_nothing():
    with pool.Pool(options()) as games:
        with pytest.raises(ValueError, match=r"slots \[1\] have no request"):
            games.receive([1])
        with pytest.raises(ValueError, match="slot 0 was sent a Step outside an episode"):
            games.send({1: Reset("t", 0), 0: Step("count")})
        with pytest.raises(ValueError, match=r"\[1\]"):
            games.receive([1])
        with pytest.raises(ValueError, match="slot 2 does not exist; config.pool.slots=2"):
            games.send({2: Reset("t", 0)})
        for request in ("count", Step(b"count"), Reset("t", np.int64(3))):
            with pytest.raises(TypeError, match=r"send a Reset\(str, int\) or a Step\(str\)"):
                games.send({1: Reset("t", 0), 0: request})
        games.send({0: Reset("t", 0)})
        with pytest.raises(ValueError, match="slot 0 was sent a request whose observation was not received"):
            games.send({0: Reset("t", 0)})
        games.receive([0])
        with pytest.raises(ValueError, match="no request"):
            games.receive([0])
        play(games, {0: Step("win")})
        with pytest.raises(ValueError, match="outside an episode"):
            games.send({0: Step("count")})


def test_options_are_checked():
    with pytest.raises(ValueError, match="config.pool.slots=5 is not a multiple of config.pool.workers=2; use 6"):
        options(workers=2, slots=5)
    with pytest.raises(ValueError, match="config.pool.step_timeout=0"):
        options(step_timeout=0)


@pytest.mark.parametrize(("fail", "error", "message"), [
    ("raise", RuntimeError, "FileNotFoundError: SCRIPTED_DATA=/nowhere does not exist; run: scripted make"),
    ("exit", RuntimeError, "ended before it was ready, with exit code 3. the engine's last words"),
    ("hang", TimeoutError, "was not ready after config.pool.start_timeout=1.0 seconds"),
])
def test_worker_that_cannot_start(fail, error, message):
    start = time.monotonic()
    with pytest.raises(error, match=message):
        pool.Pool(options(workers=2, fail=fail, start_timeout=20.0 if fail != "hang" else 1.0))
    assert time.monotonic() - start < 5
    assert not children()


def test_unknown_family():
    with pytest.raises(RuntimeError, match="no_such_family in environment worker 0: ModuleNotFoundError"):
        pool.Pool(pool.PoolOptions("no_such_family", {}, 1, 1, 10.0, 1.0, 1.0))


def test_successor_that_cannot_start_ends_the_run(tmp_path):
    with pool.Pool(options(fail="exit when replaced", mark=str(tmp_path / "mark"))) as games:
        os.kill(games._workers[0].pid, signal.SIGKILL)
        games.send({0: Reset("t", 0)})
        with pytest.raises(RuntimeError, match="the data are gone"):
            games.receive([0])


def test_close_lets_environments_close_and_kills_the_busy(tmp_path):
    games = pool.Pool(options(workers=2, slots=4, closed=str(tmp_path / "closed")))
    play(games, {slot: Reset("t", 0) for slot in range(4)})
    assert len(children()) == 2
    games.send({0: Step("sleep 60")})  # worker 0 will not hear that it should end
    time.sleep(0.2)
    games.close()
    games.close()
    assert (tmp_path / "closed").read_text() == "closed\n" * 2  # both slots of worker 1
    assert not children()


def test_workers_leave_jax_and_the_terminal_alone():
    # In a process of its own whose main module imports jax: multiprocessing's spawn would import it in the workers too.
    script = f"""
import sys; sys.path.insert(0, {HERE!r})
import jax
from envs import pool
if __name__ == "__main__":
    with pool.Pool(pool.PoolOptions("scripted_environment", {{}}, 1, 1, 20.0, 5.0, 5.0)) as games:
        games.send({{0: pool.Reset("t", 0)}}); games.receive([0])
        for fact in ("jax", "rspo_jax", "argv", "hash", "niceness"):
            games.send({{0: pool.Step("ask " + fact)}}); print(games.receive([0])[0].text)
        games.send({{0: pool.Step("print 3000000")}}); games.receive([0])
        games.send({{0: pool.Step("count")}}); games.receive([0])
"""
    outputs = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(2)]
    jax, ours, arguments, hashed, niceness = outputs[0].stdout.split()
    assert (jax, ours, arguments) == ("False", "False", "[]")
    assert niceness == "0" or os.getuid()  # only root may undo a niceness of the test's own
    assert outputs[0].stdout == outputs[1].stdout and outputs[0].stderr == ""


PARENT = f"""
import os, sys, time; sys.path.insert(0, {HERE!r})
from envs import pool
games = pool.Pool(pool.PoolOptions("scripted_environment", {{}}, 3, 3, 20.0, 5.0, 500.0))
games.send({{slot: pool.Reset("t", 0) for slot in range(3)}}); games.receive(range(3))
games.send({{0: pool.Step("sleep 100"), 1: pool.Step("spin")}})
print(*(each.pid for each in games._workers), flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_survives_the_trainer(number):
    # One worker sleeps, one hangs without releasing the interpreter's lock, one waits for requests.
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        workers = [int(word) for word in parent.stdout.readline().split()]
        time.sleep(0.2)
        assert all(runs(each) for each in workers)
        parent.send_signal(number)
        parent.wait()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(runs(each) for each in workers):
        time.sleep(0.02)
    survivors = [each for each in workers if runs(each)]
    for each in survivors:
        os.kill(each, signal.SIGKILL)
    assert not survivors


def test_workers_outlive_the_thread_that_started_them_and_ignore_signals_of_the_trainer():
    made = []
    thread = threading.Thread(target=lambda: made.append(pool.Pool(options())))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with made[0] as games:
        play(games, {0: Reset("t", 0)})
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(games._workers[0].pid, number)
        assert play(games, {0: Step("count")})[0].text == "1"


def test_same_requests_same_answers_whatever_the_workers():
    script = [Reset("t", 3), Step("count"), Step("count"), Reset("u", 5), Step("count"), Step("win")]

    def transcript(workers):
        with pool.Pool(options(workers=workers, slots=4)) as games:
            return [(slot, answer.text, answer.task, answer.done) for request in script
                    for slot, answer in play(games, dict.fromkeys(range(4), request)).items()]

    assert transcript(1) == transcript(4)


def test_engine_output_is_bounded():
    with pool.Pool(options()) as games:
        play(games, {0: Reset("t", 0)})
        for _ in range(20):
            play(games, {0: Step("print 500000")})
        assert os.fstat(games._workers[0]._output.fileno()).st_size <= 2_000_000


def test_throughput():
    # In processor time, which others on the machine do not stretch: 20,000 steps a second need two cores, one for the pool and
    # one for its workers, to spend no more than 50 microseconds each on a step.
    rounds, slots = 60, 128
    with pool.Pool(options(workers=2, slots=slots)) as games:
        play(games, {slot: Reset("t", 0) for slot in range(slots)})
        workers = [psutil.Process(each.pid) for each in games._workers]
        before = [sum(each.cpu_times()[:2]) for each in workers]
        start = time.process_time()
        for _ in range(rounds):
            play(games, {slot: Step("count") for slot in range(slots)})
        pool_cost = (time.process_time() - start) / (rounds * slots)
        worker_cost = (sum(sum(each.cpu_times()[:2]) for each in workers) - sum(before)) / (rounds * slots)
    assert pool_cost < 50e-6 and worker_cost < 50e-6, (pool_cost, worker_cost)
