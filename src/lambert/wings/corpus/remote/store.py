"""Lists, writes, reads and deletes objects below a URL in a store that fsspec supports."""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lambert.core.contents import sha256
from lambert.core.errors import MachineError
from lambert.core.files import open_regular
from lambert.core.urls import public
from lambert.wings.corpus.remote.fetch import Unavailable, shorten_message
from lambert.wings.corpus.remote.servers import errors, open_filesystem

_BLOCK = 8 << 20
_PART = 50 << 20
"""Bytes of the parts in which s3fs sends an object of 100 MiB or more (`calculate_chunksize` in s3fs/core.py)."""
_ETAG = re.compile(r'"?(?P<md5>[0-9a-f]{32}(?P<parts>-\d+)?)"?')


class Store:
    """A folder of objects. Every method raises MachineError or another LambertError with the URL if it fails."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        with _read_errors(self.url):
            self._files, path = open_filesystem(self.url)
        self._path = path.rstrip("/")

    def objects(self) -> dict[str, dict[str, Any]]:
        """Returns the store's description of each object, by name; empty if there is no such folder."""
        with _read_errors(self.url):
            self._files.invalidate_cache()
            try:
                found = self._files.find(self._path, detail=True)
            except FileNotFoundError:
                return {}
        return {
            str(name).removeprefix(self._path).lstrip("/"): dict(entry)
            for name, entry in found.items()
            if str(name) != self._path
        }

    def read(self, name: str) -> bytes:
        """Returns the content of a small object."""
        with _read_errors(f"{self.url}/{name}"):
            return bytes(self._files.cat_file(f"{self._path}/{name}"))

    def write(self, name: str, path: Path) -> None:
        """Copies a file to an object, and compares the two."""
        with _write_errors(f"{self.url}/{name}"):
            self._files.put_file(str(path), f"{self._path}/{name}")
        if not self.holds(name, path):
            raise MachineError(
                f"{public(self.url)}/{name} differs from {path}, from which it was copied. The same command copies it "
                "again."
            )

    def copy(self, name: str, path: Path) -> None:
        """Copies an object to a file."""
        with _read_errors(f"{self.url}/{name}"):
            self._files.get_file(f"{self._path}/{name}", str(path))

    def delete(self, name: str) -> None:
        """Deletes an object."""
        with _write_errors(f"{self.url}/{name}"):
            self._files.rm_file(f"{self._path}/{name}")

    def holds(self, name: str, path: Path) -> bool:
        """Returns whether an object has the content of a file, by its size and the MD5 that the store reports. If the
        MD5 is missing or differs, which happens for encrypted objects, the object is read."""
        with _read_errors(f"{self.url}/{name}"):
            self._files.invalidate_cache()
            try:
                entry = self._files.info(f"{self._path}/{name}")
            except FileNotFoundError:
                return False
            if entry["size"] != path.stat().st_size:
                return False
            if _same_md5(entry, path):
                return True
            found = hashlib.sha256()
            with self._files.open(f"{self._path}/{name}", "rb", cache_type="none") as file:
                while data := file.read(_BLOCK):
                    found.update(data)
        return found.hexdigest() == sha256(path)


def _same_md5(entry: Mapping[str, Any], path: Path) -> bool:
    """Returns whether the store reports the MD5 of the file: Google as `md5Hash`, S3 as ETag, which for several parts
    is the MD5 of their MD5s."""
    if named := entry.get("md5Hash"):
        return bool(base64.b64decode(named).hex() == _hash_parts(path, path.stat().st_size)[0].hex())
    tag = _ETAG.fullmatch(str(entry.get("ETag") or ""))
    if tag is None:
        return False
    md5s = _hash_parts(path, _PART if tag["parts"] else path.stat().st_size)
    whole = hashlib.md5(b"".join(md5s), usedforsecurity=False).hexdigest() + f"-{len(md5s)}"
    return bool(tag["md5"] == (whole if tag["parts"] else md5s[0].hex()))


def _hash_parts(path: Path, part: int) -> list[bytes]:
    """Returns the MD5 of each part of a file."""
    found: list[bytes] = []
    with open_regular(path) as file:
        while True:
            own, left = hashlib.md5(usedforsecurity=False), part
            while left and (data := file.read(min(left, _BLOCK))):
                own.update(data)
                left -= len(data)
            if left == part and found:
                return found
            found.append(own.digest())
            if left:
                return found


@contextmanager
def _read_errors(url: str) -> Iterator[None]:
    try:
        with errors(url):
            yield
    except Unavailable as error:
        raise MachineError(
            f"{public(url)} cannot be reached: {error}. Run the same command again to continue."
        ) from error


@contextmanager
def _write_errors(url: str) -> Iterator[None]:
    with _read_errors(url):
        try:
            yield
        except (FileNotFoundError, PermissionError) as error:
            said = shorten_message(str(error), url).rstrip(".")
            raise MachineError(f"{public(url)} cannot be written: {said}. Choose another --out.") from error
