"""Checkpoints: a run as it was after an update, written while training goes on, and read back bit for bit.

A save holds training up for a copy into the host's memory; a thread then writes it to the disk (`engine/archive.py`).
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

from lambert.core.errors import DataError, LambertError, MachineError, UsageError
from lambert.core.files import identity, removed_message
from lambert.core.world import World
from lambert.engine import archive, state
from lambert.engine.archive import FOLDER, clean
from lambert.engine.device_memory import ran_out
from lambert.engine.precision import Precision
from lambert.engine.snapshot import Snapshot

__all__ = ["FOLDER", "Checkpoint", "Pause", "Saver", "check_room", "clean", "latest"]

_BEAT_SECONDS = 1.0
"""Between two words of the first rank to those that wait for its disk: well below a group's time-out."""
_WRITING = "writing"
MOST_FAILURES = 3
"""Saves in a row that may fail; ours. What a run does after that would be lost, too, for all it knows."""
_CHECKING_SECONDS = 3600.0
"""How long the others wait while the first rank reads checkpoints to check them: a large one on a slow disk takes
minutes. That it has ended they notice at once all the same."""

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
        moments = load_file(self.folder / archive.OPTIMIZER)
        state.restore(optimizer, model, moments, self.values["optimizer"], source=str(self.folder))
        precision.load(self.values["precision"])
        return dict(self.values["extra"])

    def restore_model(self, model: nn.Module) -> None:
        """Overwrites the weights alone."""
        saved, own = load_file(self.folder / archive.MODEL), state.tensors(model)
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

    def exchange(self) -> dict[str, Tensor]:
        """What the exchange of gradients had kept back, by name, on the host; empty where it keeps nothing."""
        kept: dict[str, Tensor] = load_file(self.folder / archive.EXCHANGE)
        return kept


@dataclass(frozen=True, slots=True)
class Pause:
    """How long a save held training up, in seconds."""

    seconds: float
    """Altogether; more than `copy_seconds` where the save before was still being written, or this one is waited for."""
    copy_seconds: float
    """For the copy into the host's memory."""


class Saver:
    """Writes the checkpoints of the run in the folder `run`, one at a time, and keeps the newest `keep`.

    The first rank writes. All ranks must call `save`, `flush` and `latest`; `report` and `close` concern each alone.
    The memory for a copy of all that is saved stays taken until `close`.
    """

    def __init__(self, run: Path, *, keep: int = 2, world: World | None = None) -> None:
        self._run, self._keep, self._world = run, keep, world or World()
        self._snapshots = {name: Snapshot() for name in (archive.MODEL, archive.OPTIMIZER, archive.EXCHANGE)}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._in_flight: Future[str] | None = None
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
    ) -> Pause:
        """Takes the bare `model` and the rest as they are after update `step`, and begins to write the checkpoint.

        `exchange` are tensors of the first rank; `extra` is anything JSON holds exactly. Where the disk is full or
        refuses, the next call of anything here logs a warning: the newest checkpoint already there stays as it is and
        training can go on. With `final` the writing is waited for, and that is a MachineError, on all ranks; so are
        MOST_FAILURES in a row, and a folder `run` that was removed or replaced meanwhile.
        """
        begun = time.perf_counter()
        self.flush()
        reason = self._world.broadcast_text(self._hopeless() if self._world.is_first else "")
        if reason:
            raise MachineError(reason)
        moments, described = state.moments(optimizer, model)
        tensors = {archive.MODEL: state.tensors(model), archive.OPTIMIZER: moments, archive.EXCHANGE: exchange or {}}
        values = {"format": archive.FORMAT, "step": step, "optimizer": described, "precision": precision.state()}
        text = json.dumps(values | {"extra": dict(extra or {})}, indent=1)
        copying = time.perf_counter()
        if self._world.is_first:
            self._in_flight = self._begin(step, tensors, text)
        copied = time.perf_counter()
        failure = self._outcome() if final else ""
        if failure:
            raise MachineError(failure)
        return Pause(time.perf_counter() - begun, copied - copying)

    def flush(self) -> str:
        """Waits until nothing is being written. Gives why what was could not be, on all ranks, or nothing."""
        failure = self._outcome()
        if self._world.is_first:
            _warn(failure)
        return failure

    def report(self) -> None:
        """Logs that a write failed, as soon as it has; waits for none."""
        if self._in_flight is not None and self._in_flight.done():
            _warn(self._ended())

    def latest(self, *, at_most: int | None = None) -> Checkpoint | None:
        """As the function `latest`, once nothing is being written any more; deletes older ones than are kept, which a
        killed run did not come to."""
        self.flush()
        found = latest(self._run, at_most=at_most, world=self._world)
        if self._world.is_first:
            with suppress(OSError):  # the next save tries again
                archive.prune(self._run, self._keep)
        return found

    def close(self) -> None:
        """Waits until nothing is being written, and gives the memory of the copies back."""
        _warn(self._ended())
        self._thread.shutdown()
        self._snapshots.clear()

    def _begin(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], text: str) -> "Future[str]":
        try:
            copies = {name: self._snapshots[name].take(named) for name, named in tensors.items()}
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            failed: Future[str] = Future()
            failed.set_result(f"{archive.place(self._run, step)} could not be written: no memory is left for a copy.")
            return failed
        return self._thread.submit(self._write, step, copies, text)

    def _write(self, step: int, copies: Mapping[str, Mapping[str, Tensor]], text: str) -> str:
        try:
            if self._newest and not archive.place(self._run, self._newest).is_dir():
                _log.warning("%s was deleted by somebody else.", archive.place(self._run, self._newest))
            archive.write(self._run, step, copies, text)
            self._newest = step
            archive.prune(self._run, self._keep)
        except (LambertError, OSError) as error:
            return str(error)
        return ""

    def _hopeless(self) -> str:
        """Why another save would be in vain, or nothing."""
        if self._failures >= MOST_FAILURES:
            return (
                f"{self._failures} checkpoints in a row could not be written. {self._failure} The run stops here; the "
                "newest checkpoint is intact, and the same command continues from it."
            )
        now = identity(self._run)
        if self._identity is None:
            self._identity = now
        return "" if now == self._identity else removed_message(self._run)

    def _outcome(self) -> str:
        """Why the write in flight failed, on all ranks, or nothing. However slow the disk of the first rank is, the
        others hear from it before the group's time-out."""
        while True:
            text = self._world.broadcast_text(self._ended(_BEAT_SECONDS))
            if text != _WRITING:
                return text

    def _ended(self, patience: float | None = None) -> str:
        """The same on this rank; `_WRITING` where it goes on after `patience` seconds."""
        write = self._in_flight
        if write is None:
            return ""
        if not wait([write], timeout=patience).done:
            return _WRITING
        self._in_flight = None
        self._failure = write.result()
        self._failures = self._failures + 1 if self._failure else 0
        return self._failure


