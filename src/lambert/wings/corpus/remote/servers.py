"""The servers of remote inputs: HTTP through the standard library, data sets of the Hugging Face Hub by name, and
everything that fsspec supports (S3, Google, Azure, SSH, ...)."""

import base64
import http.client
import importlib
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from lambert.core.errors import DataError, LambertError, UsageError
from lambert.core.registry import import_extra
from lambert.core.urls import account, public
from lambert.core.version import __version__
from lambert.text.streams import inner_suffix
from lambert.wings.corpus.reading.readers import SUFFIXES
from lambert.wings.corpus.remote.fetch import Body, Server, Unavailable, shorten_message

SECONDS = 60
"""Timeout of a server that sends nothing (our choice)."""
_BUCKETS = ("s3", "s3a", "gs", "gcs", "r2", "oss", "abfs", "abfss", "az", "adl")
_AGAIN = {408, 425, 429, 500, 502, 503, 504}
SCHEME = "datasets"
_HUB_SECONDS = 10
"""Timeout of the Hub (our choice)."""
_FORM = "datasets://OWNER/NAME?config=CONFIG&split=SPLIT"


def source_of(url: str) -> Server:
    """Returns the kind of server of a URL."""
    scheme = url.partition("://")[0].lower()
    if scheme == SCHEME:
        return Hub()
    return Http() if scheme in ("http", "https") else Fsspec()


class Http:
    """A server of HTTP or HTTPS."""

    def files(self, url: str) -> list[str]:
        return [url]

    @contextmanager
    def open(self, url: str, begin: int, mark: str) -> Iterator[Body]:
        shown = public(url)
        try:
            with urllib.request.urlopen(_make_request(url, begin, mark), timeout=SECONDS) as response:
                yield _make_body(response, begin, shown)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and begin:  # nothing is left: the file is complete, or is shorter now
                total = (error.headers.get("Content-Range") or "").rpartition("/")[2]
                if total == str(begin):
                    yield Body(lambda size: b"", begin, begin, mark)
                    return
                raise Unavailable("the file changed while it was fetched") from error
            if error.code in _AGAIN:
                raise Unavailable(f"the server answers {error.code} {error.reason}") from error
            if "infinite loop" in str(error.reason or error.msg):
                raise DataError(f"{shown} is redirected in a circle.") from error
            raise DataError(f"{shown} cannot be fetched: the server answers {error.code} {error.reason}.") from error
        except http.client.InvalidURL as error:
            raise DataError(f"{shown} is not a URL: {shorten_message(str(error), url)}.") from error
        except http.client.HTTPException as error:
            raise Unavailable(f"the server's answer is cut off or not HTTP ({type(error).__name__})") from error
        except OSError as error:  # also URLError
            reason = getattr(error, "reason", None) or error
            raise Unavailable(str(getattr(reason, "strerror", None) or reason) or "no answer") from error


def _make_request(url: str, begin: int, mark: str) -> urllib.request.Request:
    try:
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        request = urllib.request.Request(urlunsplit((parts.scheme, host, parts.path, parts.query, "")))
    except ValueError as error:
        raise DataError(f"{public(url)} is not a URL: {shorten_message(str(error), url)}.") from error
    request.add_header("User-Agent", f"lambert/{__version__}")
    request.add_header("Accept-Encoding", "identity")
    if at:
        name, _, password = user.partition(":")
        token = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    if begin:
        request.add_header("Range", f"bytes={begin}-")
        if mark:
            request.add_header("If-Range", mark)
    return request


def _make_body(response: Any, begin: int, shown: str) -> Body:
    headers = response.headers
    etag = headers.get("ETag") or ""
    mark = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified") or ""
    length = headers.get("Content-Length") or ""
    total = int(length) if length.isdecimal() and len(length) < 16 else None

    def read(size: int) -> bytes:
        try:
            return bytes(response.read(size))
        except (http.client.HTTPException, OSError) as error:
            raise Unavailable(f"the connection was lost ({type(error).__name__})") from error

    if response.status != 206:
        return Body(read, 0, total, mark)
    unit, _, content = (headers.get("Content-Range") or "").partition(" ")
    span, _, whole = content.partition("/")
    first = span.partition("-")[0]
    if unit != "bytes" or not first.isdecimal() or int(first) != begin or not whole.isdecimal():
        raise DataError(
            f"{shown} cannot be continued: the server sent another part of the file than the one requested."
        )
    return Body(read, begin, int(whole), mark)


class Fsspec:
    """A server that fsspec supports."""

    def files(self, url: str) -> list[str]:
        with errors(url):
            files, path = open_filesystem(url)
            if any(sign in path for sign in "*?["):
                found = [name for name, entry in files.glob(path, detail=True).items() if entry["type"] == "file"]
            elif files.isdir(path):
                found = [name for name in files.find(path) if _is_text(name)]
            else:
                found = [path]
            if not found:
                raise DataError(f"No such files: {public(url)}.")
            return [str(files.unstrip_protocol(name)) for name in sorted(found)]

    @contextmanager
    def open(self, url: str, begin: int, mark: str) -> Iterator[Body]:
        with errors(url):
            files, path = open_filesystem(url)
            entry = files.info(path)
            found = next((str(entry[key]) for key in ("ETag", "etag", "md5", "LastModified", "mtime", "created")
                          if entry.get(key)), "")  # fmt: skip
            file = files.open(path, "rb", cache_type="readahead", block_size=8 << 20)
        with file:
            begin = begin if begin and mark and found == mark and begin <= entry["size"] else 0
            file.seek(begin)

            def read(size: int) -> bytes:
                with errors(url):
                    return bytes(file.read(size))

            yield Body(read, begin, entry["size"], found)


