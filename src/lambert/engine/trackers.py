"""Trackers: programs that show the rows of metrics.jsonl beside those of other runs.

A tracker receives rows and writes only to the run folder. TensorBoard's writer runs in this process. MLflow and Weights
& Biases change settings of their process, start threads and write to the home folder, so each runs in a subprocess. It
reads rows as lines of JSON from standard input: `python -m lambert.engine.trackers NAME RUN`.
"""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from lambert.core.errors import MachineError, UsageError
from lambert.core.files import json_text, open_regular
from lambert.core.registry import Kind, choose, lookup

_log = logging.getLogger("lambert.trackers")
KIND = Kind((Path, int), methods={"row": 1, "close": 0})
CONTROL = ("step", "time")
"""Keys of a row that trackers do not show."""
_MOST_UNSENT = 1_000_000
"""Bytes of rows that are kept while the subprocess does not read them."""
_LONGEST_END = 30.0
"""Seconds that a subprocess has to write the remaining rows when the run ends."""


class Tracker(Protocol):
    """Receives the rows of a run. It is built from the run folder and the update after which the run continues. After
    an exception it is not called again."""

    def row(self, row: Mapping[str, Any]) -> None:
        """Receives a row of metrics.jsonl."""

    def close(self) -> None:
        """Writes the remaining rows."""


class TensorBoard:
    """Events for TensorBoard, in tensorboard/."""

    def __init__(self, run: Path, start: int) -> None:
        if not (find_spec("tensorboard")):
            raise _explain_missing("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=start + 1)

    def row(self, row: Mapping[str, Any]) -> None:
        for key, value in numbers(row).items():
            self._writer.add_scalar(key, value, row["step"])

    def close(self) -> None:
        self._writer.close()


class SubprocessTracker:
    """A tracker in a subprocess, which reads the rows from a pipe. Its output is in NAME/tracker.txt. It ignores the
    signals of the run and ends with the run, because the pipe is then closed. It cannot remove rows. Training never
    waits for it: rows for which the pipe has no room are kept, up to a limit, until the next call."""

    def __init__(self, name: str, run: Path) -> None:
        if not find_spec(name):
            raise _explain_missing(name)
        self._name, self._output = name, run / name / "tracker.txt"
        self._output.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "lambert.engine.trackers", name, str(run.absolute())]
        with open_regular(self._output, "ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
                env=os.environ | ENVIRONMENT | {"WANDB_CACHE_DIR": str(run.absolute() / "wandb" / "cache")},
            )  # fmt: skip
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        os.set_blocking(self._pipe.fileno(), False)
        self._unsent, self._drops = bytearray(), False

    def row(self, row: Mapping[str, Any]) -> None:
        if len(self._unsent) < _MOST_UNSENT:
            self._unsent += json_text(dict(row)).encode() + b"\n"
        elif not self._drops:
            self._drops = True
            _log.warning("The tracker %s does not read its rows: it gets only some of the following rows.", self._name)
        try:
            while self._unsent:
                del self._unsent[: os.write(self._pipe.fileno(), self._unsent)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.close()
            raise

    def close(self) -> None:
        try:
            self._process.communicate(bytes(self._unsent), _LONGEST_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._pipe.close()
            self._process.wait()
            raise MachineError(f"{self._name} did not end within {_LONGEST_END:g} s. See {self._output}.") from None
        if self._process.returncode:
            raise MachineError(f"{self._name} ended with code {self._process.returncode}. See {self._output}.")


ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
    "DO_NOT_TRACK": "true",
}
"""Environment variables of the subprocess: no network access, and plain files."""
TRACKERS: dict[str, Callable[[Path, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": lambda run, start: SubprocessTracker("mlflow", run),
    "wandb": lambda run, start: SubprocessTracker("wandb", run),
}


def check_trackers(names: Sequence[str]) -> None:
    """Raises UsageError if a tracker is unknown or named twice."""
    for name in names:
        if ":" not in name:
            choose(TRACKERS, name, "log.trackers")
        if names.count(name) > 1:
            raise UsageError(f"log.trackers names {name} twice.")


def start_trackers(names: Sequence[str], run: Path, start: int) -> dict[str, Tracker]:
    """Returns the trackers of a run by name. Raises UsageError if a package is missing."""
    return {name: lookup(TRACKERS, name, "log.trackers", KIND)(run, start) for name in names}


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a row that a tracker shows."""
    return {key: value for key, value in row.items() if key not in CONTROL and isinstance(value, int | float)}


def _explain_missing(name: str) -> UsageError:
    return UsageError(f"log.trackers names {name}, which is not installed: pip install 'lambert-bert[{name}]'.")


class Mlflow:
    """An MLflow run in the file store mlflow/ of the run folder, which a continued run extends."""

    def __init__(self, run: Path) -> None:
        from mlflow import entities
        from mlflow.tracking import MlflowClient

        self._metric, self._client = entities.Metric, MlflowClient((run / "mlflow").as_uri())
        experiment = self._client.get_experiment_by_name("lambert")
        place = experiment.experiment_id if experiment else self._client.create_experiment("lambert")
        found = self._client.search_runs([place])
        self._run = (found[0] if found else self._client.create_run(place, run_name=run.name)).info.run_id
        self._client.update_run(self._run, status="RUNNING")

    def row(self, row: Mapping[str, Any]) -> None:
        at = int(1000 * row.get("time", time.time()))
        # A metric is a file, so `loss` and `loss/mlm` could not both exist.
        metrics = [self._metric(key.replace("/", "."), value, at, row["step"]) for key, value in numbers(row).items()]
        self._client.log_batch(self._run, metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class Wandb:
    """An offline run of Weights & Biases in wandb/ of the run folder; `wandb sync` uploads it. Each process of a run
    that continues makes a folder with the same id."""

    def __init__(self, run: Path) -> None:
        import wandb

        own = hashlib.sha256(str(run).encode()).hexdigest()[:16]
        options = wandb.Settings(
            mode="offline", root_dir=str(run), run_id=own, run_name=run.name, project="lambert", resume="allow",
            console="off", silent=True, disable_git=True, save_code=False, x_disable_meta=True, x_disable_stats=True,
        )  # fmt: skip
        self._run = wandb.init(settings=options)
        self._run.define_metric("*", step_metric="update")

    def row(self, row: Mapping[str, Any]) -> None:
        self._run.log({"update": row["step"], **numbers(row)})

    def close(self) -> None:
        self._run.finish()


_OF_A_PROCESS: dict[str, Callable[[Path], Tracker]] = {"mlflow": Mlflow, "wandb": Wandb}


def main(name: str, run: str) -> None:
    """Passes the rows of standard input to a tracker until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tracker = _OF_A_PROCESS[name](Path(run))
    for line in sys.stdin:
        tracker.row(json.loads(line))
    tracker.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
