"""The result of a verb, and the function that receives its messages."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lambert.engine.metrics_file import METRICS

Say = Callable[[str], None]
"""Receives a line for the user. The command line prints the line."""
SCORES = "scores.json"


def silent(line: str) -> None:
    """Ignores the line. This is the default of the library."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a verb."""

    folder: Path
    """The folder that the verb wrote."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Held-out scores by name; losses in nats."""
    notes: tuple[str, ...] = ()
    """Lines of `evaluate` about the labels of the file, such as how numbers were read."""

    @classmethod
    def of_run(cls, folder: Path) -> "Result":
        """Returns the result of the run in `folder`, with its final scores."""
        path = folder / SCORES
        return cls(folder, json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {})

    @property
    def model(self) -> Path:
        """The model folder of a run."""
        return self.folder / "model"

    @property
    def metrics(self) -> dict[str, npt.NDArray[np.float64]]:
        """The rows of metrics.jsonl as arrays [rows] by key, with NaN if a row lacks the key. Held-out scores have
        separate rows. Units: docs/contracts.md."""
        path = self.folder / METRICS
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        rows = [json.loads(line) for line in lines]
        keys = {key: None for row in rows for key in row}  # in order of appearance
        return {key: np.array([_number(row.get(key)) for row in rows], dtype=np.float64) for key in keys}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
