"""URLs of inputs: which inputs are remote, and how they are shown without passwords and signatures."""

import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_COLLAPSED = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+:)/(?!/)")
_SECRET = re.compile(r"sig|token|key|credential|secret|passw|auth|expires|x-amz|x-goog|policy", re.IGNORECASE)
_NAME = re.compile(r"[^A-Za-z0-9._-]")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s\"'<>]+")


def is_remote(entry: str | Path) -> bool:
    """Returns whether an input is a URL, and not a path."""
    return _REMOTE.match(str(entry)) is not None


def address(entry: str | Path) -> str:
    """Returns the URL of a folder, or nothing if it is a path. A URL that was made a Path has lost a slash."""
    found = _COLLAPSED.sub(r"\1//", str(entry), count=1) if isinstance(entry, Path) else entry
    return found if is_remote(found) else ""


def public(url: str) -> str:
    """Returns a URL without user, password, fragment and the parameters that sign it; a path as it is."""
    if not is_remote(url):
        return url
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    query = urlencode([(name, value) for name, value in pairs if not _SECRET.search(name)])
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{shown}?{query}" if query else shown


def public_text(text: str) -> str:
    """Returns the message of a library as one line of at most 200 characters, in which URLs are `public`."""

    def shown(match: re.Match[str]) -> str:
        try:
            return public(match[0])
        except ValueError:  # no URL after all
            return match[0].partition("://")[0] + "://..."

    return " ".join(_URL.sub(shown, text).split())[:200]


def name_of(url: str) -> str:
    """Returns the last part of a URL's path as a file name that cannot leave its folder."""
    name = unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]
    return _NAME.sub("_", name).lstrip(".")[-120:] or "index.html"
