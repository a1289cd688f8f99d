"""Checks the first bytes of input files before anything is read."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from lambert.core.errors import DataError
from lambert.core.files import not_read, open_regular
from lambert.core.unsupported import explain_markup
from lambert.text.encodings import UTF8
from lambert.text.streams import Stream, inner_suffix, unpack
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.reading.labelled import LABELLED
from lambert.wings.corpus.reading.readers import recognised


def check_beginnings(found: Iterable[Path], config: PrepareConfig, urls: Mapping[str, str] | None = None) -> None:
    """Calls `check_prose` for the files that `config` names and for those that may be tables, if formats are recognised
    by name and content. `urls` has the URLs of copies."""
    if config.format != "auto":
        return
    named = set(map(Path, config.input))
    for file in found:
        if file in named or inner_suffix(file) in LABELLED:  # a glob matches files of all kinds
            check_prose(file, config.text_field, config.layout.encoding, (urls or {}).get(str(file), ""))


def check_prose(path: Path, text_field: str = "text", encoding: str = UTF8, url: str = "") -> None:
    """Raises DataError if a file begins with markup or looks like labelled data. A server may have sent an HTML page
    instead of the file at `url`."""
    try:
        with open_regular(path) as raw:
            opened, inner = unpack(path, raw)
            beginning = Stream(opened).peek()
            kind, problem = recognised(inner, beginning, text_field, encoding)
    except OSError as error:
        raise not_read(path, error) from error
    if url and kind not in ("html", "warc") and "HTML page" in explain_markup(beginning):
        what = "gave an HTML page, such as one for a login or an error, and not a file of text"
        raise DataError(f"{url} {what}. Check the URL, and delete the copy {path}.")
    if problem:
        anyway = ", or use --format text to read the markup as text" if "markup" in problem else ""
        raise DataError(f"{path} {problem}{anyway}.")


def begins_as(path: Path, kind: str, text_field: str = "text") -> bool:
    """Returns whether a file is of a kind, such as "mediawiki", by its name and first bytes."""
    try:
        with open_regular(path) as raw:
            opened, inner = unpack(path, raw)
            return recognised(inner, Stream(opened).peek(), text_field)[0] == kind
    except OSError:
        return False
