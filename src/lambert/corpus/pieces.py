"""What readers take and yield."""

from dataclasses import dataclass

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
    passed_over: str = ""
    """Why this is no document and no error, such as 'redirect'; counted, but not as read."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Settings of the readers."""

    documents: str = "file"
    """The documents of a plain text file: the whole 'file', text between blank lines ('blank-line'), or each 'line'."""
    text_field: str = "text"
    """The field (JSON lines) or column (Parquet) that holds the text."""
    groups: tuple[int, int] | None = None
    """The first row group of a Parquet file to read, and the first not to read. None: all."""
