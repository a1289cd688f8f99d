"""Recognises URLs, and removes passwords and signatures before they are shown or stored."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, unquote, unquote_plus, urlencode, urlsplit

from lambert.core.errors import UsageError

_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)(.*)", re.DOTALL)
"""Scheme, slashes, and what follows. A URL that was made a Path has lost a slash."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+[^\s\"'<>]+")
_SECRET = re.compile(
    r"sig|token|key|credential|secret|passw|pwd|auth|jwt|session|expires|x-amz|x-goog|policy", re.IGNORECASE
)
"""Words in the names of parameters that grant access."""
_PORT = re.compile(r"([^/?#@:]*|\[[^/?#@]*\]):\d+([/?#]|$)")
"""A host and its port. A port is not empty: what ends in a colon may be a password."""
_HOSTS = ("http", "https", "ftp", "ftps", "hdfs", "webhdfs", "sftp", "ssh", "smb")
"""Schemes with a host and a port after the slashes."""
_CONTAINERS = ("abfs", "abfss", "az", "wasb", "wasbs")
"""Schemes of Azure, in which CONTAINER@ACCOUNT is a place."""
_SHORTEST = 3
"""Characters of the shortest part of a password that is looked for in messages."""


def is_remote(entry: str | Path) -> bool:
    """Returns whether an input is a URL, and not a path."""
    return _REMOTE.match(str(entry)) is not None


def check_url(url: str) -> None:
    """Raises UsageError if a URL cannot be divided into its parts."""
    try:
        _ = urlsplit(url).port
    except ValueError as error:
        raise UsageError(f"{public(url)} is not a URL: {without_secrets(str(error), url)}.") from error


def account(url: str) -> str:
    """Returns the user and the password in a URL, empty if it has none."""
    found = _PARTS.match(url)
    return _account(found[1].lower(), found[3]).removesuffix("@") if found else ""


def public(url: str) -> str:
    """Returns a URL without user, password, fragment and signature; a path unchanged."""
    found = _PARTS.match(url)
    if not found:
        return url
    scheme, slashes, rest = found.groups()
    place = rest[len(_account(scheme.lower(), rest)) :].partition("#")[0]
    path, _, query = place.partition("?")
    kept = urlencode([(name, value) for name, value in _parameters(query) if not _SECRET.search(name)])
    return f"{scheme}:{slashes}{path}{'?' if kept else ''}{kept}"


def public_word(word: str) -> str:
    """Returns a word of a command line, such as --storage=URL, with its URL made `public`."""
    found = _REMOTE.search(word)
    return word[: found.start()] + public(word[found.start() :]) if found else word


def without_secrets(text: str, url: str = "") -> str:
    """Returns a text with its URLs made `public`, and without the account and signature of `url`: libraries may mistake
    a password for a host or a bucket, and name it in errors."""
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, "***")
    return _URL.sub(lambda found: public(found[0]), text)


def _account(scheme: str, rest: str) -> str:
    """Returns the account after the slashes of a URL, with the @. A password may have slashes."""
    own = re.split("[/?#]", rest, maxsplit=1)[0]
    first = rest.find("@")
    place = own.startswith("arn:") or (scheme in _HOSTS and _PORT.match(rest))
    if first < 0 or ("@" not in own and (":" not in own or place)):
        return ""
    end = first + len(re.split("[/?#]", rest[first:], maxsplit=1)[0])
    found = rest[: rest.rindex("@", 0, end) + 1]
    return "" if scheme in _CONTAINERS and ":" not in found else found


def _parameters(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True)
    except ValueError:  # more than Python accepts
        return []


def _secrets(url: str) -> Iterator[str]:
    found = account(url)
    pairs = [pair.partition("=") for pair in re.split("[?&#]", url)]
    values = [value for name, _, value in pairs if _SECRET.search(name)]
    parts = [found, *re.split("[:/?#@]", found), *values]
    yield from {form for part in parts for form in (part, unquote(part), unquote_plus(part)) if len(form) >= _SHORTEST}
