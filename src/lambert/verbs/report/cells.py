"""Tables, and values as the text of their cells."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any


def table(caption: str, columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Returns a table for the page; columns of quantities are aligned right."""
    written = [[cell(value) for value in row] for row in rows]
    return {
        "caption": caption,
        "columns": [str(column) for column in columns],
        "rows": written,
        "flush": [
            any(cells) and all(is_quantity(text) for text in cells if text) for cells in zip(*written, strict=False)
        ],
    }


def side_by_side(tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Returns for each key of any table a label and a cell of every table."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return [(key, [cell(table[key]) if key in table else "" for table in tables]) for key in keys]


def cell(value: Any) -> str:
    """Returns a setting or a JSON value as text."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return shlex.join(value) if all(isinstance(item, str) for item in value) else ", ".join(map(cell, value))
    return "" if value is None else str(value)


def words(key: str) -> str:
    """Returns the part of a key after its prefix, with spaces."""
    return key.partition("/")[2].replace("_", " ")


def is_quantity(text: object) -> bool:
    """Returns whether a cell is a number, with or without a unit and an error."""
    number = r"[-+−]?[\d][\d.,]*(e[-+]?\d+)?( ?(%|[a-zA-Z]{1,3}))?"
    return re.fullmatch(rf"{number}( ± {number})?", str(text).strip()) is not None
