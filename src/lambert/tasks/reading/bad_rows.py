"""Rows to predict of which some cannot be read: the good ones as a Source, and the error of each bad one."""

from collections.abc import Callable, Sequence
from typing import Any

from lambert.core.errors import DataError
from lambert.tasks.task import Outputs, Row, Task, asked

Asked = tuple[Any, Callable[[Outputs], list[Row]]]
_NAMED = 8
"""Number of bad rows found by the names in the errors of the whole, before each row is read on its own (ours)."""


def readable(
    task: Task[Any, Any], rows: Sequence[Row], places: Sequence[str]
) -> tuple[list[int], Asked | None, dict[int, DataError]]:
    """Returns the numbers of the rows that the task can read, their sequences with the function from outputs to
    predictions (`asked`; None without such a row), and the error of each other row by its number.

    Rows are read together. An error begins with the place of its row, so the row is left out and the rest is read
    again; if that does not end soon, or the error names no row, each row is read on its own.
    """
    errors: dict[int, DataError] = {}
    good = [*range(len(rows))]
    while good:
        try:
            return good, asked(task, [rows[number] for number in good], [places[number] for number in good]), errors
        except DataError as error:
            bad = next((number for number in good if _names(str(error), places[number])), None)
            found = {bad: error} if bad is not None and len(errors) < _NAMED else {}
            found = found or _one_by_one(task, rows, places, good)
            if not found:
                raise
            errors |= found
        good = [number for number in good if number not in errors]
    return good, None, errors


def _names(message: str, place: str) -> bool:
    return message.startswith((f"{place}:", f"{place} "))


def _one_by_one(
    task: Task[Any, Any], rows: Sequence[Row], places: Sequence[str], numbers: Sequence[int]
) -> dict[int, DataError]:
    found = {}
    for number in numbers:
        try:
            asked(task, [rows[number]], [places[number]])
        except DataError as error:
            found[number] = error
    return found
