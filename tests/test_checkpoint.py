"""Checkpoints: exact, whole or not at all, and nobody's data deleted."""

import json
import logging
import pathlib
import resource
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rspo_jax import checkpoint, types

DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])


def state(value=0.5, width=3):
    """A train state as the loops have it: stacked layers, a chain of transformations, bfloat16 and a counter."""
    params = {"model.embed": {"weight": jnp.full((4, width), value, jnp.float32)},
              "layers": [jnp.full((2, width), value, jnp.bfloat16), None]}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.constant_schedule(1e-3)))
    return types.TrainState(params=params, opt_state=optimizer.init(params), updates=jnp.int32(7))


def like(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=DEVICE), tree)


def assert_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def saved(directory, *ticks, keep=10):
    with checkpoint.Checkpointer(directory, keep) as checkpoints:
        for tick in ticks:
            checkpoints.save(tick, {"agent": state(tick)}, {"tick": tick})


def names(directory):
    return sorted(path.name for path in pathlib.Path(directory).iterdir())


def test_round_trip_is_exact(tmp_path):
    host = {"phase": "dense", "nan": [float("nan"), -0.0, 1e-320, float("-inf")], "text": "line\u2028 line\n é \ud800 \x00",
            "rng": 2**127 + 1, "nothing": None, "nested": [{"empty": []}, {}, True], "float": 0.1}
    with checkpoint.Checkpointer(tmp_path / "a" / "b", keep=2) as checkpoints:
        assert checkpoints.latest() is None
        checkpoints.save(0, {"agent": state(), "empty": {}}, host)
        assert checkpoints.latest() == 0
        arrays, restored = checkpoints.restore(0, {"agent": like(state(9.0)), "empty": {}})
    assert_equal(arrays["agent"], state())
    assert arrays["empty"] == {}
    assert json.dumps(restored) == json.dumps(host)  # nan, -0.0 and the order included
    assert all(leaf.sharding == DEVICE for leaf in jax.tree.leaves(arrays))


def test_another_process_finds_the_last_save(tmp_path):
    saved(tmp_path, 3, 20, 100)
    with checkpoint.Checkpointer(tmp_path, keep=10) as checkpoints:
        assert checkpoints.latest() == 100
        assert checkpoints.restore(20, {})[1] == {"tick": 20}
        assert_equal(checkpoints.restore(3, {"agent": state()})[0]["agent"], state(3))


def test_names_may_come_and_go(tmp_path):
    everything = {"agent": like(state()), "explorer": like(state())}
    with checkpoint.Checkpointer(tmp_path, keep=3) as checkpoints:
        checkpoints.save(1, {"agent": state(1)}, {})
        checkpoints.save(2, {"agent": state(2), "explorer": state(3)}, {})
        checkpoints.save(3, {"agent": state(4)}, {})
        assert list(checkpoints.restore(1, everything)[0]) == ["agent"]
        assert_equal(checkpoints.restore(2, everything)[0], {"agent": state(2), "explorer": state(3)})
        assert list(checkpoints.restore(2, {"explorer": like(state())})[0]) == ["explorer"]


def test_saved_is_what_was_there_at_the_call(tmp_path):
    # The loop donates its arrays to the next update and goes on changing its host data while the save is being written.
    update = jax.jit(lambda x: x * 0 - 7, donate_argnums=0)
    with checkpoint.Checkpointer(tmp_path, keep=3) as checkpoints:
        weights, buffer = jnp.ones((1500, 1500)), [[1, 2], [3]]
        weights = jax.block_until_ready(weights)
        checkpoints.save(1, {"agent": weights}, {"buffer": buffer})
        for _ in range(3):
            weights = update(weights)
        buffer[0].append(99)
        arrays, host = checkpoints.restore(1, {"agent": jax.ShapeDtypeStruct((1500, 1500), jnp.float32, sharding=DEVICE)})
    assert np.unique(arrays["agent"]).tolist() == [1.0]
    assert host == {"buffer": [[1, 2], [3]]}


