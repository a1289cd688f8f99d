"""Fetches remote inputs into the work folder. An interrupted download resumes. A file appears under its name only when
it is complete and its checksum matches.

Each URL has a folder, named by its hash. The file that is being fetched is `NAME.part`; it is renamed when it is
complete. `record.json` beside it says what was fetched.
"""

import fcntl
import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from lambert.core.contents import sha256
from lambert.core.errors import DataError, MachineError, UsageError
from lambert.core.files import make_folder, not_read, open_regular, read_file, replace_files, sync
from lambert.core.urls import is_remote, public, without_secrets
from lambert.wings.corpus.disk import disk_errors, format_size

TRIES = 5
AGAIN = "trying again"
"""Suffix of a step's name while it waits to retry."""
BACKOFF = 1.0
"""Seconds before the second try; doubled before each further one (our choice)."""
SPARE = 256 << 20
"""Bytes of the disk that stay free (our choice)."""
_BLOCK = 1 << 20
_LIST = 16 << 20
"""Maximum bytes of a list of checksums."""
_DIGESTS = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}
_SUM = re.compile(r"([0-9a-fA-F]{32,128}) [ *](.+)|\w+ \((.+)\) = ([0-9a-fA-F]{32,128})")
_NAME = re.compile(r"[^A-Za-z0-9._-]")
Progress = Callable[[int, int, str], None]


