"""The vocabulary covers every text that a policy meets."""

import random
import re

import envs.alfworld as alfworld
from envs.alfworld import data, prior, vocabulary


def texts(folder, steps):
    slot, rng = alfworld.make(str(folder)), random.Random(0)
    for split in data.SPLITS:
        for task in slot.tasks(split):
            observation = slot.reset(task.id, 0)
            yield observation.task
            for _ in range(steps):
                yield observation.text
                yield from observation.admissible
                observation = slot.step(rng.choice(observation.admissible))
            yield slot.step("help").text
    slot.close()


def assert_covered(all_texts):
    known, met = set(vocabulary.words()), set()
    for text in all_texts:
        tokens = vocabulary.TOKEN.findall(text)
        assert "".join(tokens) == re.sub(r"\s", "", text)  # nothing is lost but spaces
        met.update(token for token in tokens if token[0].isalpha())
    assert met <= known, sorted(met - known)
    return met


def test_generated_games_are_covered(made):
    met = assert_covered(texts(made, steps=30))
    assert {"You", "arrive", "microwave", "Nothing", "sinkbasin"} - met <= {"Nothing"}


def test_real_games_are_covered(real):
    assert_covered(texts(real, steps=30))


def test_names_of_things_are_phrases(made, real):
    phrases = vocabulary.phrases()
    assert len(phrases) == len(set(phrases)) and " cabinet 28" in phrases and " cabinet 29" not in phrases
    named, really = ({name for text in texts(folder, steps=10) for name in re.findall(r" [a-z]+ \d+", text)}
                     for folder in (made, real))
    assert named and named <= set(phrases)
    assert not [name for name in really - set(phrases) if name.split()[0] in prior.HOMES]  # decoration is two tokens


def test_words_are_sorted_words():
    found = vocabulary.words()
    assert found == sorted(set(found)) and all(re.fullmatch(r"[A-Za-z]+", word) for word in found)
    assert {"happens", "clean", "two", "under", "a", "don"} <= set(found) and len(found) < 300
    assert not {"UNKNOWN", "TODO", "name", "indefinite"} & set(found)  # no template's machinery
