"""Texts that are made of several columns, such as "{title}: {body}".

A name in braces is that of a column. Values may be replaced: "{question|cause=Why?|effect=What followed?}".
"""

import re
from collections.abc import Callable

from lambert.core.errors import DataError, quote

_FIELD = re.compile(r"\{([^{}|]+)((?:\|[^{}|]*)*)\}")


def is_template(column: str) -> bool:
    """Returns whether a setting is a text with names of columns, not the name of one column."""
    return _FIELD.search(column) is not None


def columns_of(column: str) -> list[str]:
    """Returns the names of the columns in a template, or the one column; nothing for an empty setting."""
    return [field[1] for field in _FIELD.finditer(column)] or [column] * bool(column)


def fill(template: str, text_of: Callable[[str], str], place: str) -> str:
    """Fills a template; `text_of` returns the text of a column. Raises DataError for a value without a replacement."""

    def text(field: re.Match[str]) -> str:
        value = text_of(field[1])
        if not field[2]:
            return value
        known: dict[str, str] = dict(part.partition("=")[::2] for part in field[2][1:].split("|"))
        if value not in known:
            raise DataError(f"{place}: column {field[1]!r} holds {quote(value)}, not {' or '.join(known)}.")
        return known[value]

    return _FIELD.sub(text, template)
