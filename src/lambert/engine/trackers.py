"""Trackers: programs that show the rows of metrics.jsonl beside those of other runs.

A tracker takes rows, and writes in the run folder alone. TensorBoard's writer is a part of this process. MLflow and
Weights & Biases, which change settings of a process, start threads and write to the home folder, are in one of their
own (`tracker_process`).
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from lambert.core.errors import UsageError
from lambert.core.files import json_text
from lambert.core.registry import Kind, choose, lookup

KIND = Kind((Path, int), methods={"row": 1, "close": 0})
CONTROL = ("step", "time")
"""Keys of a row that are no numbers to show."""


class Tracker(Protocol):
    """Takes the rows of a run; made from the run folder and the update after which the run continues."""

    def row(self, row: Mapping[str, Any]) -> None:
        """Takes a row of metrics.jsonl. Raises OSError if it cannot be written."""

    def close(self) -> None:
        """Writes what is left."""


class TensorBoard:
    """Events for TensorBoard, in tensorboard/."""

    def __init__(self, run: Path, start: int) -> None:
        if not (find_spec("tensorboard")):
            raise _missing("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=start + 1)

    def row(self, row: Mapping[str, Any]) -> None:
        for key, value in numbers(row).items():
            self._writer.add_scalar(key, value, row["step"])

    def close(self) -> None:
        self._writer.close()


class Apart:
    """A tracker of `tracker_process`, which gets the rows through a pipe. Its output is in NAME/tracker.txt. It ignores
    the signals of the run, and ends when the run does, however that ends."""

    def __init__(self, name: str, run: Path, start: int) -> None:
        if not find_spec(name):
            raise _missing(name)
        self._name, self._output = name, run / name / "tracker.txt"
        self._output.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "lambert.engine.tracker_process", name, str(run.absolute()), str(start)]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
                env=os.environ | ENVIRONMENT | {"WANDB_CACHE_DIR": str(run.absolute() / "wandb" / "cache")},
            )  # fmt: skip

    def row(self, row: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json_text(dict(row)).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise OSError(error.errno, f"{self._name} ended", str(self._output)) from error

    def close(self) -> None:
        self._process.communicate()
        if self._process.returncode:
            raise OSError(0, f"{self._name} ended with code {self._process.returncode}", str(self._output))


ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
    "DO_NOT_TRACK": "true",
}
"""Variables of the process of a tracker: no network, and plain files."""
TRACKERS: dict[str, Callable[[Path, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": partial(Apart, "mlflow"),
    "wandb": partial(Apart, "wandb"),
}


def check_trackers(names: Sequence[str]) -> None:
    """Raises UsageError if a tracker is unknown or named twice."""
    for name in names:
        if ":" not in name:
            choose(TRACKERS, name, "log.trackers")
        if names.count(name) > 1:
            raise UsageError(f"log.trackers names {name} twice.")


def started(names: Sequence[str], run: Path, start: int) -> list[Tracker]:
    """Returns the trackers of a run. Raises UsageError if a package is missing."""
    return [lookup(TRACKERS, name, "log.trackers", KIND)(run, start) for name in names]


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a row that a tracker shows."""
    return {key: value for key, value in row.items() if key not in CONTROL and isinstance(value, int | float)}


def _missing(name: str) -> UsageError:
    return UsageError(f"log.trackers names {name}, which is not installed: pip install 'lambert-bert[{name}]'.")
