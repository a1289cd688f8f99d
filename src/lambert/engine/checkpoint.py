"""Checkpoints: the state of a run after an update, written while training continues, and restored bit for bit.

A save delays training only by a copy to host memory. A thread then writes the copy to the disk (`engine/archive.py`).
"""

import json
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from lambert.core.errors import LambertError, MachineError, UsageError
from lambert.core.files import explain_removal, identity, read_file
from lambert.core.world import World
from lambert.engine import archive, state
from lambert.engine.device import ran_out
from lambert.engine.precision import Precision

_POLL_SECONDS = 1.0
"""Interval at which rank 0 reports to the waiting ranks that its write continues; far below the time-out of a
collective."""
_WRITING = "writing"
MAX_FAILURES = 3
"""Number of failed saves in a row after which a run stops, because its further work would be lost too. The value is our
choice."""
_CHECKING_SECONDS = 3600.0
"""How long the other ranks wait while rank 0 checks checkpoints, which takes minutes for a large one on a slow disk. If
rank 0 exits, they notice at once."""

_log = logging.getLogger("lambert.checkpoint")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint whose files match its manifest."""

    folder: Path
    step: int
    """Number of updates done when the checkpoint was saved."""
    values: Mapping[str, Any]
    """The content of state.json."""

    def restore(self, model: nn.Module, optimizer: Optimizer, precision: Precision) -> dict[str, Any]:
        """Restores weights, moments, options of the optimizer and the loss scale, bit for bit. Returns the `extra` that
        was given to `Saver.save`.

        Raises UsageError if the checkpoint belongs to another model or optimizer.
        """
        self.restore_model(model)
        moments = load_file(self.folder / archive.OPTIMIZER)
        state.restore(optimizer, model, moments, self.values["optimizer"], source=str(self.folder))
        precision.load(self.values["precision"])
        return dict(self.values["extra"])

    def restore_model(self, model: nn.Module) -> None:
        """Restores the weights and buffers only. Raises UsageError if they belong to another model."""
        saved, own = load_file(self.folder / archive.MODEL), state.tensors(model)
        for name in [*own, *saved]:
            if name not in saved or name not in own or saved[name].shape != own[name].shape:
                shapes = [str(list(side[name].shape)) if name in side else "absent" for side in (saved, own)]
                raise UsageError(
                    f"{self.folder} is of another model: {name} is {shapes[0]} there and {shapes[1]} here. "
                    "Continue with the recipe that wrote it, or choose another output folder."
                )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(saved[name])

    def exchange(self) -> dict[str, Tensor]:
        """Returns the state of the gradient exchange as host tensors by name; empty for a method without state."""
        found: dict[str, Tensor] = load_file(self.folder / archive.EXCHANGE)
        return found


class Saver:
    """Writes the checkpoints of the run in the folder `run`, one at a time, and keeps the newest `keep`.

    Rank 0 writes. All ranks must call `save`, `flush` and `latest` together; `report` and `close` are local. The host
    memory for one copy of the state stays allocated until `close`.
    """

    def __init__(self, run: Path, *, keep: int = 2, world: World | None = None) -> None:
        self._run, self._keep, self._world = run, keep, world or World()
        self._snapshots = {name: Snapshot() for name in (archive.MODEL, archive.OPTIMIZER, archive.EXCHANGE)}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._in_flight: Future[None] | None = None
        self._identity, self._newest = identity(run), 0
        self._failures, self._failure = 0, ""

    def save(
        self,
        step: int,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        precision: Precision,
        exchange: Mapping[str, Tensor] | None = None,
        extra: Mapping[str, Any] | None = None,
        final: bool = False,
    ) -> float:
        """Copies the state after update `step` to host memory and starts to write the checkpoint. Returns for how many
        seconds this delayed training.

        If the disk is full or refuses the write, a later call of any method logs a warning; earlier checkpoints stay
        intact, and training can continue.

        Args:
            model: The bare model, without wrappers.
            exchange: State of the gradient exchange; only that of rank 0 is saved.
            extra: Values that JSON represents exactly.
            final: Wait for the write, and raise MachineError if it fails.

        Raises:
            MachineError: On all ranks, after MAX_FAILURES failed saves in a row, or if the folder `run` was removed or
                replaced.
        """
        begun = time.perf_counter()
        self.flush()
        self._world.run_on_first(self._check_disk)
        moments, described = state.moments(optimizer, model)
        tensors = {archive.MODEL: state.tensors(model), archive.OPTIMIZER: moments, archive.EXCHANGE: exchange or {}}
        values = {"format": archive.FORMAT, "step": step, "optimizer": described, "precision": precision.state()}
        text = json.dumps(values | {"extra": dict(extra or {})}, indent=1)
        if self._world.is_first:
            self._in_flight = self._begin(step, tensors, text)
        if final and (failure := self._outcome()):
            raise MachineError(failure)
        return time.perf_counter() - begun

    def flush(self) -> str:
        """Waits for the write in flight. Returns on all ranks why it failed; "" if it succeeded."""
        failure = self._outcome()
        if self._world.is_first:
            _warn(failure)
        return failure

    def report(self) -> None:
        """Logs a warning if the write in flight has failed. Does not wait."""
        if self._in_flight is not None and self._in_flight.done():
            _warn(self._result())

    def latest(self, *, at_most: int | None = None) -> Checkpoint | None:
        """Waits for the write in flight, then does what the function `latest` does, and deletes checkpoints that a
        killed run left beyond the newest `keep`."""
        self.flush()
        found = latest(self._run, at_most=at_most, world=self._world)
        if self._world.is_first:
            with suppress(OSError):  # the next save tries again
                archive.prune(self._run, self._keep)
        return found

    def close(self) -> None:
        """Waits for the write in flight, ends the thread and frees the memory of the copies."""
        _warn(self._result())
        self._thread.shutdown()
        self._snapshots.clear()

    def _begin(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], text: str) -> "Future[None]":
        try:
            copies = {name: self._snapshots[name].take(named) for name, named in tensors.items()}
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            folder, failed = archive.folder_of(self._run, step), Future[None]()
            failed.set_exception(
                MachineError(
                    f"{folder} could not be written: no memory is left for a copy of the weights. Free some memory."
                )
            )
            return failed
        return self._thread.submit(self._write, step, copies, text)

    def _write(self, step: int, copies: Mapping[str, Mapping[str, Tensor]], text: str) -> None:
        if self._newest and not archive.folder_of(self._run, self._newest).is_dir():
            _log.warning("%s was deleted by another program.", archive.folder_of(self._run, self._newest))
        archive.write(self._run, step, copies, text)
        self._newest = step
        archive.prune(self._run, self._keep)

    def _check_disk(self) -> None:
        """Raises MachineError if the run must stop instead of saving again."""
        if self._failures >= MAX_FAILURES:
            raise MachineError(
                f"{self._failures} checkpoints in a row could not be written. {self._failure} The run stops. The "
                "newest checkpoint is intact, and the same command continues from it."
            )
        now = identity(self._run)
        self._identity = self._identity or now
        if now != self._identity:
            raise MachineError(explain_removal(self._run))

    def _outcome(self) -> str:
        """Returns on all ranks why the write in flight failed, or "". While the write continues, rank 0 sends a message
        every `_POLL_SECONDS`, so a slow disk does not cause a time-out of the collective."""
        while True:
            text = self._world.broadcast_text(self._result(_POLL_SECONDS))
            if text != _WRITING:
                return text

    def _result(self, patience: float | None = None) -> str:
        """Returns why this rank's write failed, or ""; `_WRITING` if the write is not done after `patience` seconds."""
        write = self._in_flight
        if write is None:
            return ""
        if not wait([write], timeout=patience).done:
            return _WRITING
        self._in_flight = None
        error = write.exception()
        if error is not None and not isinstance(error, LambertError | OSError):
            raise error
        self._failure = "" if error is None else str(error)
        self._failures = self._failures + 1 if self._failure else 0
        return self._failure


