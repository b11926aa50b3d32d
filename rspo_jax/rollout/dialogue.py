"""What the policy reads and how its answer becomes an action: one written rule for all environments.

Two response formats. `plain`: the response is the action (small models trained from scratch). `think`: reasoning inside
<think> tags, then exactly one action inside <action> tags (the public code of GiGPO and iStar).

Two histories. `full`: a turn holds the new observation, and the conversation so far is the row (RSPO's state).
`window(n)`: each step's prompt is built anew from the task, the last n (observation, action) pairs and the observation.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Sequence

from envs import protocol
from rspo_jax import types

FORMATS = ("plain", "think")
ACTION_TAIL = 30  # characters of a response without an action block that are sent to the environment all the same

_INSTRUCTION = (
    "First reason step by step about the situation inside <think> </think> tags. "
    "Then give exactly one action inside <action> </action> tags."
)
_BLOCK = {tag: re.compile(f"<{tag}>(.*?)</{tag}>", re.DOTALL | re.IGNORECASE) for tag in ("think", "action")}
_WELL_FORMED = re.compile(r"\s*<think>.*</think>\s*<action>.*</action>\s*", re.DOTALL | re.IGNORECASE)
_CJK = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


@dataclasses.dataclass(frozen=True)
class DialogueOptions:
    format: str  # one of FORMATS
    history: str  # "full" or "window(n)"
    restate_task: bool  # end each turn of a full history with the task: attention then looks back from it to what was seen
    show_admissible: bool  # list the admissible actions in each prompt
    system: str  # system message; "" for the chat template's own default

    def __post_init__(self):
        if self.format not in FORMATS:
            raise ValueError(f"config.dialogue.format={self.format!r} is unknown; use one of {', '.join(FORMATS)}.")
        if self.history != "full" and not re.fullmatch(r"window\(\d+\)", self.history):
            raise ValueError(f"config.dialogue.history={self.history!r} is unknown; use 'full' or 'window(n)' with n >= 0.")

    @property
    def window(self) -> int | None:
        """Past (observation, action) pairs of a prompt; None for the full history."""
        return None if self.history == "full" else int(self.history[len("window("):-1])


@dataclasses.dataclass(frozen=True)
class Action:
    text: str  # what is sent to the environment
    well_formed: bool


def first_message(task: str, observation: protocol.Observation, options: DialogueOptions) -> str:
    """The first user turn of an episode: the task, the first observation, what an answer looks like."""
    parts = [observation.text, task] if options.restate_task else [task, observation.text]
    return _message(parts, observation, options)


def next_message(task: str, observation: protocol.Observation, options: DialogueOptions) -> str:
    """A later user turn under full history: the new observation, and the task where it is restated."""
    parts = [observation.text]
    if options.restate_task:
        parts.append(task)
    if options.show_admissible:
        parts.append(_admissible(observation))
    return "\n".join(parts)


def window_message(task: str, steps: Sequence[types.Step], observation: protocol.Observation, options: DialogueOptions) -> str:
    """The whole user turn of one step under window(n): task, the last n pairs numbered by step, the observation."""
    recent = list(enumerate(steps, start=1))[len(steps) - min(options.window, len(steps)):]
    pairs = [f"[Observation {number}: {step.observation}, Action {number}: {step.action}]" for number, step in recent]
    return _message([task, *pairs, observation.text], observation, options)


def parse(response: str, closed: bool, options: DialogueOptions) -> Action:
    """The action of a response.

    Both formats: Unicode is NFC-normalised, white space collapsed, case folded to lower. A response that was cut before
    its stop token is never well-formed, and neither is one with CJK characters (language drift, as in the public code).
    plain: the whole response; well-formed if it is one non-empty line.
    think: the first action block, or the last 30 characters where there is none. Well-formed if the response is exactly one
    think block and then exactly one non-empty action block, with nothing but white space around them.

    Args:
        response: the decoded response without special tokens.
        closed: the policy sampled a stop token.
    """
    response = unicodedata.normalize("NFC", response)
    clean = closed and not _CJK.search(response)
    if options.format == "plain":
        text = " ".join(response.split()).lower()
        return Action(text, clean and bool(text) and "\n" not in response.strip())
    blocks = {tag: pattern.findall(response) for tag, pattern in _BLOCK.items()}
    body = blocks["action"][0] if blocks["action"] else response[-ACTION_TAIL:]
    text = " ".join(body.split()).lower()
    single = all(len(found) == 1 for found in blocks.values()) and response.lower().count("<action>") == 1
    return Action(text, clean and bool(text) and single and bool(_WELL_FORMED.fullmatch(response)))


def _message(parts, observation, options):
    if options.show_admissible:
        parts = [*parts, _admissible(observation)]
    if options.format == "think":
        parts = [*parts, _INSTRUCTION]
    return "\n".join(parts)


def _admissible(observation):
    return "Admissible actions: " + ", ".join(observation.admissible)
