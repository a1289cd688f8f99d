"""Rows of JSON: an object in each line, or objects over several lines, alone or in an array."""

import json
from collections.abc import Iterator
from typing import Any

from lambert.text.encodings import BOM, SURROGATE, UTF8, explain_invalid
from lambert.text.read_row import ReadRow, Row
from lambert.text.streams import BLOCK

LINE = 64 << 20
"""Maximum bytes of a row, which must fit into memory (our choice)."""
_BETWEEN = " \t\r\n,[]\ufeff"
"""Bytes that may separate the objects of a file."""
_WRAPPERS = ("data", "rows", "examples", "records")
_DECODER = json.JSONDecoder()


def parse_row(text: str) -> tuple[Row, str]:
    """Returns (the JSON object in a text, ""), or ({}, the problem as the end of a message)."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {}, explain_error(error)
    return (row, "") if isinstance(row, dict) else ({}, _NO_OBJECT)


def has_lines(beginning: bytes) -> bool:
    """Returns whether a file with this beginning has a row in each line. Otherwise brackets delimit its rows."""
    text = beginning.removeprefix(BOM).decode(UTF8, "replace").lstrip()
    if text.startswith("["):
        return False
    line = text.partition("\n")[0]
    if not text.startswith("{") or not parse_row(line)[1]:
        return True
    try:
        return "\n" not in text[: _DECODER.raw_decode(text)[1]]
    except (ValueError, RecursionError):  # damaged, or the beginning ends within the object
        return "\n" not in text or not line.rstrip().endswith(("{", "[", ","))


def read_json_rows(stream: Any, lines: bool, offset: int = 0, line: int = 0) -> Iterator[ReadRow]:
    """Yields the rows of a stream from a position between two rows: each line that is not blank, or each object.
    `stream` must have `readline(limit)`."""
    yield from (_lines if lines else _values)(stream, offset, line)


def _lines(stream: Any, offset: int, number: int) -> Iterator[ReadRow]:
    while data := stream.readline(LINE):
        first = not offset
        offset, number = offset + len(data), number + 1
        if not data.strip():
            continue
        if len(data) == LINE and not data.endswith(b"\n"):
            part = data
            damage: OSError | None = None
            try:
                while not part.endswith(b"\n") and (part := stream.readline(BLOCK)):
                    offset += len(part)  # counted and dropped
            except OSError as found:
                damage = found
            yield ReadRow(f"line {number}", {}, f"is longer than {LINE >> 20} MiB", offset, number)
            if damage is not None:
                raise damage
            continue
        row, error = decode_row(data.removeprefix(BOM) if first else data)
        if error and not data.endswith(b"\n") and error.startswith("is not JSON"):
            error += ": the file ends within it"
        yield ReadRow(f"line {number}", row, error, offset, number)


def decode_row(data: bytes) -> tuple[Row, str]:
    """Returns what `parse_row` does, for a text in UTF-8."""
    try:
        return parse_row(data.decode(UTF8))
    except UnicodeDecodeError as error:
        return {}, explain_invalid(data, error.start)


def _values(stream: Any, offset: int, line: int) -> Iterator[ReadRow]:
    """Yields the objects of a stream, separated by white space, commas or the brackets of an array."""
    held, ended = "", False
    limit = 1  # characters to read before the object is parsed again, instead of after each line
    while True:
        if not ended and len(held) < limit:
            data = stream.readline(BLOCK)
            ended = not data
            held += data.decode(UTF8, "surrogateescape")
            continue
        begin = len(held) - len(held.lstrip(_BETWEEN))
        between, held = held[:begin], held[begin:]
        offset, line = offset + len(between.encode()), line + between.count("\n")
        if not held:
            if ended:
                return
            limit = 1
            continue
        place, problem, value, end = f"line {line + 1}", "", None, 0
        try:
            value, end = _DECODER.raw_decode(held)
        except (ValueError, RecursionError) as error:
            problem = explain_error(error)
            if not ended and len(held) <= LINE and isinstance(error, json.JSONDecodeError):
                limit = 2 * len(held)
                continue
            end = len(held)
            problem = f"is longer than {LINE >> 20} MiB" if end > LINE else problem
        limit = 1
        taken, held = held[:end], held[end:]
        offset, line = offset + len(taken.encode(UTF8, "surrogateescape")), line + taken.count("\n")
        if problem:
            yield ReadRow(place, {}, f"{problem}: the rest of the file is not read", offset, line)
            while stream.readline(BLOCK):
                pass
            return
        if found := SURROGATE.search(taken):
            data = taken.encode(UTF8, "surrogateescape")
            yield ReadRow(place, {}, explain_invalid(data, len(taken[: found.start()].encode())), offset, line)
        elif isinstance(value, dict):
            yield ReadRow(place, value, "", offset, line)
        else:
            yield ReadRow(place, {}, _NO_OBJECT, offset, line)


def explain_columns(row: Row) -> str:
    """Returns the end of a message if a row is a whole table in a form of pandas, else ""."""
    if len(row) > 1 and all(isinstance(column, dict) and "0" in column for column in row.values()):
        return f"has an object for each column, as pandas writes it: {_RECORDS}"
    return f"is a table in a form of pandas: {_RECORDS}" if {*row} in _OTHER_FORMS else ""


_RECORDS = 'write its rows (df.to_json(path, orient="records"))'
_OTHER_FORMS = ({"columns", "index", "data"}, {"schema", "data"})
"""Keys of the orients "split" and "table"."""


def explain_wrapper(row: Row) -> str:
    """Returns the end of a message if a row is an object with the rows in one of its lists, else ""."""
    name = next((name for name in _WRAPPERS if isinstance(row.get(name), list)), "")
    items = row[name] if name else []
    if not items or not all(isinstance(item, dict) for item in items) or "paragraphs" in items[0]:  # of SQuAD
        return ""
    return f"is an object with its rows in {name!r}: write them as an array or one per line (jq -c '.{name}[]')"


_NO_OBJECT = 'is not a JSON object: give one like {"text": "..."} per line'


def explain_error(error: Exception) -> str:
    """Returns why a text is not JSON, as the end of a message, from the error of the parser."""
    if "int_max_str_digits" in str(error):
        return "has a number of thousands of digits"
    what = str(getattr(error, "msg", error)).removesuffix(" at").removesuffix(" starting")
    return f"is not JSON ({what})"
