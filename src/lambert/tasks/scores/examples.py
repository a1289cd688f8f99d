"""The scored examples of a labelled file, on disk: predictions, truth, and the values that scores are computed from.

`lambert compare` and the error analysis of `lambert report` read this file. They need neither the model nor the data.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lambert.core.errors import DataError
from lambert.core.files import json_text, not_read, read_file, write_atomic
from lambert.core.settings import check_types
from lambert.tasks.scores.formulas import FORMULAS, Formula, scorer

if TYPE_CHECKING:
    from lambert.tasks.task import Row, Task

EXAMPLES = "examples.jsonl"
"""The file in a run folder."""
_FORMAT = 1
SHOWN = 300
"""Maximum number of characters of a text that is kept to show the example."""


@dataclass(frozen=True, slots=True)
class Examples:
    """What `Task.examples` returns: one row per example of the labelled file, in order.

    A row has `text`, the beginning of the example; `tokens`, its length; `truth`, `prediction`; and numbers to compute
    scores from, such as `correct` and `loss`.
    """

    rows: "list[Row]"
    formulas: Mapping[str, Formula]
    """How each score is computed from the rows, the main score first."""
    task: str = ""
    data: str = ""
    """Path of the labelled file."""
    data_sha256: str = ""


def examples_of(task: "Task[Any, Any]", data: Any, predictions: Sequence[Any], path: Path) -> Examples | None:
    """Returns the scored examples of the labelled file `path`, or None if the task, one from outside, keeps none."""
    from lambert.tasks.reading.files import digest

    found = task.examples(data, predictions)
    return found and replace(found, task=task.config.name, data=str(path), data_sha256=digest(path))


def write(path: Path, found: Examples) -> Path:
    """Writes the examples as JSON lines. The first line describes the file."""
    formulas = {name: asdict(formula) for name, formula in found.formulas.items()}
    head = {
        "lambert_examples": _FORMAT, "task": found.task, "data": found.data, "data_sha256": found.data_sha256,
        "examples": len(found.rows), "scores": formulas,
    }  # fmt: skip
    return write_atomic(path, "".join(json_text(row) + "\n" for row in (head, *found.rows)))


def is_examples(beginning: bytes) -> bool:
    """Returns whether a file with this beginning was written by `write`."""
    return beginning.startswith(b'{"lambert_examples": ')


def read(path: Path) -> Examples:
    """Reads what `write` has written. Raises DataError if the file is missing, damaged or of another kind."""
    try:
        lines = read_file(path).decode().rstrip("\n").split("\n")
        head, rows = (json.loads(lines[0]) if lines[0] else None), [json.loads(line) for line in lines[1:]]
    except OSError as error:
        raise not_read(path, error) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a file of scored examples: it is not JSON lines ({error}).") from error
    if not isinstance(head, dict) or "lambert_examples" not in head:
        raise DataError(
            f"{path} is not a file of scored examples. `lambert evaluate --examples FILE` writes one for a model."
        )
    if head["lambert_examples"] != _FORMAT:
        raise DataError(f"{path} has format {head['lambert_examples']!r}; this version reads format {_FORMAT}.")
    try:
        formulas = {str(name): Formula(**check_types(Formula, of)) for name, of in head["scores"].items()}
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("a row is not an object")
        if len(rows) != head["examples"]:
            raise ValueError(f"it has {len(rows):,} rows, and its first line says {head['examples']:,}")
        if unknown := [formula.kind for formula in formulas.values() if formula.kind not in FORMULAS]:
            raise ValueError(f"the score formula {unknown[0]!r} is unknown")
        for formula in formulas.values():
            scorer(rows, formula)
        task, data, sha256 = (str(head[key]) for key in ("task", "data", "data_sha256"))
        return Examples(rows, formulas, task, data, sha256)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} is damaged: {what}. Write it again with `lambert evaluate --examples`.") from error


def shorten(text: str) -> str:
    """Returns the beginning of a text, at most SHOWN characters."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
