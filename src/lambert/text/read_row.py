"""A row of a file as it was read, or why it was not."""

from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row, or why there is none, and the position after it."""

    place: str
    """The line where it begins, such as "line 17", or its number among the rows of Parquet and Arrow, "row 17"."""
    row: Row
    """Empty if it cannot be read."""
    error: str
    """Why it cannot be read, as the end of a message; empty if it can."""
    offset: int
    """Bytes before the next row; rows of Parquet and Arrow."""
    line: int = 0
    """Lines before the next row; 0 for Parquet and Arrow."""


def format_place(path: object, place: str) -> str:
    """Returns the place of a row with the name of its file: FILE:17, or FILE:row 17."""
    return f"{path}:{place.removeprefix('line ')}"
