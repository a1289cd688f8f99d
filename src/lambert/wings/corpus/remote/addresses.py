"""URLs of inputs and outputs of `prepare`."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lambert.core.urls import is_remote, without_secrets

_COLLAPSED = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+:)/(?!/)")
_NAME = re.compile(r"[^A-Za-z0-9._-]")


def address(entry: str | Path) -> str:
    """Returns the URL of a folder, or an empty text if it is a path. A URL that was converted to a Path has lost a
    slash."""
    found = _COLLAPSED.sub(r"\1//", str(entry), count=1) if isinstance(entry, Path) else entry
    return found if is_remote(found) else ""


def public_text(text: str, url: str = "") -> str:
    """Returns the message of a library about `url` as one line of at most 200 characters, without secrets."""
    return " ".join(without_secrets(text, url).split())[:200]


def name_of(url: str) -> str:
    """Returns the last part of a URL's path as a file name that cannot leave its folder."""
    name = unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]
    return _NAME.sub("_", name).lstrip(".")[-120:] or "index.html"
