"""The one rule by which a response becomes an action, and the prompts of both histories."""

import dataclasses

import numpy as np
import pytest

from envs import protocol
from rspo_jax import types
from rspo_jax.rollout import dialogue

PLAIN = dialogue.DialogueOptions(format="plain", history="full", restate_task=False, show_admissible=False, system="")
THINK = dialogue.DialogueOptions(format="think", history="window(2)", restate_task=False, show_admissible=True, system="")


@pytest.mark.parametrize("response, closed, action, well_formed", [
    ("<think>look</think><action>go to desk 1</action>", True, "go to desk 1", True),
    (" <THINK>a\nb</THINK>\n<Action>  Go  to Desk 1 </Action>\n", True, "go to desk 1", True),
    ("<think>look</think><action>go to desk 1</action>", False, "go to desk 1", False),  # cut before its stop token
    ("<action>go to desk 1</action><think>look</think>", True, "go to desk 1", False),  # order
    ("<think>a</think><action>look</action><action>go</action>", True, "look", False),  # repetition
    ("<think>a</think><action><action>look</action></action>", True, "<action>look", False),  # nesting
    ("<think>a</think>then <action>look</action>", True, "look", False),  # text between
    ("<action>look</action>", True, "look", False),  # no reasoning
    ("<think>a</think><action> </action>", True, "", False),  # emptiness
    ("<think>\u770b</think><action>look</action>", True, "look", False),  # language drift
    ("", True, "", False),
    ("I would like to go to the big desk number 1", True, "go to the big desk number 1", False),  # the last 30 characters
])
def test_think_format(response, closed, action, well_formed):
    parsed = dialogue.parse(response, closed, THINK)
    assert parsed.well_formed == well_formed
    assert parsed.text == action or parsed.text.endswith(action) and len(parsed.text) <= dialogue.ACTION_TAIL


@pytest.mark.parametrize("response, closed, action, well_formed", [
    ("Go to  desk 1", True, "go to desk 1", True),
    ("go to desk 1", False, "go to desk 1", False),
    ("go to\ndesk 1", True, "go to desk 1", False),
    (" ", True, "", False),
    ("cafe\u0301", True, "caf\u00e9", True),  # composed
])
def test_plain_format(response, closed, action, well_formed):
    assert dialogue.parse(response, closed, PLAIN) == dialogue.Action(action, well_formed)


def step(number):
    return types.Step(f"see {number}", "", f"do {number}", np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0),
                      np.zeros(0), True, True, 0.0, 0.0)


def test_window_holds_the_last_pairs_with_their_absolute_numbers():
    observation = protocol.Observation("see 4", admissible=("look", "go"))
    message = dialogue.window_message("find it", [step(1), step(2), step(3)], observation, THINK)
    assert message.splitlines()[:5] == [
        "find it", "[Observation 2: see 2, Action 2: do 2]", "[Observation 3: see 3, Action 3: do 3]", "see 4",
        "Admissible actions: look, go"]
    assert dialogue.window_message("find it", [], observation, THINK) == dialogue.first_message("find it", observation, THINK)


def test_window_of_zero_has_no_history():
    options = dialogue.DialogueOptions(format="plain", history="window(0)", restate_task=False, show_admissible=False, system="")
    assert dialogue.window_message("find it", [step(1)], protocol.Observation("see 2"), options) == "find it\nsee 2"


def test_full_history_repeats_nothing():
    assert dialogue.next_message("find it", protocol.Observation("see 2"), PLAIN) == "see 2"


def test_a_restated_task_ends_every_turn():
    options = dataclasses.replace(PLAIN, restate_task=True)
    assert dialogue.first_message("find it", protocol.Observation("see 1"), options) == "see 1\nfind it"
    assert dialogue.next_message("find it", protocol.Observation("see 2"), options) == "see 2\nfind it"


@pytest.mark.parametrize("key, value", [("format", "json"), ("history", "window"), ("history", "window(-1)")])
def test_unknown_options_are_named(key, value):
    options = {"format": "plain", "history": "full", "restate_task": False, "show_admissible": False, "system": "", key: value}
    with pytest.raises(ValueError, match=f"config.dialogue.{key}"):
        dialogue.DialogueOptions(**options)