def latest(run: Path, *, at_most: int | None = None, world: World | None = None) -> Checkpoint | None:
    """The newest checkpoint of `run` that is whole, or None where none was ever written.

    Damaged ones are renamed to `.corrupt` and logged with the reason. `at_most` rolls back: later checkpoints are
    deleted once an earlier one is found. All ranks must call it. Raises DataError where there are only damaged ones: a
    run never silently begins anew; UsageError where one is of another format.
    """
    world = world or World()
    answer: dict[str, Any] = {}
    if world.is_first:
        try:
            answer = {"step": archive.newest(run, at_most)}
        except (DataError, UsageError) as error:
            answer = {"error": str(error), "usage": isinstance(error, UsageError)}
    answer = json.loads(world.broadcast_text(json.dumps(answer), _CHECKING_SECONDS))
    if "error" in answer:
        raise (UsageError if answer["usage"] else DataError)(answer["error"])
    if answer["step"] is None:
        return None
    folder = archive.place(run, answer["step"])
    with world.together("reading the checkpoint"):
        if not folder.is_dir():
            raise MachineError(f"{folder} is not there: the run folder must lie on a disk that all machines share.")
        found = Checkpoint(folder, answer["step"], archive.read_state(folder))
    return found


def check_room(run: Path, model: nn.Module, moments: int = 2, *, keep: int = 1, saves: int = 2) -> None:
    """Raises MachineError unless all fits on the disk of `run` that will be there at once: of `saves` checkpoints with
    `moments` values a weight of `model` the `keep` newest and the one being written, then the model folder."""
    weights = sum(tensor.numel() * tensor.element_size() for tensor in state.tensors(model).values())
    one = weights * (1 + moments) + archive.SLACK_BYTES
    needed = max(min(keep + 1, saves) * one, min(keep, saves) * one + weights + archive.SLACK_BYTES)
    free = archive.free(run)
    written = sum(file.stat().st_size for file in (run / archive.FOLDER).glob("step-*/*"))
    if free + written < needed:
        raise MachineError(
            f"{run} has {archive.megabytes(free)} free, and {min(keep + 1, saves)} checkpoints of this model at once, "
            f"then the model, need {archive.megabytes(needed)}. Free some space, choose another output folder, or "
            "lower train.keep_checkpoints."
        )


def _warn(failure: str) -> None:
    if failure:
        _log.warning("%s Training goes on; the checkpoints before it are intact.", failure)
