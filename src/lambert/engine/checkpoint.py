"""Checkpoints: complete or absent, never half.

    checkpoints/step-000700/    model.safetensors  optimizer.safetensors  state.json  manifest.json

A checkpoint is written under another name, flushed to the disk, and renamed; the manifest holds the size and SHA-256 of
every file and is checked on load. A damaged one is set aside and the one before it is used. Nothing is ever unpickled.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer

from lambert.core.errors import DataError, LambertError, MachineError, UsageError
from lambert.core.files import sync
from lambert.engine import state
from lambert.engine.dist import World
from lambert.engine.precision import Precision

FOLDER = "checkpoints"
FORMAT = 2
"""Number of the layout described above; only a reader of the same number reads it."""

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")

_SLACK_BYTES = 1 << 20
"""Asked for beyond the tensors: state.json, the manifest and headers."""

_log = logging.getLogger("lambert.checkpoint")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint whose files are what its manifest says."""

    folder: Path
    step: int
    """Updates done when it was saved."""
    values: Mapping[str, Any]
    """What state.json holds."""

    def restore(self, model: nn.Module, optimizer: Optimizer, precision: Precision) -> dict[str, Any]:
        """Overwrites weights, moments, options of the optimizer and the loss scale, bit for bit; gives the `extra` of
        `save`.

        Raises UsageError where the checkpoint is of another model or optimizer.
        """
        self.restore_model(model)
        moments = load_file(self.folder / "optimizer.safetensors")
        state.restore(optimizer, model, moments, self.values["optimizer"], source=str(self.folder))
        precision.load(self.values["precision"])
        return dict(self.values["extra"])

    def restore_model(self, model: nn.Module) -> None:
        """Overwrites the weights alone."""
        saved, own = load_file(self.folder / "model.safetensors"), state.tensors(model)
        for name in [*own, *saved]:
            if name not in saved or name not in own or saved[name].shape != own[name].shape:
                shapes = [str(list(side[name].shape)) if name in side else "absent" for side in (saved, own)]
                raise UsageError(
                    f"{self.folder} is of another model: {name} is {shapes[0]} there and {shapes[1]} here. "
                    "Continue with the recipe it was written by, or choose another output folder."
                )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(saved[name])


def save(
    run: Path,
    step: int,
    *,
    model: nn.Module,
    optimizer: Optimizer,
    precision: Precision,
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
    final: bool = False,
    world: World | None = None,
) -> Path | None:
    """Writes checkpoint `step` of the bare `model` into the folder `run`, and keeps the newest `keep`.

    `extra` is anything JSON holds exactly. Gives the folder, or None after a logged warning where the disk is full or
    refuses: the checkpoints already there stay as they are and training can go on. With `final` that is a MachineError.
    The first rank writes; all must call it.
    """
    world = world or World()
    target = run / FOLDER / f"step-{step:06d}"
    failure = ""
    if world.is_first:
        try:
            _write(target, step, model=model, optimizer=optimizer, precision=precision, extra=extra or {})
            _prune(target.parent, keep)
        except (OSError, SafetensorError) as error:
            failure = _explain(target, error)
            if not final:
                _log.warning("%s Training goes on; the checkpoints before it are intact.", failure)
    failure = world.broadcast_text(failure)
    if failure and final:
        raise MachineError(failure)
    return None if failure else target


def latest(run: Path, *, at_most: int | None = None, world: World | None = None) -> Checkpoint | None:
    """The newest checkpoint of `run` that is whole, or None where none was ever written.

    Damaged ones are renamed to `.corrupt` and logged with the reason. `at_most` rolls back: later checkpoints are
    deleted once an earlier one is found. Raises DataError where there are only damaged ones: a run never silently
    begins anew.
    """
    world = world or World()
    answer: dict[str, Any] = {}
    if world.is_first:
        try:
            answer = {"step": _newest(run / FOLDER, at_most)}
        except LambertError as error:
            answer = {"error": str(error)}
    answer = json.loads(world.broadcast_text(json.dumps(answer)))
    if "error" in answer:
        raise DataError(answer["error"])
    if answer["step"] is None:
        return None
    folder = run / FOLDER / f"step-{answer['step']:06d}"
    return Checkpoint(folder, answer["step"], json.loads((folder / "state.json").read_text(encoding="utf-8")))


def clean(run: Path) -> None:
    """Removes what a killed process left half-written. Only for the process that holds the run's lock."""
    for left_over in (run / FOLDER).glob(".tmp-*"):
        shutil.rmtree(left_over, ignore_errors=True)


