"""Functions that clean documents. Each takes a text and returns the new text, or None to drop the document."""

import inspect
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

from lambert.core.contents import sha256
from lambert.core.errors import UsageError
from lambert.core.registry import Kind, lookup
from lambert.text.tokenizers.roles import UNSPACED
from lambert.wings.corpus.characters import INVISIBLE

Cleaner = Callable[[str], str | None]
INVISIBLE_CHARACTERS = re.compile(f"[{INVISIBLE}]")


def compose(text: str) -> str:
    """Composes characters (NFC) and removes invisible ones."""
    return INVISIBLE_CHARACTERS.sub("", unicodedata.normalize("NFC", text))


def prose(text: str) -> str | None:
    """Drops a document without a sentence, which is a line of at least three words (of any length in a script without
    spaces) that ends with a full stop, question mark or exclamation mark.

    Source: the rule on terminal punctuation of C4 (Raffel et al. 2020, section 2.2), applied to a document instead of a
    line.
    """
    return text if any(_is_sentence(line) for line in text.splitlines()) else None


def _is_sentence(line: str) -> bool:
    ended = line.rstrip("\"'»”’)] ")
    if not ended.endswith((".", "!", "?", "…", "。", "！", "？", "।")):
        return False
    return len(ended.split(None, 3)) >= 3 or bool(UNSPACED.search(ended))


CLEANERS: dict[str, Cleaner] = {"prose": prose}
"""Cleaning functions, which see one document at a time. `filters` has those that see many at once."""
KIND = Kind((str,))


def find_cleaner(name: str) -> Cleaner:
    """Returns the function with this name. Raises UsageError if it is unknown or cannot be imported."""
    return lookup(CLEANERS, name, "clean", KIND)


def hash_code(function: object) -> str:
    """Returns the SHA-256 of the file that defines a function, or an empty string if there is no such file."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    return sha256(Path(file)) if file and Path(file).is_file() else ""


def call(name: str, function: Cleaner, text: str, place: str) -> str | None:
    """Calls a function with a text and returns its result. Raises UsageError if it fails or returns neither a text nor
    None."""
    try:
        found = function(text)
        if isinstance(found, str):
            found.encode("utf-8")
    except Exception as error:
        raise UsageError(f"clean = {name!r} failed at {place}: {type(error).__name__}: {error}.") from error
    if found is not None and not isinstance(found, str):
        raise UsageError(f"clean = {name!r} returned a {type(found).__name__} at {place}, not a text or None.")
    return found
