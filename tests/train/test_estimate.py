"""Every estimator from episodes to tokens. The formulas have their own tests; here it is which numbers go in and come out."""

import dataclasses

import numpy as np
import pytest
from episodes import episode, malformed, opened, settings

from rspo_jax.train import estimate
from rspo_jax.train import options as run_options

WITHOUT_CRITIC = [name for name in run_options.ESTIMATORS if name != "gae"]
# Two steps of 1 and 2 tokens against one step of 3 tokens: outcomes 1 and 0, mean 1/2, sample std sqrt(1/2).
PAIR = [episode(0, 1.0, tokens=[1, 2]), episode(0, 0.0, tokens=[3])]


@pytest.mark.parametrize("estimator, first, second", [
    ("grpo", 2**-0.5, -(2**-0.5)),
    ("dr_grpo", 0.5, -0.5),
    ("rloo", 1.0, -1.0),  # R_i - mean of the others
    ("reinforce_pp", (5 / 6) ** 0.5, -((5 / 6) ** 0.5)),  # six tokens, 1 and 0: mean 1/2, sample variance 6/4/5 = 0.3
    ("reinforce_pp_baseline", (5 / 6) ** 0.5, -((5 / 6) ** 0.5)),
])
@pytest.mark.parametrize("full_history", [True, False])
def test_a_success_against_a_failure(estimator, full_history, first, second):
    out = estimate.outcome_advantages(opened(full_history, estimator=estimator), PAIR).tokens
    np.testing.assert_allclose(out, [[first] * 3, [second] * 3], rtol=1e-5)


@pytest.mark.parametrize("full_history", [True, False])
def test_gigpo_compares_visits_of_a_state(full_history):
    # Both stand before "start"; step returns there are 0.95 * 1 and 0, z-scores +-1/sqrt(2). "door" is seen once: 0.
    pair = [episode(0, 1.0, observations=["start", "door"]), episode(0, 0.0, steps=1, observations=["start"])]
    gigpo = {"omega": 2.0, "gamma": 0.95, "form": "z_score", "anchor_similarity": 1.0}
    a = 2**-0.5
    out = estimate.outcome_advantages(opened(full_history, estimator="gigpo", gigpo=gigpo), pair).tokens
    np.testing.assert_allclose(np.concatenate(out), [3 * a] * 3 + [a] * 3 + [-3 * a] * 3, rtol=1e-5)
    # Without std: 0.5 + 2 * 0.475, and 0.5 alone.
    out = estimate.outcome_advantages(opened(full_history, estimator="gigpo", gigpo=gigpo | {"form": "centered"}), pair).tokens
    np.testing.assert_allclose(np.concatenate(out), [1.45] * 3 + [0.5] * 3 + [-1.45] * 3, rtol=1e-5)


def test_gigpo_with_similar_anchors():
    pair = [episode(0, 1.0, steps=1, observations=["a drawer, closed, and a desk 1"]),
            episode(0, 0.0, steps=1, observations=["a drawer, closed, and a desk 2"])]
    exact, similar = (
        estimate.outcome_advantages(opened(estimator="gigpo", gigpo={
            "omega": 1.0, "gamma": 1.0, "form": "centered", "anchor_similarity": likeness}), pair).tokens[0][0]
        for likeness in (1.0, 0.9))
    np.testing.assert_allclose([exact, similar], [0.5, 1.0], rtol=1e-6)


@pytest.mark.parametrize("estimator, expected", [
    # The penalty 0.1 stays on its own step: scores 0.9 and 1 against mean 1/2.
    ("dr_grpo", [0.4, 0.5, 0.5, -0.5, -0.5, -0.5]),
    ("rloo", [0.8, 1.0, 1.0, -1.0, -1.0, -1.0]),
])
def test_a_penalty_stays_on_its_step(estimator, expected):
    for full_history in (True, False):
        out = estimate.outcome_advantages(opened(full_history, estimator=estimator), [malformed(PAIR[0], 0), PAIR[1]]).tokens
        np.testing.assert_allclose(np.concatenate(out), expected, rtol=1e-5)


@pytest.mark.parametrize("full_history", [True, False])
def test_reinforce_pp_returns_carry_only_the_own_steps_penalty(full_history):
    # Token returns 1, 0.9, 0.9 and 0, 0, 0: mean 2.8/6, deviations squared sum to 1.31333.
    out = estimate.outcome_advantages(opened(full_history, estimator="reinforce_pp"), [malformed(PAIR[0], 1), PAIR[1]]).tokens
    returns = np.array([1, 0.9, 0.9, 0, 0, 0])
    np.testing.assert_allclose(np.concatenate(out), (returns - returns.mean()) / returns.std(ddof=1), rtol=1e-5)


def test_overlong_responses_cost_as_much_as_they_exceed():
    # Cap 8, buffer 4: 3 tokens are free, 6 cost 2/4 and 8 cost 1, times the factor.
    played = [episode(0, 1.0, tokens=[3, 6, 8])]
    overlong = settings(overlong={"buffer": 4, "factor": 0.5})
    np.testing.assert_allclose(estimate.penalties(overlong, played), [[0.0, 0.25, 0.5]])
    np.testing.assert_array_equal(estimate.penalties(settings(), played), [[0.0, 0.0, 0.0]])


def test_kl_in_the_reward(monkeypatch):
    # log pi_old = -1 and log pi_ref = -2 on each token: a cost of 0.1 a token, 0.3 an episode on both sides.
    monkeypatch.setattr(estimate.sessions, "token_logps", lambda session, params, batch: np.full(batch.tokens.shape, -2.0))
    session = opened(kl_coef=0.1)
    session.initial = None
    rewards = estimate.outcome_rewards(PAIR)
    batch = estimate.batching.pad(PAIR, True)
    returns, steps = estimate.less_kl(session, PAIR, batch, rewards)
    np.testing.assert_allclose(returns, [0.7, -0.3], rtol=1e-6)
    np.testing.assert_allclose(steps, [[-0.1, 0.8], [-0.3, 0.0]], rtol=1e-6)


@pytest.mark.parametrize("estimator", WITHOUT_CRITIC)
def test_every_estimator_agrees_between_the_layouts_and_ignores_siblings_order(estimator):
    rng = np.random.default_rng(0)
    played = [episode(int(g), float(rng.integers(2)), tokens=rng.integers(1, 5, rng.integers(1, 4)).tolist())
              for g in [0, 0, 0, 1, 1, 1]]
    rows, steps = (estimate.outcome_advantages(opened(full, estimator=estimator), played).tokens for full in (True, False))
    order = rng.permutation(6)
    mixed = estimate.outcome_advantages(opened(estimator=estimator), [played[i] for i in order]).tokens
    for place, i in enumerate(order):
        np.testing.assert_allclose(steps[i], rows[i], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mixed[place], rows[i], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", WITHOUT_CRITIC)
def test_outcomes_that_are_all_alike_teach_nothing(estimator):
    same = [dataclasses.replace(PAIR[0], group=0)] * 3
    assert not np.concatenate(estimate.outcome_advantages(opened(estimator=estimator), same).tokens).any()


def test_dense_rewards_go_through_the_bases_own_estimator():
    pair = [episode(0, 0.0, dense=1.0), episode(0, 1.0, dense=0.0)]  # dense returns 2 and 0
    out = estimate.dense_advantages(opened(estimator="rloo"), pair).tokens
    np.testing.assert_allclose(out, [[2.0] * 6, [-2.0] * 6], rtol=1e-6)