def check_room(run: Path, model: nn.Module, moments: int = 2) -> None:
    """Raises MachineError unless two checkpoints of `model` with `moments` values a weight fit on the disk of `run`."""
    weights = sum(tensor.numel() * tensor.element_size() for tensor in state.tensors(model).values())
    needed = 2 * (weights * (1 + moments) + _SLACK_BYTES)
    free = shutil.disk_usage(run).free
    written = sum(file.stat().st_size for file in (run / FOLDER).glob("step-*/*"))
    if free + written < needed:
        raise MachineError(
            f"{run} has {_megabytes(free)} free, and two checkpoints of this model need {_megabytes(needed)}. "
            "Free some space or choose another output folder."
        )


def _write(
    target: Path,
    step: int,
    *,
    model: nn.Module,
    optimizer: Optimizer,
    precision: Precision,
    extra: Mapping[str, Any],
) -> None:
    if target.exists():
        damage = _damage(target)
        if damage is None:
            return
        _set_aside(target, damage)
    weights, (moments, described) = state.tensors(model), state.moments(optimizer, model)
    values = {
        "format": FORMAT,
        "step": step,
        "optimizer": described,
        "precision": precision.state(),
        "extra": dict(extra),
    }
    needed = sum(t.numel() * t.element_size() for t in (*weights.values(), *moments.values())) + _SLACK_BYTES
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise OSError(f"no space left on device: {_megabytes(needed)} needed, {_megabytes(free)} free")
    aside = target.with_name(f".tmp-{target.name}-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        save_file(state.on_host(weights), aside / "model.safetensors")
        save_file(state.on_host(moments), aside / "optimizer.safetensors")
        (aside / "state.json").write_text(json.dumps(values, indent=1), encoding="utf-8")
        files = [_described(aside / name) for name in FILES]
        manifest = {"format": FORMAT, "step": step, "torch": torch.__version__, "files": files}
        (aside / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for path in (*sorted(aside.iterdir()), aside):
            sync(path)
        aside.rename(target)
        sync(target.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _described(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {
            "name": path.name,
            "bytes": path.stat().st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


def _steps(folder: Path) -> list[tuple[int, Path]]:
    matches = [(re.fullmatch(r"step-(\d+)", path.name), path) for path in folder.glob("step-*")]
    return sorted((int(match[1]), path) for match, path in matches if match and path.is_dir())


def _prune(folder: Path, keep: int) -> None:
    for _, path in _steps(folder)[: -max(1, keep)]:
        _remove(path)


def _remove(path: Path) -> None:
    """Renamed first, so that a kill in the middle leaves no half checkpoint under a good name."""
    aside = path.with_name(f".tmp-old-{path.name}-{os.getpid()}")
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _newest(folder: Path, at_most: int | None) -> int | None:
    for step, path in reversed(_steps(folder)):
        if at_most is not None and step > at_most:
            continue
        damage = _damage(path)
        if damage is None:
            for later, abandoned in _steps(folder):
                if later > step:
                    _remove(abandoned)
            return step
        _set_aside(path, damage)
    corrupt = sorted(path.name for path in folder.glob("step-*.corrupt*"))
    if corrupt:
        raise DataError(
            f"{folder} holds only damaged checkpoints ({', '.join(corrupt)}). Restore one from a copy, or delete that "
            "folder to begin anew."
        )
    return None


def _damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise UsageError(
                f"{path} has checkpoint format {manifest['format']}, and this version reads {FORMAT}: continue it "
                "with the version that wrote it."
            )
        if {entry["name"] for entry in manifest["files"]} != set(FILES):
            return f"manifest.json does not name {', '.join(FILES)}"
        for entry in manifest["files"]:
            file = path / entry["name"]
            if file.stat().st_size != entry["bytes"]:
                return f"{file.name} has {file.stat().st_size} bytes instead of {entry['bytes']}"
            if _described(file)["sha256"] != entry["sha256"]:
                return f"{file.name} does not have the SHA-256 of the manifest"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"manifest.json cannot be read ({type(error).__name__}: {error})"
    return None


def _set_aside(path: Path, damage: str) -> None:
    aside, copy = path.with_name(f"{path.name}.corrupt"), 1
    while aside.exists():
        copy += 1
        aside = path.with_name(f"{path.name}.corrupt-{copy}")
    path.rename(aside)
    _log.warning("Checkpoint %s is damaged: %s. It was renamed to %s; an older one is used.", path, damage, aside.name)


def _explain(target: Path, error: Exception) -> str:
    return f"{target} could not be written: {str(error).rstrip('.')}. Free some space on that disk."


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