def latest(run: Path, *, at_most: int | None = None, world: World | None = None) -> Checkpoint | None:
    """Returns the newest undamaged checkpoint of `run`; None if no checkpoint was ever written. All ranks must call
    this function together.

    Damaged checkpoints are renamed to `.corrupt`, and the reason is logged.

    Args:
        at_most: For a roll back: the newest checkpoint up to this update is returned, and later ones are deleted.

    Raises:
        DataError: All checkpoints are damaged. A run never starts over unless it is told to.
        UsageError: A checkpoint has another format.
    """
    world = world or World()
    step = world.run_on_first(lambda: archive.find_newest(run, at_most), _CHECKING_SECONDS)
    if step is None:
        return None
    folder = archive.folder_of(run, step)
    with world.fail_together("reading the checkpoint"):
        if not folder.is_dir():
            raise MachineError(f"{folder} is missing here. The run folder must be on a disk that all nodes share.")
        found = Checkpoint(folder, step, json.loads(read_file(folder / archive.STATE)))
    return found


def check_disk_space(
    run: Path, model: nn.Module, moments: int = 2, *, keep: int = 1, saves: int = 2, copies: int = 0
) -> None:
    """Raises MachineError if the disk of `run` has too little space for what the run keeps at once: the `keep` newest
    of its `saves` checkpoints and the one being written, or later the model folder instead of the latter.

    Args:
        moments: Number of float32 values per weight in a checkpoint besides the weight itself.
        copies: Number of files with the weights alone that the run keeps at once.
    """
    weights = sum(tensor.numel() * tensor.element_size() for tensor in state.tensors(model).values())
    one = weights * (1 + moments) + archive.SLACK_BYTES
    needed = max(min(keep + 1, saves) * one, min(keep, saves) * one + weights + archive.SLACK_BYTES)
    needed += copies * (weights + archive.SLACK_BYTES)
    free = archive.count_free(run)
    written = sum(file.stat().st_size for file in (run / archive.FOLDER).glob("step-*/*"))
    if free + written < needed:
        raise MachineError(
            f"{run} has {archive.megabytes(free)} free, and {min(keep + 1, saves)} checkpoints of this model and "
            f"the model folder need {archive.megabytes(needed)}. Free some space, choose another output folder, or "
            "lower train.keep_checkpoints."
        )


def _warn(failure: str) -> None:
    if failure:
        _log.warning("%s Training continues, and earlier checkpoints are intact.", failure)


class Snapshot:
    """Copies named tensors to host memory, which the next copy reuses, so that the kernel allocates its pages once.
    Copies of GPU tensors are in pinned memory."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns contiguous copies of the tensors on the host. The next call overwrites them."""
        self._kept = {name: self._buffer(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._kept[name].copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return self._kept

    def _buffer(self, name: str, tensor: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is not None and (kept.shape, kept.dtype) == (tensor.shape, tensor.dtype):
            return kept
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