def _is_text(name: str) -> bool:
    inner = inner_suffix(Path(name))
    return inner in SUFFIXES or inner.startswith(".xml")


def open_filesystem(url: str) -> tuple[Any, str]:
    """Returns the object of fsspec for a URL, and the path in it. Raises UsageError if a library is missing, and for a
    user or password in the URL of an object store, whose library would read them as a part of the bucket's name."""
    if url.partition("://")[0].lower() in _BUCKETS and account(url):
        raise UsageError(
            f"{public(url)} was given with a user or a password, which URLs of object storage do not have: set them as "
            "its library says; for S3, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    try:
        files, path = importlib.import_module("fsspec.core").url_to_fs(url)
        files.invalidate_cache()  # objects of fsspec are shared in the process, and remember listings
        return files, str(path)
    except ImportError as error:
        missing = str(error).rstrip(".") if "fsspec" not in str(getattr(error, "name", "")) else "fsspec is missing"
        raise UsageError(f"{public(url)} needs a library: {missing}; pip install 'lambert-bert[remote]'.") from error
    except ValueError as error:
        raise UsageError(f"{public(url)} cannot be read: {shorten_message(str(error), url)}.") from error


@contextmanager
def errors(url: str) -> Iterator[None]:
    """A context that converts the exceptions of fsspec and of the libraries behind it, which have no common class."""
    try:
        yield
    except (LambertError, Unavailable):
        raise
    except FileNotFoundError as error:
        raise DataError(f"No such file: {public(url)}.") from error
    except PermissionError as error:
        raise DataError(f"{public(url)} cannot be read: access is denied.") from error
    except Exception as error:
        said = f"{type(error).__name__}: {shorten_message(str(error), url)}"
        if "credential" in said.partition(":")[0].lower():
            raise UsageError(
                f"{public(url)} needs credentials, and none can be used ({said.rstrip('.')}). Set them as its library "
                "says; for S3, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or FSSPEC_S3_ANON=true for public files."
            ) from error
        raise Unavailable(said) from error


class Hub:
    """Data sets by name: `datasets://OWNER/NAME?config=CONFIG&split=SPLIT&revision=COMMIT`, the path of a folder with
    three slashes.

    `config` and `revision` are optional; the default of `split` is train. Values of types that JSON lacks become text.
    A data set has no checksum, and an interrupted one starts over; a `revision` fixes its content.
    """

    def files(self, url: str) -> list[str]:
        parts = urlsplit(url)
        path = f"{parts.path.rstrip('/')}/{_settings(url)['split']}.jsonl"
        return [f"{SCHEME}://{parts.netloc}{path}" + (f"?{parts.query}" if parts.query else "")]

    @contextmanager
    def open(self, url: str, begin: int, mark: str) -> Iterator[Body]:
        parts = urlsplit(url)
        name = (parts.netloc + parts.path.rpartition("/")[0]).rstrip("/")
        settings = _settings(url)
        held = b""

        def read(size: int) -> bytes:
            nonlocal held
            while len(held) < size:
                try:
                    row = next(rows, None)
                except Exception as error:
                    raise Unavailable(f"{type(error).__name__}: {shorten_message(str(error), url)}") from error
                if row is None:
                    break
                held += json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace") + b"\n"
            data, held = held[:size], held[size:]
            return data

        with _quiet():
            if parts.netloc:
                _check_reachable()
            rows = self._rows(name, settings, public(url))
            yield Body(read, 0, None, "")

    def _rows(self, name: str, settings: dict[str, str], shown: str) -> Iterator[dict[str, Any]]:
        load = import_extra("datasets", f"{shown} needs datasets", "hub").load_dataset
        try:
            config, split, revision = (settings.get(key) for key in ("config", "split", "revision"))
            return iter(load(name, config, split=split, revision=revision, streaming=True))
        except (ValueError, FileNotFoundError) as error:
            raise DataError(f"{shown} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
        except Exception as error:
            raise Unavailable(f"{type(error).__name__}: {shorten_message(str(error))}") from error


def _check_reachable() -> None:
    """Raises Unavailable if the Hub cannot be reached. The library would try again for minutes."""
    try:
        known = importlib.import_module("huggingface_hub.constants")
    except ImportError:
        return
    if known.HF_HUB_OFFLINE:
        return  # the library refuses at once
    try:
        with urllib.request.urlopen(urllib.request.Request(known.ENDPOINT, method="HEAD"), timeout=_HUB_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        error.close()  # the server answers; the library reports what is wrong
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        said = str(getattr(reason, "strerror", None) or reason) or "no answer"
        raise Unavailable(f"{known.ENDPOINT} does not answer ({said})") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """A context that suppresses the lines that the libraries log about each try."""
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub", "fsspec")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _settings(url: str) -> dict[str, str]:
    found = {key: values[-1] for key, values in parse_qs(urlsplit(url).query).items()}
    if unknown := sorted(found.keys() - {"config", "split", "revision"}):
        raise UsageError(f"{public(url)}: {unknown[0]} is unknown. The form is {_FORM}.")
    return {"split": "train"} | found
