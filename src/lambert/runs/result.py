"""The result of a verb, and the function that receives its messages."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lambert.core.errors import DataError
from lambert.core.files import parse_json, read_file
from lambert.engine.metrics_file import METRICS, read_rows
from lambert.engine.progress import format_scores

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
    """Lines of `evaluate` about the model and the file, such as how numbers of labels were read, and which rows were
    left out."""

    def __fspath__(self) -> str:
        """The path of the folder: a result stands for it, as in `lambert.load(result)`."""
        return str(self.folder)

    def __repr__(self) -> str:
        model = f"model {str(self.model)!r}" if self.model.is_dir() else ""
        scores = ", ".join(f"{name} {text}" for name, text in format_scores(self.scores).items())
        return f"Result({'; '.join(filter(None, (repr(str(self.folder)), model, scores, *self.notes)))})"

    @classmethod
    def of_run(cls, folder: Path) -> "Result":
        """Returns the result of the run in `folder`, with its final scores. Raises DataError if they are damaged."""
        path = folder / SCORES
        try:
            scores = parse_json(read_file(path)) if path.is_file() else {}
        except ValueError as error:
            raise DataError(
                f"{path} is damaged ({error}). Delete it and repeat the command, which writes it."
            ) from error
        return cls(folder, scores if isinstance(scores, dict) else {})

    @property
    def model(self) -> Path:
        """The model folder of a run."""
        return self.folder / "model"

    @property
    def metrics(self) -> "dict[str, npt.NDArray[np.float64]]":
        """The complete rows of metrics.jsonl as arrays [rows] by key, with NaN if a row lacks the key. Held-out scores
        have separate rows. Units: docs/contracts.md. Raises DataError if the folder is not there."""
        import numpy as np  # here, because the command line imports this module

        if not self.folder.is_dir():
            raise DataError(f"{self.folder} is not there: it was moved, or the working directory has changed.")
        rows = read_rows(self.folder / METRICS)
        keys = {key: None for row in rows for key in row}  # in order of appearance
        return {key: np.array([_number(row.get(key)) for row in rows], dtype=np.float64) for key in keys}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