def test_host_data_is_copied_at_once():
    host = {"buffer": [[1, 2], [{"a": []}]]}
    copy = checkpoint._plain(host, "host")
    assert copy == host
    for ours, theirs in ((copy["buffer"], host["buffer"]), (copy["buffer"][0], host["buffer"][0]),
                         (copy["buffer"][1][0]["a"], host["buffer"][1][0]["a"])):
        assert ours is not theirs


def test_keeps_the_newest_and_deletes_nothing_else(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "1").mkdir()  # not one of ours
    (tmp_path / "1" / "precious.txt").write_text("mine")
    saved(tmp_path, 2, 3, 10, 11, keep=2)
    assert names(tmp_path) == ["1", "10", "11", "notes"]
    saved(tmp_path, 12, keep=1)
    assert names(tmp_path) == ["1", "12", "notes"]


def test_existing_step_is_refused(tmp_path):
    saved(tmp_path, 5)
    with checkpoint.Checkpointer(tmp_path, keep=2) as checkpoints:
        with pytest.raises(FileExistsError, match=f"{tmp_path}/5 exists; nothing was overwritten"):
            checkpoints.save(5, {"agent": state(1)}, {})
        assert_equal(checkpoints.restore(5, {"agent": like(state())})[0]["agent"], state(5))
        checkpoints.save(6, {"agent": state(6)}, {})  # and it can go on


def _empty(path):
    shutil.rmtree(path)
    path.mkdir()


def _largest(path):
    return max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)


def _truncated(path):
    file = _largest(path / "agent")
    file.write_bytes(file.read_bytes()[:-10])


def _flipped(path):
    file = _largest(path / "agent")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _without_host(path):
    (path / checkpoint.CONTENT / "metadata").unlink()


def _unlisted(path):
    (path / checkpoint.FILES).write_text("[")


def _half_deleted(path):
    shutil.rmtree(path / "agent")


@pytest.mark.parametrize("damage", [_empty, _truncated, _flipped, _without_host, _unlisted, _half_deleted])
def test_damaged_checkpoint_is_skipped_and_set_aside(tmp_path, caplog, damage):
    saved(tmp_path, 1, 2)
    damage(tmp_path / "2")
    with checkpoint.Checkpointer(tmp_path, keep=1) as checkpoints:
        with caplog.at_level(logging.WARNING):
            assert checkpoints.latest() == 1
        assert f"The checkpoint {tmp_path}/2 is skipped" in caplog.text
        with pytest.raises(ValueError, match=f"{tmp_path}/2 cannot be restored"):
            checkpoints.restore(2, {"agent": like(state())})
        checkpoints.save(2, {"agent": state(2)}, {})
    assert names(tmp_path) == ["2", "2.broken1"]  # keep=1: nothing damaged was counted, nothing of unknown state deleted
    with checkpoint.Checkpointer(tmp_path, keep=1) as checkpoints:
        assert checkpoints.latest() == 2
        assert_equal(checkpoints.restore(2, {"agent": like(state())})[0]["agent"], state(2))


def test_older_tick_than_a_damaged_one_survives_its_own_save(tmp_path):
    saved(tmp_path, 1, 9)
    _flipped(tmp_path / "9")
    saved(tmp_path, 2, 3, keep=1)
    with checkpoint.Checkpointer(tmp_path, keep=1) as checkpoints:
        assert checkpoints.latest() == 3


