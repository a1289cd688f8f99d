"""Values as text: the cells of tables."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any


def table(caption: str, columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """A table for the page; columns of quantities are set flush right."""
    written = [[cell(value) for value in row] for row in rows]
    return {
        "caption": caption,
        "columns": [str(column) for column in columns],
        "rows": written,
        "flush": [_is_flush(cells) for cells in zip(*written, strict=False)],
    }


def side_by_side(tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """A label and a cell of each table for every key that any has."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return [(key, [cell(table[key]) if key in table else "" for table in tables]) for key in keys]


def cell(value: Any) -> str:
    """A setting, or what JSON holds."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return (
            shlex.join(map(str, value)) if all(isinstance(item, str) for item in value) else ", ".join(map(cell, value))
        )
    return "" if value is None else str(value)


def words(key: str) -> str:
    """The name after the prefix, to be read."""
    return key.partition("/")[2].replace("_", " ")


def _is_flush(cells: Sequence[str]) -> bool:
    return any(cells) and all(is_quantity(text) for text in cells if text)


def is_quantity(text: object) -> bool:
    """Whether a cell is a number, with or without its unit and error, to be set flush right."""
    number = r"[-+−]?[\d][\d.,]*(e[-+]?\d+)?( ?(%|[a-zA-Z]{1,3}))?"
    return re.fullmatch(rf"{number}( ± {number})?", str(text).strip()) is not None


def duration(seconds: float) -> str:
    """In words; nothing for none."""
    if not seconds:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"
