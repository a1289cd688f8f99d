"""The folders of checkpoints on the disk. A checkpoint is complete or absent.

    checkpoints/step-000700/
        model.safetensors  optimizer.safetensors  exchange.safetensors  state.json  manifest.json

A checkpoint is written under a temporary name, flushed to the disk, and renamed. Its manifest contains the size and
SHA-256 of every file, which are compared on load. A damaged checkpoint is renamed, and the one before it is used.
Nothing is ever unpickled.
"""

import errno
import json
import logging
import os
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lambert.core.contents import sha256
from lambert.core.errors import DataError, MachineError, UsageError
from lambert.core.files import atomic_folder, delete_folder, make_folder, read_file, remedy, remove_all_leftovers

FOLDER = "checkpoints"
FORMAT = 3
"""Version of the layout described above. Checkpoints of other versions are refused."""

MODEL, OPTIMIZER, EXCHANGE, STATE = "model.safetensors", "optimizer.safetensors", "exchange.safetensors", "state.json"
FILES = (MODEL, OPTIMIZER, EXCHANGE, STATE)
_MANIFEST = "manifest.json"
_TENSORS = (MODEL, OPTIMIZER, EXCHANGE)

SLACK_BYTES = 1 << 20
"""Disk space for everything but tensors: state.json, the manifest and headers."""
_MAX_TEXT_BYTES = 1 << 24
"""Lambert never writes a longer state.json or manifest: both name the parameters, but contain no values of them."""

_log = logging.getLogger("lambert.checkpoint")


def folder_of(run: Path, step: int) -> Path:
    """Returns the folder of checkpoint `step` of a run, whether or not it exists."""
    return run / FOLDER / f"step-{step:06d}"


