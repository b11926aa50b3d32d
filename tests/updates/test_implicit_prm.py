"""The implicit PRM's update: the loss it descends, rows and pairs in different micro-batches, and what must not move."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tabular

from rspo_jax.rollout import batching
from rspo_jax.updates import accumulate, implicit_prm

PREFERENCES = pytest.mark.parametrize("step", ["preference_sum", "preference_mean"])


def logits_by_loops(params, data, step):
    """Step rewards [B, T] and trajectory logits [B], token by token."""
    data, logp = jax.device_get(data), np.asarray(tabular.score(params, data.tokens)[0])
    rewards = np.zeros((tabular.B, tabular.T))
    for r, l in zip(*np.nonzero(data.action_mask), strict=True):
        rewards[data.trajectory[r], data.step[r, l]] += tabular.IMPLICIT.beta * (logp[r, l] - data.logp_ref[r, l])
    total = rewards.sum(axis=1)
    return rewards, total / np.maximum(tabular.STEP_MASK.sum(axis=1), 1) if step == "preference_mean" else total


@pytest.mark.parametrize("step", ["preference_sum", "preference_mean", "cross_entropy"])
def test_loss_and_metrics_against_loops(step):
    rewards, z = logits_by_loops(tabular.table(2), tabular.batch(), step)
    _, metrics = tabular.gradient(step, [tabular.batch()])
    np.testing.assert_allclose(metrics.pop("step_rewards"), rewards, rtol=1e-5, atol=1e-6)
    # Trajectories 0 and 2 are the successes, 1 and 3 the failures of their groups.
    margins = np.array([z[0] - z[1], z[2] - z[3]]) if step != "cross_entropy" else z[:4] * [1, -1, 1, -1]
    found = implicit_prm.summarize(metrics)
    expected = {"loss": np.log1p(np.exp(-margins)).mean(), "accuracy": (margins > 0).mean(), "margin": margins.mean(),
                "terms": len(margins), "reward_scale": np.abs(rewards).sum() / tabular.STEP_MASK.sum(), "skipped_updates": 0}
    assert found.keys() == expected.keys() | {"grad_norm"}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


@PREFERENCES
def test_a_prm_that_equals_its_reference_has_loss_log_2_and_rewards_of_0(step):
    data = tabular.batch()
    data = dataclasses.replace(data, logp_ref=tabular.score(tabular.table(2), data.tokens)[0])
    forth, metrics = tabular.gradient(step, [data])
    np.testing.assert_allclose(metrics["loss"], math.log(2), rtol=1e-6)
    np.testing.assert_array_equal(metrics["step_rewards"], 0.0)
    assert metrics["accuracy"] == 0.0 and np.abs(forth).max() > 1e-3


def test_an_update_widens_the_margins():
    state, margins = tabular.start("adam"), []
    for _ in range(4):
        state, metrics = tabular.update_of("preference_sum", "adam")(state, [tabular.batch()])
        margins.append(float(metrics["margin"]))
    assert margins == sorted(margins) and int(state.updates) == 4


@PREFERENCES
def test_without_a_pair_nothing_moves(step):
    options = dataclasses.replace(tabular.IMPLICIT, logit=step.removeprefix("preference_"))
    update = implicit_prm.make_implicit_prm_update(tabular.score, tabular.OPTIMIZERS["adam"], options)
    state, _ = update(tabular.start("adam"), [tabular.batch()], tabular.outcomes())
    before = jax.device_get(accumulate.branch(state))
    scored = tabular.outcomes().positive | tabular.outcomes().negative
    none = np.zeros(tabular.B, bool)
    for positive, negative in ((scored, none), (none, scored), (none, none)):
        outcomes = dataclasses.replace(tabular.outcomes(), positive=positive, negative=negative)
        state, metrics = update(state, [tabular.batch()], outcomes)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), before)
        found = implicit_prm.summarize(metrics)
        assert found["terms"] == 0 and all(math.isnan(found[name]) for name in ("loss", "accuracy", "margin"))
        assert found["grad_norm"] == found["skipped_updates"] == 0.0
        assert np.abs(metrics["step_rewards"]).max() > 0  # the policy is still rewarded
    state, _ = update(state, [tabular.batch()], tabular.outcomes())
    assert int(state.updates) == 2


def test_the_cross_entropy_moves_with_successes_alone_and_not_without_labels():
    update = implicit_prm.make_implicit_prm_update(
        tabular.score, tabular.OPTIMIZERS["adam"], dataclasses.replace(tabular.IMPLICIT, loss="cross_entropy"))
    none = np.zeros(tabular.B, bool)
    alone = dataclasses.replace(tabular.outcomes(), negative=none)
    state, metrics = update(tabular.start("adam"), [tabular.batch()], alone)
    assert int(state.updates) == 1 and metrics["terms"] == 2
    state, metrics = update(state, [tabular.batch()], dataclasses.replace(alone, positive=none))
    assert int(state.updates) == 1 and metrics["terms"] == 0


def test_unlabelled_trajectories_change_nothing():
    # Trajectory 3 is unscored, whatever it holds: its group has no pair left.
    outcomes = tabular.outcomes()
    outcomes = dataclasses.replace(outcomes, negative=outcomes.negative & (np.arange(tabular.B) != 3))
    data = tabular.batch()
    other = dataclasses.replace(data, logp_ref=data.logp_ref.at[5].set(-7.0))
    for options in (tabular.IMPLICIT, dataclasses.replace(tabular.IMPLICIT, loss="cross_entropy")):
        update = implicit_prm.make_implicit_prm_update(tabular.score, tabular.OPTIMIZERS["sgd"], options)
        (one, metrics), (two, _) = (update(tabular.start("sgd"), [x], outcomes) for x in (data, other))
        np.testing.assert_array_equal(one.params["table"], two.params["table"])
        assert metrics["terms"] == (1 if options.loss == "preference" else 3)


def test_one_logit_a_row_is_data():
    # iStar's multi-turn PRIME baseline: each row has its trajectory's label.
    data = dataclasses.replace(tabular.batch(), trajectory=jnp.arange(tabular.R))
    labels = tabular.outcomes()
    rows = implicit_prm.Outcomes(*(x[tabular.TRAJECTORY] for x in (labels.positive, labels.negative, labels.group)),
                                 step_mask=np.ones((tabular.R, tabular.T), bool))
    options = dataclasses.replace(tabular.IMPLICIT, loss="cross_entropy")
    update = implicit_prm.make_implicit_prm_update(tabular.score, tabular.OPTIMIZERS["sgd"], options)
    _, metrics = update(tabular.start("sgd"), [data], rows)
    gaps = np.where(data.action_mask, tabular.score(tabular.table(2), data.tokens)[0] - data.logp_ref, 0.0)
    z = options.beta * gaps.sum(axis=1) * np.where(rows.positive, 1, -1)
    np.testing.assert_allclose(metrics["loss"], np.log1p(np.exp(-z)).mean(), rtol=1e-5)


@PREFERENCES
def test_both_layouts_agree_also_when_a_trajectorys_rows_are_apart(step):
    found = []
    trajectories = tabular.episodes(3)
    outcomes = implicit_prm.Outcomes(
        positive=np.array([t.success for t in trajectories]), negative=np.array([not t.success for t in trajectories]),
        group=batching.group_index(trajectories), step_mask=batching.step_mask(trajectories))
    options = dataclasses.replace(tabular.IMPLICIT, logit=step.removeprefix("preference_"))
    update = implicit_prm.make_implicit_prm_update(tabular.score, tabular.OPTIMIZERS["sgd"], options)
    for full_history in (True, False):
        batch = batching.pad(trajectories, full_history)
        parts = batching.split(batch, batching.MicrobatchOptions(tokens=40, widths=(8, 20), multiple=1))
        assert len(parts) > 1
        state, metrics = update(tabular.start("sgd"), [part for _, part in parts], outcomes)
        found.append((state.params["table"], metrics["step_rewards"], metrics["loss"]))
    for full, window in zip(*found, strict=True):
        np.testing.assert_allclose(full, window, atol=1e-6)


@pytest.mark.parametrize("step", ["prm", "preference_sum"])
def test_a_prm_update_changes_the_prm_and_nothing_else(step):
    agent = tabular.start("adam")
    model, initial = accumulate.new_state(agent.params, tabular.OPTIMIZERS["adam"]), accumulate.branch(agent)
    data = tabular.STEPS[step][1]()
    data_before = jax.tree.map(jnp.copy, data)
    after, _ = tabular.update_of(step, "adam")(model, [data])
    jax.tree.map(np.testing.assert_array_equal, agent, initial)
    jax.tree.map(np.testing.assert_array_equal, data, data_before)
    assert np.abs(after.params["table"] - agent.params["table"]).max() > 1e-3


@pytest.mark.parametrize("key, value", [("loss", "dpo"), ("logit", "max"), ("beta", 0.0)])
def test_options_out_of_range_are_named(key, value):
    with pytest.raises(ValueError, match=f"config.istar.{key}"):
        dataclasses.replace(tabular.IMPLICIT, **{key: value})
