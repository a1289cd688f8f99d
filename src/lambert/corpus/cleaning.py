"""Functions that clean documents. Each takes a text and returns the new text, or None to drop the document."""

import inspect
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lambert.core.contents import sha256
from lambert.core.errors import UsageError
from lambert.core.registry import Kind, lookup
from lambert.corpus.readers import Piece

Cleaner = Callable[[str], str | None]
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]")
"""Soft hyphens, zero-width spaces, word joiners and byte-order marks. Joiners that shape letters are kept."""
_SPACES = re.compile(r"[^\S\n]+")
_BLANK_LINES = re.compile(r"\n{3,}")
_NO_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Characters of scripts that are written without spaces: Thai, Lao, Burmese, Khmer, kana and Chinese characters."""


def normalise(text: str) -> str:
    """Composes characters (NFC), removes invisible ones, and reduces each run of spaces to one space and each run of
    blank lines to one blank line."""
    text = _INVISIBLE.sub("", unicodedata.normalize("NFC", text))
    lines = (line.strip() for line in _SPACES.sub(" ", text).split("\n"))
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip("\n")


def prose(text: str) -> str | None:
    """Drops a document without a single sentence: a line of three words, or of any length in a script without spaces,
    that ends with a full stop, question mark or exclamation mark.

    Source: the rule on terminal punctuation of C4 (Raffel et al. 2020, section 2.2), for a document instead of a line.
    """
    return text if any(_is_sentence(line) for line in text.splitlines()) else None


def _is_sentence(line: str) -> bool:
    ended = line.rstrip("\"'»”’)] ")
    if not ended.endswith((".", "!", "?", "…", "。", "！", "？", "।")):
        return False
    return len(ended.split(None, 3)) >= 3 or bool(_NO_SPACES.search(ended))


CLEANERS: dict[str, Cleaner] = {"normalise": normalise, "prose": prose}
KIND = Kind((str,))


def cleaners(names: Iterable[str]) -> list[tuple[str, Cleaner]]:
    """Returns the functions with these names. Raises UsageError for a name that is unknown or cannot be imported."""
    return [(name, lookup(CLEANERS, name, "clean", KIND)) for name in names]


def code_hash(function: object) -> str:
    """Returns the SHA-256 of the file that defines a function, or an empty string if there is no such file."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    return sha256(Path(file)) if file and Path(file).is_file() else ""


def cleaned(pieces: Iterable[Piece], functions: list[tuple[str, Cleaner]], dropped: dict[str, int]) -> Iterator[Piece]:
    """Yields the pieces of the documents that no function drops, with their new texts, and counts in `dropped` the
    documents that each function drops. Unreadable documents pass.

    The first piece of a long document decides whether the document is dropped; a later piece for which a function
    returns None keeps its text. Raises UsageError if a function fails or returns something else than text.
    """
    inside = dropping = False
    for piece in pieces:
        dropping = dropping and inside
        text = piece.text
        if not piece.error and not dropping:
            for name, function in functions:
                found = _call(name, function, text, piece.place)
                if found is not None:
                    text = found
                elif not inside:
                    dropping = True
                    dropped[name] = dropped.get(name, 0) + 1
                    break
        inside = not piece.last
        if not dropping:
            yield Piece(text, piece.place, piece.last, piece.error)


def _call(name: str, function: Cleaner, text: str, place: str) -> str | None:
    try:
        found = function(text)
        if isinstance(found, str):
            found.encode("utf-8")
    except Exception as error:
        raise UsageError(f"clean = {name!r} failed at {place}: {type(error).__name__}: {error}.") from error
    if found is not None and not isinstance(found, str):
        raise UsageError(f"clean = {name!r} returned a {type(found).__name__} at {place}, not a text or None.")
    return found
