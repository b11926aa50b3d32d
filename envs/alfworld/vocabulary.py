"""All words of ALFWorld's texts, its names and the phrases between them, for a tokenizer that knows nothing else."""

import collections
import re

from envs.alfworld import data, engine, package, prior, problem, scene

TOKEN = re.compile(r"[A-Za-z]+|\d|[^\sA-Za-z\d]")  # a word, a digit or a mark of punctuation; spaces are between tokens

COPIES = 3  # of one class of objects in a room; a fourth one's name is two tokens

# What the engine and the task templates say between two names, with the space before it where there is one.
_BETWEEN_NAMES = (
    "You are in the middle of a room. Looking quickly around you, you see a", ", a", ", and a",
    "You arrive at", ". The", ". On the", " is closed.", " is open. In it, you see a", " is open. In it, you see nothing.",
    ", you see a", ", you see nothing.", "You are facing the", ". Next to it, you see nothing.",
    "You open the", "You close the", "You pick up the", " from the", "You move the", " to the",
    "You heat the", "You cool the", "You clean the", " using the", "You turn on the", "You turn off the",
    "You are carrying: a", "You are not carrying anything.", "There's nothing special about", "This is a", "Nothing happens.",
    "go to", "put a", "put some", "put a clean", "put a hot", "put a cool", "clean some", "heat some", "cool some",
    " and put it in", "put two", "find two", " and put them in", "look at", " under the", "examine the", " with the",
)


def words() -> list[str]:
    """Every word that the engine can say or understand, sorted; upper and lower case as it stands in its texts.

    They come from the grammar's sentences and commands, from the task templates, and from the names of all classes of
    ALFRED. Digits and punctuation are not among them: `TOKEN` finds those, one character each.
    """
    _, grammar = problem.logic()
    spoken = [engine.NOTHING] + [_visible(text) for text in _texts(grammar.replace(engine.UNKNOWN_TASK, ""))]
    spoken += [_visible(template) for kind in data.TASK_TYPES for template in package.goals()[kind]["templates"]]
    tables = package.constants()
    classes = {*tables.OBJECTS_WSLICED, *tables.VAL_RECEPTACLE_OBJECTS}
    classes |= {name for held in tables.VAL_RECEPTACLE_OBJECTS.values() for name in held}
    found = {name.lower() for name in classes} | {"a"}  # "a" is textworld's article, which no file spells out
    for text in spoken:
        found.update(re.findall(r"[A-Za-z]+", text))
    return sorted(found)


def phrases() -> list[str]:
    """What shall be one token each: the names of things that can be used (` cabinet 12`) and what stands between names.

    An episode's row is half as long with them, and a policy copies a name whole: its number cannot go wrong (decision 0006).
    """
    most = collections.Counter(dict.fromkeys(prior.HOMES, COPIES) | {"DeskLamp": COPIES})
    for number in (number for room in package.SCENES.values() for number in room):
        most |= collections.Counter(receptacle.kind for receptacle in scene.scene(number).receptacles)  # | is the larger count
    return [*_BETWEEN_NAMES, *(f" {kind.lower()} {i}" for kind in sorted(most) for i in range(1, most[kind] + 1))]


def _texts(grammar: str) -> list[str]:
    """The right-hand sides and command templates of a grammar, without those of actions that the domain lacks."""
    actions = set(re.findall(r"\(:action (\w+)", problem.logic()[0]))
    texts = []
    for action, template in re.findall(r'action (\w+) \{\s*template :: "([^"]*)"', grammar):
        if action in actions:
            texts.append(template)
    for symbol, body in re.findall(r'"([^"]+)": \[(.*?)\n\]', grammar, flags=re.DOTALL):
        action = symbol.removesuffix(".feedback")
        if symbol == "notImplemented" or (action[:1].isupper() and action not in actions):
            continue
        texts += re.findall(r'"rhs": "((?:[^"\\]|\\.)*)"', body)
    return texts


def _visible(text: str) -> str:
    """A template without what is filled in: [..|..], {..}, #..#, and without line breaks."""
    for hidden in (r"\[[^\]]*\]", r"\{[^}]*\}", r"#[^#]*#", r"\\n"):
        text = re.sub(hidden, " ", text)
    return text
