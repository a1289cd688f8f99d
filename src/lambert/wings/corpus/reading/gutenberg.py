"""Reads books of Project Gutenberg without its header and licence.

The lines that begin and end a book are described at
https://www.gutenberg.org/help/faq_copyright.html and differ over the years; books from before 2000 begin after the
"small print".
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import BinaryIO

from lambert.wings.corpus.reading.pieces import Layout, Piece

HEADER = 1 << 16
"""The header must end within this many characters; headers with the small print have up to 20,000 (our choice)."""
_SHOWN = 600
_BOOK = re.compile(
    r"\s*(?:\*{3} ?START OF TH|[* ]*(?:the |this is the )?project gutenberg(?:'s|\u2019s)? (?:e-?book|e-?text)\b"
    r"|[* ]*project gutenberg(?:'s|\u2019s) [^\n]{1,200}, by )", re.IGNORECASE,
)  # fmt: skip
_START = re.compile(
    r"^[ \t]*(?:\*{3} ?START OF (?:THE|THIS) PROJECT GUTENBERG [^*]{0,400}\*{3}"
    r"|\*END[ *]*THE SMALL PRINT!?[^\n]*)[^\n]*\n?",
    re.MULTILINE | re.IGNORECASE,
)
_END = re.compile(
    r"^[ \t]*(?:\*{3} ?END OF (?:THE|THIS) PROJECT GUTENBERG|END OF (?:THE |THIS )?PROJECT GUTENBERG(?:'S|\u2019S)? )",
    re.MULTILINE | re.IGNORECASE,
)


def is_book(beginning: bytes) -> bool:
    """Returns whether a text file with this beginning is a book of Project Gutenberg."""
    return _BOOK.match(beginning[:_SHOWN].decode("utf-8-sig", "replace")) is not None


def book_reader(
    read_text: Callable[[BinaryIO, Layout], Iterator[Piece]],
) -> Callable[[BinaryIO, Layout], Iterator[Piece]]:
    """Returns a reader of the books in a file, given that of plain text. What is between two books is not read."""

    def read_gutenberg(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
        pieces = read_text(stream, layout)
        header, size = [], 0
        for piece in pieces:
            header.append(piece)
            if begin := _START.search(piece.text, 0, HEADER):
                header = [replace(piece, text=piece.text[begin.end() :].lstrip("\n"))]
            size += len(piece.text)
            if begin or size > HEADER:
                break
        inside = True
        for piece in chain(header, pieces):
            if piece.error:
                yield piece
                continue
            rest: Piece | None = piece
            while rest and (inside or (rest := _find_start(rest))):
                inside = True
                if end := _END.search(rest.text):
                    inside = False
                    yield replace(rest, text=rest.text[: end.start()].rstrip() + "\n", last=True)
                    rest = _cut(rest, end.end())
                else:
                    yield rest
                    rest = None

    return read_gutenberg


def _find_start(piece: Piece) -> Piece | None:
    """Returns the rest of a piece after the next line that begins a book, or None."""
    begin = _START.search(piece.text)
    return _cut(piece, begin.end()) if begin else None


def _cut(piece: Piece, begin: int) -> Piece:
    """Returns a piece of lines from a character on."""
    number = int(piece.place.removeprefix("line ")) + piece.text.count("\n", 0, begin)
    return replace(piece, text=piece.text[begin:].lstrip("\n"), place=f"line {number}")
