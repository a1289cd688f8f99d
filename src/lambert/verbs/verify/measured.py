"""The losses, scores, speed, data and environment of a run, read from its folder."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lambert.core.errors import DataError, UsageError
from lambert.core.files import parse_json, read_file
from lambert.core.settings import flatten
from lambert.engine.guard import INCIDENTS
from lambert.runs.folder import CONFIG, DATA, FREE
from lambert.runs.result import Result

ENVIRONMENT = ("lambert", "packages.torch", "device_name", "precision")
"""Entries of environment.json that [expect] records."""
VARIES = ("seed", "train.precision", "train.threads", *FREE)
"""Beginnings of the names of settings in which the runs behind [expect] may differ."""
SHAPE = "the model's "
"""Beginning of the entries of data.json that follow from the recipe."""
_SLOW_START = 10
"""Updates that are slower than the others and do not count for the speed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The readable contents of a run folder."""

    folder: Path
    steps: Sequence[int]
    """Updates with a logged loss, in order."""
    losses: Sequence[float]
    """The loss of each; NaN if it is not finite."""
    scores: Mapping[str, float]
    """Final held-out scores; empty before the end of the run."""
    utilisation: float | None
    tokens_per_second: float | None
    memory_mb: float | None
    data: Mapping[str, str]
    environment: Mapping[str, str]
    commands: Sequence[str]
    """The command line of the run."""
    problem: str
    """Where the guard stopped the run; empty if it did not, or if the run went on."""

    @property
    def updates(self) -> int:
        """The last update with a logged loss."""
        return max(self.steps, default=0)

    def means(self, updates: Sequence[int], every: int) -> list[float | None]:
        """Returns the mean loss up to each of these updates after the one before it, of those losses whose update is a
        multiple of `every`. None: the run is not as long. NaN: a loss is not finite. Raises UsageError if a loss was
        not logged."""
        found = dict(zip(self.steps, self.losses, strict=True))
        self.check_logged(every, max((last for last in updates if last <= self.updates), default=0))
        means: list[float | None] = []
        for before, last in pairwise((0, *updates)):
            places = range((before // every + 1) * every, last + 1, every)
            means.append(fmean(found[step] for step in places) if last <= self.updates and places else None)
        return means

    def check_logged(self, every: int, last: int) -> None:
        """Raises UsageError unless the loss of every `every`-th update up to `last` was logged. Each is the loss of one
        update, so the mean of fewer of them is no substitute."""
        logged = {*self.steps}
        for step in range(every, last + 1, every):
            if step not in logged:
                raise UsageError(
                    f"{self.folder} has no logged loss of update {step:,}, which the losses of [expect] include: take "
                    f"a run that had log.every = {every} from its first update on."
                )


def read_measured(folder: Path) -> Measured:
    """Reads a run folder, which has no metrics before the first logged loss. Raises DataError if it is no run folder
    or its metrics cannot be read."""
    if not (folder / CONFIG).is_file():
        raise DataError(f"{folder} is not a run folder: it has no {CONFIG}.")
    result = Result.of_run(folder)
    rows, scores = result.metrics, result.scores
    logged = [place for place, loss in enumerate(rows.get("lr", ())) if not math.isnan(loss)]
    steps = [int(rows["step"][place]) for place in logged]

    def typical(key: str) -> float | None:
        values = [float(rows[key][place]) for place in logged if key in rows]
        fast = [value for step, value in zip(steps, values, strict=False) if step > _SLOW_START] or values
        finite = [value for value in fast if math.isfinite(value)]
        return median(finite) if finite else None

    environment = flatten(_json(folder / "environment.json"))
    return Measured(
        folder,
        steps,
        [float(rows["loss"][place]) for place in logged],
        {name: float(value) for name, value in scores.items() if isinstance(value, int | float)},
        typical("utilisation"),
        typical("tokens_per_second"),
        max((float(rows["memory_mb"][place]) for place in logged if "memory_mb" in rows), default=None),
        {name: str(value) for name, value in _json(folder / DATA).items() if not name.startswith(SHAPE)},
        {name: str(environment[name]) for name in ENVIRONMENT if name in environment},
        [str(word) for word in environment.get("command") or ()],
        _problem(folder, max(steps, default=0)),
    )


def _problem(folder: Path, updates: int) -> str:
    """Returns where the guard stopped a run that has logged losses up to `updates`. The guard judges an update when the
    next one is done."""
    try:
        last = parse_json(read_file(folder / INCIDENTS).splitlines()[-1])
        stopped = last["what"] == "diverged" and updates <= last["step"] + 1
        return f"Training diverged at step {last['step']}" if stopped else ""
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_file(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
