"""Predictions of a task for lines of JSON."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from lambert.core.errors import DataError
from lambert.tasks import Outputs, Row, Task, make_request
from lambert.text.json_rows import parse_row


def predict(
    task: Task[Any, Any], outputs_of: Callable[[Any], Outputs], lines: Iterable[str], *, chunk: int = 512
) -> Iterator[Row]:
    """Yields one prediction for each line that is not blank, in order, reading `chunk` lines at a time."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    while block := list(islice(numbered, chunk)):
        places = [f"line {number}" for number, _ in block]
        rows = []
        for place, (_, line) in zip(places, block, strict=True):
            row, problem = parse_row(line)
            if problem:
                raise DataError(f"{place} {problem}.")
            rows.append(row)
        data, finish = make_request(task, rows, places)
        yield from finish(outputs_of(data))
