"""What the engine does to its host, and no longer does here."""

import subprocess
import sys
import threading

import envs.alfworld as alfworld
from envs.alfworld import data, engine

PROLOGUE = """
import resource, sys
import envs.alfworld as alfworld
from envs.alfworld import data
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20
"""


def run(script, *arguments):
    command = [sys.executable, "-c", PROLOGUE + script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_process_exits_cleanly_and_keeps_its_arguments(made, tmp_path):
    # An unclosed and a closed slot, a translation (no stored one), a failed reset: then a normal exit.
    (tmp_path / "train").symlink_to(made / "train")
    done = run("""
import shutil, pathlib
before = list(sys.argv)
copy = pathlib.Path(sys.argv[2])
source = alfworld.make(sys.argv[1]).tasks("train")[0]
shutil.copytree(pathlib.Path(sys.argv[1]) / source.id, copy / source.id)
(copy / source.id / data.TRANSLATION).unlink()
slots = [alfworld.make(str(copy)), alfworld.make(str(copy))]
for slot in slots:
    slot.reset(source.id, 0)
    slot.step("look")
slots[0].close()
print("alive", sys.argv == before, "alfworld" in sys.modules)
""", made, tmp_path / "copy")
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive True False\n", "")


def test_another_thread_is_refused(made):
    slot, caught = alfworld.make(str(made)), []

    def elsewhere(play):
        try:
            play()
        except RuntimeError as error:
            caught.append(str(error))

    task = slot.tasks("train")[0].id
    slot.reset(task, 0)
    for play in (lambda: slot.reset(task, 0), lambda: slot.step("look"), engine.Session):
        thread = threading.Thread(target=elsewhere, args=(play,))
        thread.start()
        thread.join()
    assert len(caught) == 3 and all("not thread-safe" in text and "worker process" in text for text in caught)
    assert slot.step("look").text.startswith("You are")
    slot.close()


def test_sixty_loads_do_not_grow(made):
    # Ten passes over six games, each loaded and translated anew, with a slot that is closed after each pass.
    done = run("""
sizes = []
for _ in range(10):
    data.load.cache_clear()
    slot = alfworld.make(sys.argv[1])
    for task in slot.tasks("valid_seen"):
        for action in slot.reset(task.id, 0).admissible[:8]:
            slot.step(action)
    slot.close()
    sizes.append(resident())
print(sizes[2], sizes[-1])
""", made)
    early, late = map(float, done.stdout.split())
    assert late - early < 4, (early, late)  # the stock engine grows by 2.5 MB at each load


def test_a_closed_slot_hands_its_machine_to_the_next(made):
    first = alfworld.make(str(made))
    machine = first._session._machine
    first.close()
    second = alfworld.make(str(made))
    assert second._session._machine is machine
    task = second.tasks("train")[0]
    second.reset(task.id, 0)
    for command in data.read(made / task.id / data.GAME).walkthrough:
        last = second.step(command)
    assert last.success
    second.close()
