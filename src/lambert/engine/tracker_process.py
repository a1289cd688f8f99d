"""MLflow and Weights & Biases, each in a process of its own: rows come as lines of JSON on standard input.

`python -m lambert.engine.tracker_process NAME RUN`; `trackers.SubprocessTracker` starts it.
"""

import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lambert.engine.trackers import Tracker, numbers


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


_TRACKERS: dict[str, Callable[[Path], Tracker]] = {"mlflow": Mlflow, "wandb": Wandb}


def main(name: str, run: str) -> None:
    """Passes the rows of standard input to a tracker until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    tracker = _TRACKERS[name](Path(run))
    for line in sys.stdin:
        tracker.row(json.loads(line))
    tracker.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
