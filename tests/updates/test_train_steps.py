"""What holds for every train step: policy, critic, regression PRM, implicit PRM and supervised fine-tuning."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tabular

from rspo_jax.updates import accumulate

every_step = pytest.mark.parametrize("step", tabular.STEPS)
SPLITS = [slice(0, 1), slice(1, 4), slice(4, 6)]  # parts trajectories 0 and 2, and both pairs


def test_rows_as_the_tests_mean_them():
    data = tabular.batch()
    for row in range(tabular.R):
        found = np.unique(data.step[row][data.action_mask[row]])
        assert len(found) == 1 + tabular.TWO_STEPS[row] and tabular.STEP_MASK[tabular.TRAJECTORY[row], found].all()


@every_step
def test_micro_batches_change_neither_gradient_nor_metrics(step):
    data = tabular.STEPS[step][1]()
    whole, metrics = tabular.gradient(step, [data])
    parts, part_metrics = tabular.gradient(step, [tabular.rows(data, part) for part in SPLITS])
    assert np.abs(whole).max() > 1e-3
    np.testing.assert_allclose(parts, whole, atol=1e-6)
    for name, value in metrics.items():
        np.testing.assert_allclose(part_metrics[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@every_step
@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e30])
def test_garbage_in_padding_changes_neither_gradient_nor_metrics(step, garbage):
    data = tabular.STEPS[step][1]()
    expected, metrics = tabular.gradient(step, [data])
    found, found_metrics = tabular.gradient(step, [tabular.padded(data, garbage)])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    for name, value in metrics.items():
        np.testing.assert_allclose(found_metrics[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@every_step
def test_gradient_matches_finite_differences(step):
    with jax.enable_x64(True):
        data, params = jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x,
                                    (tabular.STEPS[step][1](), tabular.table(2)))

        def loss(shift):
            return tabular.gradient(step, [data], {"table": params["table"] + shift})[1]["loss"]

        exact = tabular.gradient(step, [data], params)[0]
        for i, j in [(0, 1), (0, 4), (2, 2)]:
            shift = jnp.zeros_like(params["table"]).at[i, j].set(1e-6)
            np.testing.assert_allclose((loss(shift) - loss(-shift)) / 2e-6, exact[i, j], rtol=1e-6, atol=1e-9)


@every_step
def test_a_state_is_donated_and_its_branch_is_not(step):
    state = tabular.start("adam")
    branch = accumulate.branch(state)
    before = jax.device_get(branch)  # of the branch: on a CPU it is a view, which would keep its origin from being donated
    after, _ = tabular.update_of(step, "adam")(state, [tabular.STEPS[step][1]()])
    assert int(after.updates) == 1 and np.abs(after.params["table"] - before.params["table"]).max() > 1e-3
    assert all(x.is_deleted() for x in jax.tree.leaves(state))
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(state.params["table"])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(branch), before)


@every_step
def test_learning_rate_0_changes_no_parameter(step):
    after, metrics = tabular.update_of(step, "still")(tabular.start("still"), [tabular.STEPS[step][1]()])
    np.testing.assert_array_equal(after.params["table"], tabular.table(2)["table"])
    assert int(after.updates) == 1 and metrics["grad_norm"] > 0


@every_step
def test_a_non_finite_gradient_moves_nothing(step):
    data, state = tabular.STEPS[step][1](), tabular.start("adam", {"table": tabular.table(2)["table"].at[0, 0].set(jnp.nan)})
    before = jax.device_get(state)
    after, metrics = tabular.update_of(step, "adam")(state, [data])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(after), before)
    assert metrics["skipped_updates"] == 1


def test_eight_devices_compute_what_one_does(tmp_path):
    program, root = pathlib.Path(__file__).with_name("on_devices.py"), pathlib.Path(__file__).parents[2]
    for devices, fsdp, tensor in [(1, 1, 1), (8, 4, 2)]:
        environment = os.environ | {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(root),
        }
        command = [sys.executable, str(program), str(fsdp), str(tensor), str(tmp_path / f"{devices}.npz")]
        subprocess.run(command, env=environment, check=True, timeout=300)
    one, eight = np.load(tmp_path / "1.npz"), np.load(tmp_path / "8.npz")
    assert {name.split("/")[0] for name in one.files} == {*tabular.STEPS, "step_sum", "row"}
    for name in one.files:
        np.testing.assert_allclose(eight[name], one[name], rtol=1e-5, atol=1e-6, err_msg=name)