def write(run: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: str) -> None:
    """Writes checkpoint `step` of a run. Does nothing if that checkpoint exists and is undamaged.

    If the disk has too little space, older checkpoints are deleted first, except the newest one, provided that this
    frees enough.

    Args:
        tensors: Host tensors by file and name.
        state: The text of state.json.

    Raises:
        MachineError: The disk refuses the write or has too little space. Existing checkpoints are unchanged.
    """
    target = folder_of(run, step)
    needed = sum(t.numel() * t.element_size() for named in tensors.values() for t in named.values()) + SLACK_BYTES
    try:
        if target.exists():
            damage = _damage(target)
            if damage is None:
                return
            _set_aside(target, damage)
        make_folder(target.parent)
        if not _make_room(run, needed):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with atomic_folder(target) as aside:
            for name in _TENSORS:
                write_tensors(aside / name, tensors[name])
            (aside / STATE).write_text(state, encoding="utf-8")
            files = [
                {"name": name, "bytes": (aside / name).stat().st_size, "sha256": sha256(aside / name)} for name in FILES
            ]
            manifest = {"format": FORMAT, "step": step, "torch": torch.__version__, "files": files}
            (aside / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        room = f"{megabytes(needed)} needed, {megabytes(count_free(run))} free"
        reason = str(error).rstrip(".")
        raise MachineError(f"{target} could not be written: {reason}; {room}. {disk_remedy(error)}.") from error


def disk_remedy(error: OSError | SafetensorError) -> str:
    """Returns what helps if weights could not be written, as a sentence without a full stop."""
    advice = remedy(error, "disk") if isinstance(error, OSError) else ""
    return advice or "Check the space and the permissions of that disk"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors to a new file with the permissions of any other new file. safetensors itself makes files that
    only their owner can read."""
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path)
    path.chmod(stat.S_IMODE(mode))


def _make_room(run: Path, needed: int) -> bool:
    """Returns whether `needed` bytes are free, after deleting checkpoints older than the newest one if that helps."""
    lacking = needed - count_free(run)
    if lacking <= 0:
        return True
    older = [path for _, path in _steps(run / FOLDER)[:-1]]
    if sum(file.stat().st_size for path in older for file in path.iterdir()) < lacking:
        return False
    for path in older:
        if count_free(run) < needed:
            _log.warning("The disk has no room for another checkpoint: %s was deleted.", path)
            delete_folder(path)
    return count_free(run) >= needed


def find_newest(run: Path, at_most: int | None) -> int | None:
    """Returns the update of the newest undamaged checkpoint up to update `at_most`, and deletes later checkpoints;
    returns None if there are no checkpoints.

    Raises DataError if all checkpoints are damaged, UsageError if one has another format.
    """
    folder = run / FOLDER
    for step, path in reversed(_steps(folder)):
        if at_most is not None and step > at_most:
            continue
        damage = _damage(path)
        if damage is None:
            for later, abandoned in _steps(folder):
                if later > step:
                    delete_folder(abandoned)
            return step
        _set_aside(path, damage)
    corrupt = sorted(path.name for path in folder.glob("step-*.corrupt*"))
    if corrupt:
        raise DataError(
            f"{folder} holds only damaged checkpoints ({', '.join(corrupt)}). Restore one from a copy, or start "
            "again with --restart-damaged."
        )
    return None


def find_last(run: Path) -> int:
    """Returns the update of the newest checkpoint without checking it for damage; 0 if there is none."""
    return max((step for step, _ in _steps(run / FOLDER)), default=0)


def prune(run: Path, keep: int) -> None:
    """Deletes all checkpoints except the newest `keep`, and at least one."""
    for _, path in _steps(run / FOLDER)[: -max(1, keep)]:
        delete_folder(path)


def clean(run: Path) -> None:
    """Removes files that a killed process left incomplete. The caller must hold the lock of the run."""
    remove_all_leftovers(run)
    remove_all_leftovers(run / FOLDER)
    for left_over in (run / FOLDER).glob(".tmp-step-*"):  # from earlier versions
        shutil.rmtree(left_over, ignore_errors=True)


def count_free(run: Path) -> int:
    """Returns the number of free bytes on the disk of a run."""
    return shutil.disk_usage(run).free


def megabytes(count: int) -> str:
    """Returns a number of bytes as text, in MB."""
    return f"{count / 1e6:,.1f} MB"


def _steps(folder: Path) -> list[tuple[int, Path]]:
    matches = [(re.fullmatch(r"step-(\d+)", path.name), path) for path in folder.glob("step-*")]
    return sorted((int(match[1]), path) for match, path in matches if match and path.is_dir())


def _damage(path: Path) -> str | None:
    """Returns what is wrong with a checkpoint, or None. Even for a hostile checkpoint, this runs no code from it and
    takes little memory."""
    try:
        manifest = _read_text(path / _MANIFEST)
        if manifest["format"] != FORMAT:
            raise UsageError(
                f"{path} has checkpoint format {manifest['format']}, and this version reads {FORMAT}. Continue "
                "the run with the version that wrote it."
            )
        if {entry["name"] for entry in manifest["files"]} != set(FILES):
            return f"{_MANIFEST} does not name {', '.join(FILES)}"
        for entry in manifest["files"]:
            file = path / entry["name"]
            if file.stat().st_size != entry["bytes"]:
                return f"{file.name} has {file.stat().st_size} bytes instead of {entry['bytes']}"
            if sha256(file) != entry["sha256"]:
                return f"{file.name} does not have the SHA-256 of the manifest"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"{_MANIFEST} cannot be read ({type(error).__name__}: {error})"
    return _invalid_content(path)


def _invalid_content(path: Path) -> str | None:
    """Returns why the files cannot be used although they match their manifest, or None: another program wrote them."""
    for name in _TENSORS:
        try:
            with safe_open(path / name, framework="pt"):
                pass
        except SafetensorError as error:
            return f"{name} is not a safetensors file ({error})"
    try:
        step = int(_read_text(path / STATE)["step"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"{STATE} cannot be read ({type(error).__name__}: {error})"
    return None if path.name == folder_of(path, step).name else f"{STATE} is of update {step}"


def _read_text(path: Path) -> Any:
    size = path.stat().st_size
    if size > _MAX_TEXT_BYTES:
        raise ValueError(f"{size} bytes are more than a checkpoint has")
    return json.loads(read_file(path).decode())


def _set_aside(path: Path, damage: str) -> None:
    aside, copy = path.with_name(f"{path.name}.corrupt"), 1
    while aside.exists():
        copy += 1
        aside = path.with_name(f"{path.name}.corrupt-{copy}")
    path.rename(aside)
    _log.warning("Checkpoint %s is damaged: %s. It was renamed to %s.", path, damage, aside.name)
