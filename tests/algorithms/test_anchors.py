"""GiGPO's anchors: by equality, and V12b, by likeness."""

import difflib
import string

import pytest

from rspo_jax.algorithms import anchors


def changed(text, *positions):
    """text with other characters at some positions."""
    return "".join("0123456789"[p % 10] if p in positions else c for p, c in enumerate(text))


BASE = string.ascii_letters[:40]  # 40 different characters: n changes leave the ratio 2 (40 - n) / 80


def test_exact_anchors_belong_to_one_group():
    observations = [["s0", "s1", "s0"], ["s1"], ["s0", "s2"]]
    assert anchors.exact(observations, [0, 0, 1]) == [[0, 1, 0], [1], [2, 3]]


def test_v12b_similar_anchors_compare_with_the_first_member():
    near = changed(BASE, 0, 5)  # 38 of 40: ratio 0.95, just like
    far = changed(near, 11, 17)  # like `near`, but 0.90 to BASE, the first member
    observations = [[BASE, near], [far, changed(BASE, 3)], [changed(far, 23), BASE]]
    assert anchors.similar(observations, [0, 0, 0], 0.95) == [[0, 0], [1, 0], [1, 0]]
    # Another order, other clusters: with `near` first, both others are like it.
    assert anchors.similar([[near, far, BASE]], [0], 0.95) == [[0, 0, 0]]


def test_similar_anchors_belong_to_one_group():
    assert anchors.similar([[BASE], [BASE, changed(BASE, 1)]], [3, 4], 0.95) == [[0], [1, 1]]


def test_long_texts_follow_difflib_with_its_junk_heuristic():
    # Beyond 200 characters difflib ignores popular ones; the result must be that of a plain ratio, not of the bounds.
    first, second = "you see a mug and a plate. " * 10, "you see a mug and a knife. " * 10
    for threshold in (0.05, 0.5, 0.9):
        like = difflib.SequenceMatcher(None, second, first).ratio() >= threshold
        assert anchors.similar([[first, second]], [0], threshold) == [[0, 0 if like else 1]]


@pytest.mark.parametrize("threshold", [0.0, 1.0, 95])
def test_a_threshold_that_means_nothing_is_refused(threshold):
    with pytest.raises(ValueError, match="config.advantage.anchor_similarity"):
        anchors.similar([[BASE]], [0], threshold)
