"""Checkpoints of a run: what the devices hold and what the host knows, whole or not at all.

    with checkpoint.Checkpointer(workdir / "checkpoints", keep=2) as checkpoints:
        if (tick := checkpoints.latest()) is not None:
            arrays, host = checkpoints.restore(tick, {"agent": agent, "explorer": explorer})
        ...
        checkpoints.save(tick, {"agent": agent}, {"phase": "dense", "buffer": [...]})   # goes on while training does

A checkpoint is a directory named by its tick. Orbax writes it under another name and renames it when it is complete; just
before, `files.json` is added, the checksum of each file, so that a directory that was truncated, half deleted or damaged later
is recognised and the one before it is taken. Orbax's CheckpointManager is not used: it counts any directory with a number for
a name as a checkpoint, the empty and the damaged too, and by those decides which others to delete.

Directories are local or mounted. With several processes all call the same methods in the same order on one file system.
"""

import itertools
import json
import logging
import pathlib
import shutil
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

log = logging.getLogger(__name__)

CONTENT = "content"  # the item with the host's data and the names, dtypes and shapes of all arrays
FILES = "files.json"  # {path of a file: its CRC-32}
TEMPORARY = ocp.utils.TMP_DIR_SUFFIX
_SCALARS = {type(None), bool, int, float, str}


