"""What a critic of each level is fitted to, and which advantages it gives; the formulas are tested in tests/algorithms."""

import types as python_types

import numpy as np
import pytest
from episodes import episode, opened

from rspo_jax.rollout import batching
from rspo_jax.train import critic, estimate
from rspo_jax.train import options as run_options


def options(level, gamma=1.0, lambda_=1.0, bootstrap=False):
    return run_options.Critic(level=level, gamma=gamma, lambda_=lambda_, bootstrap_on_truncation=bootstrap, learning_rate=1.0,
                           clip=0.5, loss_factor=1.0)


def fitted_to(monkeypatch, played, chosen, full_history, after):
    """Unwhitened: returns at the fitted tokens. after: value of the state behind each token, or a number for all."""
    session = opened(full_history)
    session.settings.critic = chosen
    monkeypatch.setattr(critic, "values_after", lambda session, params, batch: np.broadcast_to(
        np.float32(after), batch.tokens.shape).copy())
    batch = batching.pad(played, full_history)
    rewards = estimate.outcome_rewards(played)
    advantage, targets = critic.advantages(session, None, played, batch, *rewards, estimate.penalties(session.settings, played))
    assert not advantage[~batch.action_mask].any()
    return batch, advantage, targets


@pytest.mark.parametrize("level", ["row", "trajectory", "turn"])
@pytest.mark.parametrize("full_history", [True, False])
def test_gamma_and_lambda_of_one_fit_every_value_to_the_return(monkeypatch, level, full_history):
    played = [episode(0, 1.0, tokens=[1, 2]), episode(0, 0.0, tokens=[3])]
    batch, advantage, targets = fitted_to(monkeypatch, played, options(level), full_history, 0.25)
    success = (batch.trajectory == 0)[:, None] & targets.fitted
    np.testing.assert_allclose(targets.returns[success], 1.0)
    np.testing.assert_allclose(targets.returns[targets.fitted & ~success], 0.0, atol=1e-7)
    # A turn has one value, before its first token; 0.75 and -0.25 are whitened over six tokens, three of each.
    assert targets.fitted.sum() == (3 if level == "turn" else 6)
    np.testing.assert_allclose(sorted(advantage[batch.action_mask]), [-((5 / 6) ** 0.5)] * 3 + [(5 / 6) ** 0.5] * 3, rtol=1e-5)


def test_a_step_row_of_the_public_code_bootstraps_nothing_from_the_next(monkeypatch):
    # lambda = 0: a token's return is the value behind it, and on the row's last token what the episode is paid from there on.
    played = [episode(0, 1.0, tokens=[2, 2])]
    _, _, targets = fitted_to(monkeypatch, played, options("row", lambda_=0.0), False, 0.25)
    np.testing.assert_allclose(targets.returns[targets.fitted], [0.25, 1.0, 0.25, 1.0])
    # The whole trajectory goes on from the first step's last token to the second's first one.
    _, _, targets = fitted_to(monkeypatch, played, options("trajectory", lambda_=0.0), False, 0.25)
    np.testing.assert_allclose(targets.returns[targets.fitted], [0.25, 0.25, 0.25, 1.0])


@pytest.mark.parametrize("bootstrap, last", [(False, 0.0), (True, 0.25)])
def test_an_episode_that_the_cap_cut_off_goes_on(monkeypatch, bootstrap, last):
    played = [episode(0, 0.0, tokens=[2, 2], termination="step_cap")]
    _, _, targets = fitted_to(monkeypatch, played, options("turn", bootstrap=bootstrap), True, 0.25)
    np.testing.assert_allclose(targets.returns[targets.fitted], [last, last])


def test_a_minibatch_fits_its_own_rows(monkeypatch):
    seen = []

    def step(state, microbatches):
        seen.extend(int(micro.weight.astype(bool).sum()) for micro in microbatches)
        return state, {}

    monkeypatch.setattr(critic.critic, "summarize", lambda metrics: {"loss": 0.0})
    monkeypatch.setattr(critic.sessions, "place", lambda session, batch: batch)
    played = [episode(0, 1.0), episode(0, 0.0)]
    batch = batching.pad(played, True)
    targets = critic.Targets(batch, batch.action_mask, batch.advantage, batch.advantage)
    session = python_types.SimpleNamespace(settings=python_types.SimpleNamespace(
        microbatch=batching.MicrobatchOptions(tokens=256, widths=(128,), multiple=1)))
    critic.update(session, step, None, targets, [np.array([0]), np.array([1])])
    assert seen == [6, 6]


def test_a_bootstrap_without_turns_is_refused():
    with pytest.raises(ValueError, match="config.critic.bootstrap_on_truncation is for config.critic.level=turn, not row"):
        options("row", bootstrap=True)
