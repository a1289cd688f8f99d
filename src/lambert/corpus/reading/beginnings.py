"""Checks of the first bytes of input files, before anything is read."""

from pathlib import Path

from lambert.core.errors import DataError
from lambert.core.unsupported import markup
from lambert.corpus.reading.encodings import UTF8
from lambert.corpus.reading.readers import recognised
from lambert.corpus.reading.streams import Stream, unpacked


def check_prose(path: Path, text_field: str = "text", encoding: str = UTF8, url: str = "") -> None:
    """Raises DataError if a file begins with markup or looks like labelled data. Instead of the file that is at a
    `url`, servers also send an HTML page."""
    try:
        with path.open("rb") as raw:
            opened, inner = unpacked(path, raw)
            beginning = Stream(opened).peek()
            kind, problem = recognised(inner, beginning, text_field, encoding)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    if url and kind not in ("html", "warc") and "HTML page" in markup(beginning):
        what = "gave an HTML page, such as one for a login or an error, and not a file of text"
        raise DataError(f"{url} {what}. Check the URL, and delete the copy {path}.")
    if problem:
        anyway = ", or use --format text to read the markup as text" if "markup" in problem else ""
        raise DataError(f"{path} {problem}{anyway}.")


def begins_as(path: Path, kind: str, text_field: str = "text") -> bool:
    """Returns whether the name and the first bytes of a file are those of a kind, such as "mediawiki"."""
    try:
        with path.open("rb") as raw:
            opened, inner = unpacked(path, raw)
            return recognised(inner, Stream(opened).peek(), text_field)[0] == kind
    except OSError:
        return False