def test_killed_while_saving(tmp_path):
    # SIGKILL as soon as the second save has begun: whatever it left, the first one is found and saving goes on.
    script = f"""
import os, jax.numpy as jnp
from rspo_jax import checkpoint
checkpoints = checkpoint.Checkpointer({str(tmp_path)!r}, keep=2)
checkpoints.save(1, {{"agent": jnp.ones(10)}}, {{}})
checkpoints.latest()
checkpoints._orbax._handler.finalize = lambda *_: os.kill(os.getpid(), 9)  # all is written, nothing is renamed
checkpoints.save(2, {{"agent": jnp.ones(10)}}, {{}})
checkpoints.close()
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    assert names(tmp_path) == ["1", f"2{checkpoint.TEMPORARY}"]
    with checkpoint.Checkpointer(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest() == 1
        checkpoints.save(3, {"agent": jnp.zeros(10)}, {})
        assert checkpoints.latest() == 3
    assert names(tmp_path) == ["1", "3"]


def test_full_disk_is_an_error_with_the_path(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = jax.random.normal(jax.random.key(0), (512, 512))  # 1 MB that does not compress away
    checkpoints = checkpoint.Checkpointer(tmp_path, keep=1)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        checkpoints.save(2, {"agent": noise}, {})
        with pytest.raises(OSError, match=f"{tmp_path}/2 was not written"):
            checkpoints.latest()
        checkpoints.save(3, {"agent": noise}, {})
        with pytest.raises(OSError, match=f"{tmp_path}/3 was not written"):
            checkpoints.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with checkpoint.Checkpointer(tmp_path, keep=1) as checkpoints:
        assert checkpoints.latest() == 1  # the complete one is still there
        checkpoints.save(2, {"agent": noise}, {})
        assert checkpoints.latest() == 2


def test_unwritable_directory_is_an_error_with_the_path(tmp_path):
    (tmp_path / "file").write_text("")
    with checkpoint.Checkpointer(tmp_path / "file", keep=1) as checkpoints:
        assert checkpoints.latest() is None
        with pytest.raises(OSError, match=f"{tmp_path}/file"):
            checkpoints.save(1, {"agent": state()}, {})
    with checkpoint.Checkpointer("/proc/checkpoints", keep=1) as checkpoints, pytest.raises(OSError, match="/proc/checkpoints"):
        checkpoints.save(1, {"agent": state()}, {})


def test_changed_configurations_are_refused(tmp_path):
    saved(tmp_path, 1)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if leaf.dtype == jnp.float32 else leaf, state())
    momentum = types.TrainState(state().params, optax.sgd(0.1, momentum=0.9).init(state().params), jnp.int32(0))
    cases = [(state(width=5), r"agent/params/layers/0 as bfloat16\[2, 3\], this run has it as bfloat16\[2, 5\]"),
             (half, r"agent/params/model.embed/weight as float32\[4, 3\], this run has it as bfloat16\[4, 3\]"),
             (momentum, r"agent/opt_state/1/0/count as int32\[\], this run has it as nothing"),
             ({"a": state()}, r"agent/params/layers/0 as bfloat16\[2, 3\], this run has it as nothing")]
    with checkpoint.Checkpointer(tmp_path, keep=1) as checkpoints:
        for wanted, message in cases:
            with pytest.raises(ValueError, match=message) as caught:
                checkpoints.restore(1, {"agent": like(wanted)})
            assert "use the configuration of the checkpoint" in str(caught.value) and f"{tmp_path}/1" in str(caught.value)
        with pytest.raises(FileNotFoundError, match=r"there are \[1\]"):
            checkpoints.restore(2, {})


@pytest.mark.parametrize(("host", "message"), [
    ({"a": [{"b": (1, 2)}]}, r"host.a\[0\].b is \(1, 2\)"),
    ({"a": {1: 2}}, r"host.a is \{1: 2\}"),
    ({"a": [1, np.float64(2)]}, r"host.a\[1\] is np.float64"),
    ({"a": np.ones(2)}, "host.a is array"),
])
def test_host_data_that_would_come_back_otherwise_is_refused(tmp_path, host, message):
    with checkpoint.Checkpointer(tmp_path, keep=1) as checkpoints:
        with pytest.raises(TypeError, match=message):
            checkpoints.save(1, {}, host)
        assert checkpoints.latest() is None


def test_arrays_that_would_come_back_otherwise_are_refused(tmp_path):
    with checkpoint.Checkpointer(tmp_path, keep=1) as checkpoints:
        with pytest.raises(TypeError, match="agent/lr is 0.1; checkpoints take jax arrays"):
            checkpoints.save(1, {"agent": {"lr": 0.1}}, {})
        with pytest.raises(TypeError, match=r"agent is Array\(\(\), dtype=key(?s:.*)jax.random.key_data"):
            checkpoints.save(1, {"agent": jax.random.key(0)}, {})
        with pytest.raises(ValueError, match="'content'"):
            checkpoints.save(1, {"content": jnp.ones(1)}, {})
        checkpoints.save(1, {"agent": jnp.ones(1)}, {})
        with pytest.raises(ValueError, match="agent has no sharding"):
            checkpoints.restore(1, {"agent": jax.ShapeDtypeStruct((1,), jnp.float32)})


def test_options_are_checked(tmp_path):
    with pytest.raises(ValueError, match="config.checkpoint.keep=0"):
        checkpoint.Checkpointer(tmp_path, keep=0)
    with pytest.raises(ValueError, match="gs://bucket/x: mount"):
        checkpoint.Checkpointer("gs://bucket/x", keep=1)


DEVICES = """
import sys, jax, jax.numpy as jnp, numpy as np
from rspo_jax import checkpoint
tensor, directory, action = int(sys.argv[1]), sys.argv[2], sys.argv[3]
mesh = jax.make_mesh((jax.device_count() // tensor, tensor), ("fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
sharding = jax.NamedSharding(mesh, jax.P("fsdp", "tensor"))
with jax.set_mesh(mesh), checkpoint.Checkpointer(directory, keep=2) as checkpoints:
    if action == "save":
        value = jax.device_put(jnp.arange(64.0).reshape(8, 8), sharding)
        checkpoints.save(1, {"agent": {"w": value}}, {})
    else:
        like = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=sharding)
        value = checkpoints.restore(checkpoints.latest(), {"agent": {"w": like}})[0]["agent"]["w"]
        assert value.sharding == sharding
        np.testing.assert_array_equal(np.asarray(value), np.arange(64.0).reshape(8, 8))
"""


def test_eight_devices_to_four_and_one(tmp_path):
    for devices, tensor, action in ((8, 2, "save"), (1, 1, "restore"), (4, 4, "restore")):
        environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "PATH": ""}
        command = [sys.executable, "-c", DEVICES, str(tensor), str(tmp_path), action]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=pathlib.Path(__file__).parents[1])
        assert done.returncode == 0, done.stderr


def test_trajectory_round_trip_is_exact():
    logp = np.array([-0.1, -1e-38, np.nan, -np.inf, np.float32(1) / 3], np.float32)
    step = types.Step(observation="a\u2028b \ud800", response="<action>go</action>", action="go",
                      prompt_tokens=np.arange(3, dtype=np.int32), response_tokens=np.array([], np.int32), logp_sampler=logp,
                      logp_behavior=np.array([], np.float32), well_formed=True, admissible=False, outcome_reward=1.0,
                      dense_reward=float("nan"))
    trajectory = types.Trajectory(task_id="t/1", task_type="pick", task="put é", group=1, seed=2**40, policy="agent", update=3,
                                  steps=(step, step), outcome=1.0, success=True, termination="success", seconds=0.1)
    plain = json.loads(json.dumps(types.trajectory_to_json(trajectory)))
    back = types.trajectory_from_json(plain)
    assert json.dumps(types.trajectory_to_json(back)) == json.dumps(plain)
    assert isinstance(back, types.Trajectory) and isinstance(back.steps, tuple) and back.seed == 2**40
    for one, other in zip(trajectory.steps, back.steps, strict=True):
        for name in ("prompt_tokens", "response_tokens", "logp_sampler", "logp_behavior"):
            a, b = one.__dict__[name], other.__dict__[name]
            assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        assert (other.observation, other.well_formed, other.admissible) == ("a\u2028b \ud800", True, False)
        assert np.isnan(other.dense_reward)


def test_trajectory_with_another_dtype_is_refused():
    step = types.Step("", "", "", np.arange(1), np.arange(1), np.zeros(1), np.zeros(1), True, True, 0.0, 0.0)
    with pytest.raises(TypeError, match="prompt_tokens of t/1 is int64; it must be int32"):
        types.trajectory_to_json(types.Trajectory("t/1", "", "", 0, 0, "agent", 0, (step,), 0.0, False, "failure", 0.0))
