"""iStar's advantages from episodes and an implicit PRM's rewards, by hand, and the identities of the specification."""

import types as python_types

import numpy as np
import pytest
from episodes import episode, opened

from rspo_jax import types
from rspo_jax.rollout import batching
from rspo_jax.train import implicit, istar
from rspo_jax.train import options as run_options

# Outcomes 1 and 0; two steps of 1 and 2 tokens against one step of 3 tokens, with step rewards 3, 0 and 0.
PAIR = types.with_dense_rewards([episode(0, 1.0, tokens=[1, 2]), episode(0, 0.0, tokens=[3])], np.array([[3.0, 0.0], [0.0, 0.0]]))
TOKENS = [3.0, 0, 0, 0, 0, 0]  # the same rewards, token by token
A = 2**-0.5


def options(rewards="step", coef=1.0, **others):
    return run_options.Istar(**{
        "loss": "preference", "logit": "sum", "beta": 0.05, "reference": "old", "learning_rate": 1e-3, "max_grad_norm": 10.0,
        "rewards": rewards, "step_advantage_coef": coef, "baseline": "group", "divide_by_largest": False, **others})


def advantage(monkeypatch, chosen, estimator, full_history=True, pair=PAIR, tokens=TOKENS):
    session = opened(full_history, estimator=estimator)
    session.settings.istar = chosen

    def token_rewards(session, prm, batch):
        values = np.zeros(batch.tokens.shape, np.float32)
        values[batch.action_mask] = tokens
        return values

    monkeypatch.setattr(implicit, "token_rewards", token_rewards)
    return np.concatenate(istar.step_advantages(session, None, pair).tokens)


@pytest.mark.parametrize("full_history", [True, False])
@pytest.mark.parametrize("estimator, expected", [
    # R_s = {3, 0, 0}: mean 1, std sqrt(3); A_E = +-1/sqrt(2).
    ("grpo", [A + 2 / 3**0.5] + [A - 1 / 3**0.5] * 2 + [-A - 1 / 3**0.5] * 3),
    # A_E = +-1; A_S = 3/2 (r - 1).
    ("rloo", [1 + 3.0] + [1 - 1.5] * 2 + [-1 - 1.5] * 3),
])
def test_step_rewards_beside_the_outcome(monkeypatch, estimator, expected, full_history):
    np.testing.assert_allclose(advantage(monkeypatch, options(), estimator, full_history), expected, rtol=1e-5)


def test_reinforce_pp_baseline_whitens_the_parts_apart(monkeypatch):
    def whitened(x):
        return (x - x.mean()) / x.std(ddof=1)

    expected = whitened(np.array([0.5] * 3 + [-0.5] * 3)) + whitened(np.array([2.0, -1, -1, -1, -1, -1]))
    np.testing.assert_allclose(advantage(monkeypatch, options(), "reinforce_pp_baseline"), expected, rtol=1e-5)
    expected = whitened(np.array([1.0] * 3 + [0.0] * 3)) + whitened(np.array([3.0, 0, 0, 0, 0, 0]))
    np.testing.assert_allclose(advantage(monkeypatch, options(), "reinforce_pp"), expected, rtol=1e-5)


def test_merged_compares_the_sum_once(monkeypatch):
    # Scores + rewards 4, 1 and 0, three steps: mean 5/3, times 3/2.
    expected = np.array([4 - 5 / 3] + [1 - 5 / 3] * 2 + [-5 / 3] * 3) * 1.5
    np.testing.assert_allclose(advantage(monkeypatch, options("merged"), "rloo"), expected, rtol=1e-5)


def test_token_rewards_are_compared_token_by_token(monkeypatch):
    # Six tokens of the group with mean 1/2, times 6/5.
    expected = np.array([1 + 3.0] + [1 - 0.6] * 2 + [-1 - 0.6] * 3)
    np.testing.assert_allclose(advantage(monkeypatch, options("token"), "rloo"), expected, rtol=1e-5)


def test_prime_sums_both_parts_into_a_whitened_return(monkeypatch):
    # Largest |return| 3: rewards 1 and 0s. Means 1/3 and 0, K = 2: 2 r - 1/3. Outcomes +-1 at the ends.
    process = np.array([2 - 1 / 3] + [-1 / 3] * 2 + [-1 / 3] * 3)
    to_go = np.concatenate([np.cumsum(part[::-1])[::-1] + end for part, end in ((process[:3], 1), (process[3:], -1))])
    expected = (to_go - to_go.mean()) / to_go.std(ddof=1)
    np.testing.assert_allclose(advantage(monkeypatch, options("prime"), "rloo"), expected, rtol=1e-4)


@pytest.mark.parametrize("estimator", istar.FORMS)
def test_identity_5_without_a_step_part_it_is_the_base(monkeypatch, estimator):
    base = advantage(monkeypatch, options(coef=0.0), estimator)
    nothing = types.with_dense_rewards(PAIR, np.zeros((2, 2)))
    np.testing.assert_array_equal(advantage(monkeypatch, options(), estimator, pair=nothing), base)
    assert base[0] > 0 > base[-1]


def test_a_prm_that_was_never_updated_gives_exactly_nothing():
    batch = batching.pad(PAIR, True)
    state = python_types.SimpleNamespace(updates=np.int32(0), params=None)
    assert not implicit.token_rewards(None, state, batch).any()