class Checkpointer:
    """The checkpoints in one directory, of which the newest `keep` stay. Leaving it as a context waits for the last save."""

    def __init__(self, directory: pathlib.Path | str, keep: int):
        if "://" in str(directory):
            raise ValueError(f"checkpoints cannot be written to {directory}: mount the bucket and give the path of the mount.")
        if keep < 1:
            raise ValueError(f"config.checkpoint.keep={keep} must be at least 1.")
        self._directory = pathlib.Path(directory).absolute()
        self._keep = keep
        self._saving = None  # tick of the save that goes on in the background
        self._whole = set()  # ticks that were written or checked by this object
        self._orbax = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(),
                                            async_options=ocp.AsyncOptions(post_finalization_callback=self._seal))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def save(self, tick: int, arrays: Mapping[str, Any], host: Mapping[str, Any]) -> None:
        """Starts to save. The arrays may be donated and the host's data changed as soon as this returns.

        Args:
          tick: name of the checkpoint, from 0.
          arrays: a tree of jax arrays for each name. Which names there are may differ between ticks.
          host: plain data as JSON has them, with string keys; nan, inf and any text are kept exactly.

        Raises:
          FileExistsError: this tick was saved already.
          OSError: the directory cannot be written, or the save *before* this one failed.
          TypeError, ValueError: something cannot be saved exactly; with its path.
        """
        self._settle()
        for name in arrays:
            if not name.isidentifier() or name == CONTENT:
                raise ValueError(f"arrays cannot be saved under the name {name!r}; use an identifier other than {CONTENT!r}.")
        leaves = {name: _leaves(name, tree) for name, tree in arrays.items()}
        layout = {name: {path: _describe(leaf) for path, leaf in each.items()} for name, each in leaves.items()}
        content = {"arrays": layout, "host": _plain(host, "host")}
        items = {name: ocp.args.StandardSave(each) for name, each in leaves.items() if each}
        path = self._path(tick)
        self._make_room(path)
        self._saving = tick
        try:
            self._orbax.save(path, args=ocp.args.Composite(**items, **{CONTENT: ocp.args.JsonSave(content)}))
        except Exception as error:
            self._saving = None
            raise _failed(path, error) from error

    def latest(self) -> int | None:
        """The tick of the newest whole checkpoint. Those that are empty, incomplete or damaged are skipped, with a warning."""
        self._settle()
        found = -1
        if jax.process_index() == 0:
            for tick in sorted(self._ticks(), reverse=True):
                if fault := self._fault(tick):
                    log.warning("The checkpoint %s is skipped: %s.", self._path(tick), fault)
                else:
                    found = tick
                    break
        found = int(multihost_utils.broadcast_one_to_all(np.int32(found)))
        return None if found < 0 else found

    def restore(self, tick: int, like: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """Reads one checkpoint.

        Args:
          tick: which one.
          like: for each name a tree of arrays or of jax.ShapeDtypeStruct, each with the sharding to restore to, which may be
            another than the saved one. Names that the checkpoint lacks are left out of the answer; arrays of the checkpoint
            that are not asked for are not read.

        Returns:
          The arrays by name, and the host's data.

        Raises:
          ValueError: the checkpoint is damaged, or a tree differs in structure, shape or dtype; with the leaf.
        """
        self._settle()
        path = self._path(tick)
        if not path.is_dir():
            raise FileNotFoundError(f"there is no checkpoint {path}; there are {sorted(self._ticks())}.")
        if jax.process_index() == 0 and (fault := self._fault(tick)):
            raise ValueError(f"the checkpoint {path} cannot be restored: {fault}. Restore another of {sorted(self._ticks())}.")
        content = self._orbax.restore(path, args=ocp.args.Composite(**{CONTENT: ocp.args.JsonRestore()}))[CONTENT]
        targets = {name: _leaves(name, like[name]) for name in content["arrays"] if name in like}
        for name, each in targets.items():
            _compare(path, content["arrays"][name], each)
        items = {name: ocp.args.StandardRestore(jax.tree.map(_target, each)) for name, each in targets.items() if each}
        restored = self._orbax.restore(path, args=ocp.args.Composite(**items)) if items else {}
        arrays = {name: jax.tree.unflatten(jax.tree.structure(like[name]), [restored[name][leaf] for leaf in each])
                  for name, each in targets.items()}
        return arrays, content["host"]

    def close(self) -> None:
        """Waits for the save that goes on, if there is one. Raises OSError if it failed."""
        try:
            self._settle()
        finally:
            self._orbax.close()

    def _path(self, tick):
        return self._directory / str(int(tick))

    def _ticks(self):
        if not self._directory.is_dir():
            return []
        return [int(path.name) for path in self._directory.iterdir()
                if path.name.isdecimal() and path.name == str(int(path.name)) and path.is_dir()]

    def _make_room(self, path):
        """Makes sure that nothing lies where a checkpoint is to be written."""
        if jax.process_index() == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            for leftover in self._directory.glob(f"*{TEMPORARY}*"):  # of a process that was killed while it saved
                shutil.rmtree(leftover)
            if path.exists() and (fault := self._fault(int(path.name))):
                aside = next(name for n in itertools.count(1) if not (name := path.with_name(f"{path.name}.broken{n}")).exists())
                log.warning("%s is renamed to %s, because a checkpoint is saved in its place: %s.", path, aside.name, fault)
                path.rename(aside)
        multihost_utils.sync_global_devices(f"checkpoint {path}")
        if path.exists():
            raise FileExistsError(f"the checkpoint {path} exists; nothing was overwritten. Resume from it, or move it away.")

    def _seal(self):
        """Called by Orbax, in its thread and in the first process, when all is written and not yet renamed: adds FILES."""
        path = self._path(self._saving)
        path = path.with_name(path.name + TEMPORARY)
        files = [file for file in path.glob("*/**/*") if file.is_file()]  # what lies beside the items Orbax still changes
        (path / FILES).write_text(json.dumps({str(file.relative_to(path)): _checksum(file) for file in files}))

    def _settle(self):
        """Waits for the running save, and removes the oldest checkpoints once it has succeeded."""
        if self._saving is None:
            return
        tick = self._saving
        try:
            self._orbax.wait_until_finished()
        except Exception as error:
            raise _failed(self._path(tick), error) from error
        finally:
            self._saving = None
        self._whole.add(tick)
        older = sorted(each for each in self._ticks() if each < tick and (self._path(each) / FILES).exists())
        if jax.process_index() == 0:
            for each in older[:max(0, len(older) - self._keep + 1)]:
                (self._path(each) / FILES).unlink()  # first: what is left when this is interrupted does not pass for whole
                shutil.rmtree(self._path(each))

    def _fault(self, tick):
        """Says in a few words what is wrong with a checkpoint; nothing for a whole one."""
        path = self._path(tick)
        if tick in self._whole:
            return ""
        try:
            files = json.loads((path / FILES).read_text())
        except FileNotFoundError:
            return f"it is incomplete, there is no {FILES}"
        except ValueError:
            return f"{FILES} is damaged"
        for name, checksum in files.items():
            if not (path / name).is_file():
                return f"{name} is missing"
            if _checksum(path / name) != checksum:
                return f"{name} is damaged"
        self._whole.add(tick)
        return ""


def _failed(path, error):
    return OSError(f"the checkpoint {path} was not written: {type(error).__name__}: {error}")


def _checksum(file):
    """CRC-32 of a file."""
    value = 0
    with open(file, "rb") as data:
        while block := data.read(1 << 24):
            value = zlib.crc32(block, value)
    return value


def _leaves(name, tree):
    """The leaves of a tree by their path, `agent/params/embed`, in the order of the tree."""
    leaves = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        key = "/".join([name, *(jax.tree_util.keystr((entry,), simple=True) for entry in path)])
        if not isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise TypeError(f"{key} is {leaf!r}; checkpoints take jax arrays of numbers. Put Python and numpy values into the "
                            "host's data, and random keys through jax.random.key_data.")
        if leaf.sharding is None:
            raise ValueError(f"{key} has no sharding; give jax.ShapeDtypeStruct(shape, dtype, sharding=...).")
        if key in leaves:
            raise ValueError(f"two leaves are called {key}.")
        leaves[key] = leaf
    return leaves


def _target(leaf):
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _describe(leaf):
    """float32[2, 3]"""
    return f"{leaf.dtype}{list(leaf.shape)}"


def _compare(path, saved, targets):
    """Raises ValueError if the leaves that were saved are not those that are wanted."""
    wanted = {key: _describe(leaf) for key, leaf in targets.items()}
    different = [key for key in saved | wanted if saved.get(key) != wanted.get(key)]
    if different:
        key = different[0]
        raise ValueError(f"the checkpoint {path} has {key} as {saved.get(key, 'nothing')}, this run has it as "
                         f"{wanted.get(key, 'nothing')} ({len(different)} of {len(saved | wanted)} arrays differ): the model, "
                         "its dtype or the optimizer was changed; use the configuration of the checkpoint, or another --workdir.")


def _plain(value, path):
    """A copy of plain data. Raises TypeError for what JSON would turn into something else or cannot hold."""
    if type(value) in _SCALARS:
        return value
    if type(value) is list:
        if all(type(each) in _SCALARS for each in value):  # most of the data: the tokens of a replay buffer
            return value.copy()
        return [_plain(each, f"{path}[{index}]") for index, each in enumerate(value)]
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: _plain(each, f"{path}.{key}") for key, each in value.items()}
    raise TypeError(f"{path} is {value!r:.80}, which a checkpoint cannot hold exactly; use None, bool, int, float, str, lists, "
                    "and dicts with string keys.")
