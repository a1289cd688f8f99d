"""The settings and the results of readers."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lambert.text.tables import TableFormat

PIECE = 2 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A document, or a part of one longer than `PIECE` bytes."""

    text: str
    place: str
    """The line, row or page where it begins, for messages, such as 'line 17'."""
    last: bool = True
    """False if the next piece of the file continues the same document."""
    error: str = ""
    """Why the document cannot be used; empty if it can."""
    metadata: str = ""
    """Metadata of the document, as a JSON object; empty if nothing is kept."""
    id: str = ""
    """First 16 digits of the BLAKE2b hash of the text (of its first piece) when it was extracted; empty before that."""
    passed_over: str = ""
    """Why this is neither a document nor an error, such as 'redirect'; counted separately."""
    source: str = ""
    """The input file, for pieces of a part."""
    found: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Counts of what the reader found in the document: its `sentences`, `holes` in them where a template was removed,
    and these templates, as `{{name}}`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Settings of the readers."""

    documents: str = "file"
    """The documents of a plain text file: the whole 'file', text between blank lines ('blank-line'), or each 'line'."""
    text_field: str = "text"
    """The field (JSON lines) or column (Parquet, CSV, Arrow) that holds the text."""
    metadata: tuple[str, ...] = ()
    """Fields (JSON lines) or columns (Parquet, CSV, Arrow) that are kept as metadata."""
    groups: tuple[int, int] | None = None
    """The first row group of a Parquet file to read, and the first not to read. None: all."""
    encoding: str = "utf-8"
    """The encoding of plain text that declares none."""
    max_ratio: int = 100
    """How many times its size a compressed file may expand to."""
    table: TableFormat | None = None
    """How the table is written (separator, quotes); None: it is recognised."""
    headed: bool = True
    """Whether a stream begins at the beginning of the file. If not, it has only later rows, lines or pages."""


def make_row_piece(row: Mapping[str, Any], layout: Layout, place: str) -> Piece:
    """Returns a row, which has the field of the text, as a document."""
    piece = make_text_piece(row[layout.text_field], layout.text_field, place)
    return replace(piece, metadata=format_metadata(row, layout.metadata)) if layout.metadata else piece


def describe_missing(field: str, names: Iterable[str], what: str) -> str:
    """Returns the end of a sentence that says that a table or an object lacks this column or field (`what`), and what
    to do."""
    listed = ", ".join(str(name)[:40] for name in list(names)[:8])
    return f"has no {what} {field!r} ({what}s: {listed}): name its {what} of text as text_field"


def make_text_piece(text: Any, field: str, place: str) -> Piece:
    """Returns the value of a field as a document, or as an unusable document if it is not a text."""
    if text is None:
        return Piece("", place)
    if not isinstance(text, str):
        return Piece("", place, error=f"has {_kind(text)} in the field {field!r}, not text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return Piece("", place, error="contains half of a surrogate pair, which is not a character")
    return Piece(normalise_newlines(text), place)


def divide_piece(piece: Piece) -> Iterator[Piece]:
    """Yields a piece in parts of at most `PIECE` characters, divided after a paragraph, or else a line, or else a
    word."""
    text, start = piece.text, 0
    while len(text) - start > PIECE:
        middle, end = start + PIECE // 2, start + PIECE
        cuts = ((text.rfind(separator, middle, end), separator) for separator in ("\n\n", "\n", " "))
        cut = next((at + len(separator) for at, separator in cuts if at >= 0), end)
        yield replace(piece, text=text[start:cut], last=False, found={})
        start = cut
    yield replace(piece, text=text[start:]) if start else piece


def _kind(value: Any) -> str:
    """Returns a description of the type of a value."""
    if isinstance(value, bool):
        return "true or false"
    for kind, words in ((int | float, "a number"), (list, "a list"), (dict, "an object"), (bytes, "bytes")):
        if isinstance(value, kind):
            return words
    return f"a value of the type {type(value).__name__}"


def format_metadata(values: Mapping[str, Any], names: Iterable[str] | None = None) -> str:
    """Returns the values with these names, or all, as the metadata of a document. Values of types that JSON lacks
    become text."""
    chosen = values if names is None else {name: values[name] for name in names if name in values}
    return json.dumps(chosen, ensure_ascii=True, default=str) if chosen else ""


def normalise_newlines(text: str) -> str:
    """Returns a text in which all line breaks are line feeds."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def escape_name(source: str) -> str:
    """Returns the name of an input file as Unicode. Bytes that are not valid UTF-8 are escaped."""
    return source.encode(errors="backslashreplace").decode()
