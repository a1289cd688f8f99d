"""The functions that clean documents. Each takes a text and returns the new text, or None to drop the document."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator

from lambert.core.registry import Kind, lookup
from lambert.corpus.readers import Piece

Step = Callable[[str], str | None]
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]")
"""Soft hyphens, zero-width spaces, word joiners and byte-order marks. Joiners that shape letters are kept."""
_SPACES = re.compile(r"[^\S\n]+")
_BLANK_LINES = re.compile(r"\n{3,}")


def normalise(text: str) -> str:
    """Composes characters (NFC), removes invisible ones, and reduces each run of spaces to one space and each run of
    blank lines to one blank line."""
    text = _INVISIBLE.sub("", unicodedata.normalize("NFC", text))
    lines = (line.strip() for line in _SPACES.sub(" ", text).split("\n"))
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip("\n")


def prose(text: str) -> str | None:
    """Drops a document without a single sentence: no line has three words and ends with a full stop, question mark or
    exclamation mark.

    Source: the rule on terminal punctuation of C4 (Raffel et al. 2020, section 2.2), for a document instead of a line.
    """
    return text if any(_is_sentence(line) for line in text.splitlines()) else None


def _is_sentence(line: str) -> bool:
    ended = line.rstrip("\"'»”’)] ")
    return ended.endswith((".", "!", "?", "…", "。", "！", "？", "।")) and (
        len(ended.split(None, 3)) >= 3 or not ended.isascii()
    )


STEPS: dict[str, Step] = {"normalise": normalise, "prose": prose}
KIND = Kind((str,))


def chosen(names: Iterable[str]) -> list[tuple[str, Step]]:
    """Returns the functions with these names. Raises UsageError for a name that is unknown or cannot be imported."""
    return [(name, lookup(STEPS, name, "clean", KIND)) for name in names]


def cleaned(pieces: Iterable[Piece], steps: list[tuple[str, Step]], dropped: dict[str, int]) -> Iterator[Piece]:
    """Yields the pieces of the documents that no step drops, with their new texts, and counts in `dropped` the
    documents that each step drops. Unreadable documents pass.

    The first piece of a long document decides whether the document is dropped.
    """
    inside = dropping = False
    for piece in pieces:
        text: str | None = piece.text
        if not inside:
            dropping = False
        for name, step in steps if not piece.error and not dropping else ():
            assert text is not None
            found = step(text)
            if found is None and not inside:
                dropping = True
                dropped[name] = dropped.get(name, 0) + 1
                break
            text = text if found is None else found
        inside = not piece.last
        if not dropping:
            yield Piece(text or "", piece.place, piece.last, piece.error)