class Unavailable(Exception):
    """A try failed, and the next one may succeed. The message is the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Body:
    """The content of a remote file from some byte on."""

    read: Callable[[int], bytes]
    begin: int
    """The first byte of the content; 0 if the server does not send parts."""
    total: int | None
    """Bytes of the whole file, if the server says so."""
    mark: str
    """A value that changes when the file changes, such as its ETag; empty if the server sends none."""


class Server(Protocol):
    """A kind of server."""

    def open(self, url: str, begin: int, mark: str) -> AbstractContextManager[Body]:
        """Resumes the file at this byte if its version (`mark`) is unchanged; otherwise starts at byte 0. Raises
        Unavailable, or DataError if no further try can succeed.
        """

    def files(self, url: str) -> list[str]:
        """Returns the URLs of the files that a URL names; it may be a folder or have wildcards."""


def fetch(
    inputs: Sequence[str | Path], folder: Path, source_of: Callable[[str], Server], checksums: str, progress: Progress
) -> tuple[list[str | Path], list[int], dict[str, str]]:
    """Returns the inputs, with files in `folder` in place of remote ones; for each, the number of the original input;
    and the URL of each file.

    Raises:
        DataError: A file does not exist, or its checksum is wrong.
        MachineError: A server cannot be reached or ends too early, or the disk is full.
        UsageError: Two URLs differ only in their secrets.
    """
    found: list[str | Path] = []
    numbers: list[int] = []
    urls: dict[str, str] = {}
    own: dict[Path, str] = {}
    sums = _read_checksums(checksums, source_of) if checksums else None
    for number, entry in enumerate(inputs):
        if not is_remote(entry):
            found.append(entry)
            numbers.append(number)
            continue
        for url in _list_files(str(entry), source_of(str(entry))):
            if own.setdefault(locate(url, folder), url) != url:
                raise UsageError(
                    f"Two inputs are {public(url)} and differ only in a password or signature, so they would "
                    "be kept in one file. Fetch them as local files first."
                )
            path = _fetch_file(url, folder, source_of(url), sums, checksums, progress)
            found.append(path)
            numbers.append(number)
            urls[str(path)] = public(url)
    return found, numbers, urls


def _list_files(url: str, server: Server) -> list[str]:
    try:
        return server.files(url)
    except Unavailable as error:
        raise MachineError(
            f"{public(url)} cannot be reached: {error}. Run the same command again to continue."
        ) from error


def locate(url: str, folder: Path) -> Path:
    """Returns the path in `folder` of the file at a URL."""
    return folder / hashlib.sha256(public(url).encode()).hexdigest()[:16] / name_of(url)


def fetch_again(path: Path, inputs: Sequence[str | Path], folder: Path, source_of: Callable[[str], Server]) -> None:
    """Fetches the file that `fetch`, called with these inputs on another machine, stores at `path`. If several
    processes of this machine need it, one fetches and the others wait. Raises DataError if no input names the file any
    more; otherwise as `fetch`.
    """
    for entry in filter(is_remote, inputs):
        for url in _list_files(str(entry), source_of(str(entry))):
            if locate(url, folder) == path:
                make_folder(path.parent)
                with (path.parent / "lock").open("wb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    _fetch_file(url, folder, source_of(url), None, "", lambda *_: None)
                return
    raise DataError(f"No remote input has the name of {path} any more: restore it, or remove it from input.")


def _fetch_file(
    url: str, folder: Path, server: Server, sums: Mapping[str, str] | None, checksums: str, progress: Progress
) -> Path:
    path = locate(url, folder)
    own, record = path.parent, path.with_name("record.json")
    expected = _find_checksum(url, sums, checksums) if sums is not None else ""
    if _complete(path, record, public(url)):
        if expected and _hash(path, expected) != expected:
            raise _refuse_file(url, path, expected, checksums)
        return path
    part = own / f"{path.name}.part"
    with disk_errors(own, kept="What was fetched is kept"):
        make_folder(own)
        mark = download(server, url, part, expected, progress)
        if expected and _hash(part, expected) != expected:
            raise _refuse_file(url, part, expected, checksums)
        sync(part)
        described = {"url": public(url), "bytes": part.stat().st_size, "sha256": sha256(part), "mark": mark}
        part.replace(path)
        replace_files({record: (json.dumps(described | {"checksum": expected}) + "\n").encode()})
        (own / "part.json").unlink(missing_ok=True)
    return path


def _complete(path: Path, record: Path, url: str) -> bool:
    try:
        described = json.loads(read_file(record))
        same = described["url"] == url and described["bytes"] == path.stat().st_size
        return bool(same and described["sha256"] == sha256(path))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def download(server: Server, url: str, part: Path, expected: str, progress: Progress) -> str:
    """Downloads a file to `part`. Bytes of an earlier try are kept if the file has not changed or an `expected`
    checksum will be compared. Returns the mark of the file."""
    problem = ""
    for attempt in range(TRIES):
        if attempt:
            begin = part.stat().st_size if part.exists() else 0
            progress(begin, begin, f"fetching {name_of(url)}: {problem}; {AGAIN}, {attempt + 1} of {TRIES}")
            time.sleep(BACKOFF * 2 ** (attempt - 1))
        mark = _read_mark(part)
        begin = part.stat().st_size if part.exists() and (mark or expected) else 0
        try:
            with server.open(url, begin, mark) as body:
                if body.begin and (body.begin != begin or body.mark != mark):
                    part.unlink()
                    raise Unavailable("the file changed while it was fetched")
                if not body.begin:
                    part.unlink(missing_ok=True)
                    replace_files({part.with_name("part.json"): json.dumps({"mark": body.mark}).encode()})
                size = _write(body, part, url, progress)
            if body.total is not None and size != body.total:
                raise Unavailable(f"it ended after {size:,} of {body.total:,} bytes")
            return body.mark
        except Unavailable as error:
            problem = str(error)
    kept = part.stat().st_size if part.exists() else 0
    raise MachineError(
        f"{public(url)} cannot be fetched in {TRIES} tries: {problem}. Run the same command again to continue"
        f"{f' after {kept:,} bytes' if kept else ''}."
    )


def _write(body: Body, part: Path, url: str, progress: Progress) -> int:
    """Appends a body to `part` and returns the size of the file."""
    with open_regular(part, "ab") as file:
        size = file.tell()
        _check_space(part, url, (body.total or size) - size)
        checked = size
        while data := body.read(_BLOCK):
            file.write(data)
            size += len(data)
            if body.total is not None and size > body.total:
                file.truncate(0)
                raise Unavailable(f"it has more than the {body.total:,} bytes that the server named")
            if size - checked >= SPARE // 4:
                _check_space(part, url, 0)
                checked = size
            progress(size, body.total or size, f"fetching {name_of(url)}")
    return size


def _read_mark(part: Path) -> str:
    try:
        return str(json.loads(read_file(part.with_name("part.json")))["mark"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _check_space(part: Path, url: str, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if free < needed + SPARE:
        raise MachineError(
            f"{part.parent} has {format_size(free)} free, and {public(url)} needs {format_size(needed + SPARE)}: "
            "free space, or choose another work folder."
        )


def _read_checksums(where: str, source_of: Callable[[str], Server]) -> dict[str, str]:
    """Returns the checksums in a list, by file name."""
    try:
        if is_remote(where):
            data = b""
            with source_of(where).open(where, 0, "") as body:
                while len(data) <= _LIST and (block := body.read(_BLOCK)):
                    data += block
        else:
            with open_regular(Path(where)) as file:
                data = file.read(_LIST + 1)
    except OSError as error:
        raise not_read(where, error) from error
    except Unavailable as error:
        raise MachineError(f"{public(where)} cannot be fetched: {error}.") from error
    sums = {}
    for line in data[:_LIST].decode("utf-8", "replace").splitlines():
        if match := _SUM.fullmatch(line.strip()):
            name, digest = (match[2], match[1]) if match[1] else (match[3], match[4])
            if len(digest) in _DIGESTS:
                sums[name.rpartition("/")[2]] = digest.lower()
    if not sums:
        raise DataError(f"{public(where)} is not a list of checksums as sha256sum and sha1sum write them.")
    return sums


def _find_checksum(url: str, sums: Mapping[str, str], checksums: str) -> str:
    if name_of(url) not in sums:
        raise DataError(f"{public(checksums)} has no checksum of {name_of(url)}. Name another list, or omit the list.")
    return sums[name_of(url)]


def _hash(path: Path, expected: str) -> str:
    name = _DIGESTS[len(expected)]
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.new(name, usedforsecurity=False)).hexdigest()


def _refuse_file(url: str, path: Path, expected: str, checksums: str) -> DataError:
    """Removes a file with a wrong checksum."""
    found = _hash(path, expected)
    path.unlink()
    return DataError(
        f"{public(url)} has the {_DIGESTS[len(expected)].upper()} {found}, not {expected} of {public(checksums)}. The "
        "file was deleted: run the command again, or check that the list belongs to this file."
    )


def name_of(url: str) -> str:
    """Returns the last part of a URL's path as a file name that cannot leave its folder."""
    name = unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]
    return _NAME.sub("_", name).lstrip(".")[-120:] or "index.html"


def shorten_message(text: str, url: str = "") -> str:
    """Returns the message of a library about `url` as one line of at most 200 characters, without secrets."""
    return " ".join(without_secrets(text, url).split())[:200]
