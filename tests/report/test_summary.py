import dataclasses
import math

import numpy as np
import pytest

from rspo_jax import types
from rspo_jax.report import summary


def step(observation, tokens=2, dense=0.25, well_formed=True, admissible=True):
    ids, logp = np.zeros(tokens, np.int32), np.zeros(tokens, np.float32)
    return types.Step(observation, "r", "a", ids, ids, logp, logp, well_formed, admissible, 0.0, dense)


def episode(task, kind, steps, termination, outcome=0.0):
    success = termination == "success"
    return types.Trajectory(task, kind, "", 0, 0, "agent", 0, tuple(steps), outcome, success, termination, 2.0)


EPISODES = [
    episode("t1", "heat", [step("a"), step("b", tokens=6, admissible=False)], "success", 1.0),
    episode("t1", "heat", [step("a"), step("a"), step("c", tokens=0, well_formed=False, admissible=False)], "step_cap", 0.5),
    episode("t2", "cool", [step("a", dense=math.nan)], "error: timeout"),
    episode("t2", "cool", [], "error: raised ValueError"),
]


def test_rollout_summary_by_hand():
    got = summary.rollout_summary(EPISODES, ["heat", "cool", "clean"])
    want = {
        "count": 4,
        "success": 1 / 4,  # the two that an error ended are in the denominator
        "outcome_return": 1.5 / 4,
        "dense_return": (0.5 + 0.75) / 2,  # the third was not scored, the fourth has no step
        "steps": 6 / 4,
        "episode_seconds": 2.0,
        "response_tokens": (2 + 6 + 2 + 2 + 0 + 2) / 6,
        "well_formed": 5 / 6,
        "admissible": 4 / 6,
        "identical_states": 1,  # (t1, a), three times; (t2, a) is another state, seen once
        "identical_share": 3 / 6,
        "success/heat": 1 / 2,
        "count/heat": 2,
        "success/cool": 0.0,
        "count/cool": 2,
        "success/clean": math.nan,
        "count/clean": 0,
        "termination/success": 1,
        "termination/failure": 0,
        "termination/step_cap": 1,
        "termination/token_cap": 0,
        "termination/error": 2,
        "errors/raised ValueError": 1,
        "errors/timeout": 1,
    }
    assert list(got) == list(want)
    np.testing.assert_allclose(list(got.values()), list(want.values()), rtol=1e-12)


def test_terminations_add_up_to_the_episodes():
    got = summary.rollout_summary(EPISODES, ["heat", "cool"])
    assert sum(value for name, value in got.items() if name.startswith("termination/")) == got["count"]


def test_nothing_played_is_nan_and_counts_of_zero():
    got = summary.rollout_summary([], ["heat"])
    zeros = {"count", "count/heat", "identical_states", *(f"termination/{reason}" for reason in summary.TERMINATIONS)}
    assert {name for name, value in got.items() if value == 0} == zeros
    assert all(math.isnan(value) for name, value in got.items() if name not in zeros)


def test_an_unknown_type_or_termination_is_refused():
    with pytest.raises(ValueError, match="'cool'"):
        summary.rollout_summary(EPISODES, ["heat"])
    with pytest.raises(ValueError, match="'done'"):
        summary.rollout_summary([dataclasses.replace(EPISODES[0], termination="done")], ["heat"])


def test_wilson_interval():
    # Newcombe (1998), table I, method 3: 81/263 -> 0.2553, 0.3662; 15/148 -> 0.0624, 0.1605; 0/20 -> 0, 0.1611
    np.testing.assert_allclose(summary.wilson(81, 263), (0.2553, 0.3662), atol=5e-5)
    np.testing.assert_allclose(summary.wilson(15, 148), (0.0624, 0.1605), atol=5e-5)
    np.testing.assert_allclose(summary.wilson(0, 20), (0.0, 0.1611), atol=5e-5)
    np.testing.assert_allclose(summary.wilson(20, 20), (1 - 0.1611, 1.0), atol=5e-5)
    assert all(math.isnan(end) for end in summary.wilson(0, 0))


def acted(group, actions, outcome, dense=0.0, termination="failure"):
    steps = tuple(dataclasses.replace(step("a", dense=dense), action=action) for action in actions)
    return dataclasses.replace(episode("t", "heat", steps, termination, outcome), group=group, success=outcome == 1.0)


def test_auc_by_hand():
    # Successes 3 and 1 against failures 2 and 1: 3 > 2, 3 > 1, 1 < 2, 1 = 1: 2.5 of 4.
    assert summary.auc(np.array([3.0, 1, 2, 1]), np.array([True, True, False, False])) == 2.5 / 4
    assert np.isnan(summary.auc(np.array([1.0]), np.array([True])))


def test_diversity_is_the_edit_distance_between_siblings():
    # "xyz" to "xz": one deletion of 3; "xyz" to "abc": 3 of 3; "xz" to "abc": 3 of 3.
    group = [acted(0, actions, 0.0) for actions in ("xyz", "xz", "abc")]
    np.testing.assert_allclose(summary.action_diversity(group), (1 / 3 + 1 + 1) / 3)
    assert summary.action_diversity([group[0], group[0]]) == 0.0
    assert math.isnan(summary.action_diversity(group[:1]))


def test_shares_of_groups_by_hand():
    played = [acted(0, "xy", 1.0), acted(0, "xz", 0.0),  # differ
              acted(1, "x", 0.0), acted(1, "x", 0.0),  # alike
              acted(2, "x", 1.0), acted(2, "y", 0.0, termination="error: killed")]  # one left to compare
    np.testing.assert_allclose(
        list(summary.group_shares(played).values()), [1 / 3, 1 / 3, (1 / 2 + 0) / 2], rtol=1e-6)
    assert math.isnan(summary.group_shares([])["single_member_groups"])


def test_dense_calibration_by_hand():
    # Dense returns 2 and 1 of successes, 0 of a failure; one episode that nobody scored.
    played = [acted(0, "xy", 1.0, dense=1.0), acted(0, "x", 1.0, dense=1.0), acted(0, "x", 0.0, dense=0.0),
              acted(0, "x", 0.0, dense=math.nan)]
    got = summary.dense_calibration(played)
    assert (got["dense_auc"], got["dense_return_success"], got["dense_return_failure"]) == (1.0, 1.5, 0.0)
    np.testing.assert_allclose(got["dense_outcome_correlation"], np.corrcoef([2, 1, 0], [1, 1, 0])[0, 1])
    assert math.isnan(summary.dense_calibration(played[:1])["dense_outcome_correlation"])
