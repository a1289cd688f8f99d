"""What a crash leaves of the files that a command writes: every state, worked out from one recorded run.

`disk.c`, preloaded, records the operations of a command below a folder. A `Disk` repeats them in memory and gives what
is left after each of them: by a kill, or where the power fails and what was not synced is lost.
"""

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Files = dict[str, bytes | None]
"""A folder's content by relative path; None is a folder."""

NONE, ERROR_ONCE, FULL_FROM, SHORT_ONCE, KILL, KILL_HALF = range(6)
"""The faults of `disk.c`."""


@dataclass
class File:
    data: bytes = b""
    synced: bytes = b""
    """What is left of it where the power fails."""


@dataclass
class Folder:
    entries: dict[str, "File | Folder"] = field(default_factory=dict)
    synced: dict[str, "File | Folder"] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    """One operation that changed something: a letter of `disk.c`, and what it was done to."""

    kind: str
    path: str
    other: str
    offset: int
    data: bytes

    def __str__(self) -> str:
        name = {"c": "create", "w": "write", "t": "truncate", "s": "sync", "r": "rename", "u": "unlink"}
        name |= {"m": "mkdir", "d": "rmdir"}
        size = f" {len(self.data)} bytes" if self.kind == "w" else ""
        return f"{name[self.kind]} {self.path}{' to ' + self.other if self.other else ''}{size}"


def operations(trace: Path) -> list[Operation]:
    """The recorded operations, in their order."""
    data, at, found = trace.read_bytes(), 0, []
    while at < len(data):
        kind, first, second, offset, length = struct.unpack_from("<cIIQQ", data, at)
        at += 25
        path, other = data[at : at + first].decode(), data[at + first : at + first + second].decode()
        at += first + second
        found.append(Operation(kind.decode(), path.strip("/"), other.strip("/"), offset, data[at : at + length]))
        if kind == b"w":
            at += length
    return found


class Disk:
    """Files and folders as a process sees them, and as they are after the power failed.

    A file holds then what it held when it was last synced; `names` says whether names are as they were when their
    folder was last synced, too, or as they were last, as where a journal was written out just before.
    """

    def __init__(self, files: Files) -> None:
        self.root = Folder()
        for path, data in sorted(files.items()):
            folder, name = self._parent(path)
            folder.entries[name] = folder.synced[name] = Folder() if data is None else File(data, data)

    def _at(self, path: str) -> Any:
        found: Any = self.root
        for part in filter(None, path.split("/")):
            found = found.entries[part]
        return found

    def _parent(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        return self._at(above), name

    def do(self, op: Operation) -> None:
        if op.kind in "wts":
            found = self._at(op.path)
            if op.kind == "w":
                found.data = found.data[: op.offset].ljust(op.offset, b"\0") + op.data + found.data[
                    op.offset + len(op.data) :
                ]  # fmt: skip
            elif op.kind == "t":
                found.data = found.data[: op.offset].ljust(op.offset, b"\0")
            elif isinstance(found, File):
                found.synced = found.data
            else:
                found.synced = dict(found.entries)
            return
        folder, name = self._parent(op.path)
        if op.kind == "c":
            folder.entries[name] = File()
        elif op.kind == "m":
            folder.entries[name] = Folder()
        else:
            moved = folder.entries.pop(name)
            if op.kind == "r":
                to, new = self._parent(op.other)
                to.entries[new] = moved

    def seen(self) -> Files:
        """After a kill."""
        return dict(_walk(self.root, lambda file: file.data, lambda folder: folder.entries))

    def lost(self, names: bool) -> Files:
        """After the power failed."""
        entries: Callable[[Folder], Any] = (lambda folder: folder.synced) if names else (lambda folder: folder.entries)
        return dict(_walk(self.root, lambda file: file.synced, entries))


def _walk(
    folder: Folder, data: Callable[[File], bytes], entries: Callable[[Folder], Any], above: str = ""
) -> Iterator[tuple[str, bytes | None]]:
    for name, found in sorted(entries(folder).items()):
        path = f"{above}{name}"
        if isinstance(found, File):
            yield path, data(found)
        else:
            yield path, None
            yield from _walk(found, data, entries, f"{path}/")


@dataclass(frozen=True)
class Crash:
    """One way to crash: its name, and what it leaves."""

    where: str
    files: Files


def crashes(before: Files, done: Sequence[Operation]) -> Iterator[Crash]:
    """Every different state that a crash leaves: before and after each operation, and in the middle of each write; by
    a kill, with the data lost that was not synced, and with names lost too."""
    known = {digest(before)}
    for number in range(1, len(done) + 1):
        states = {}
        op = done[number - 1]
        if op.kind == "w" and len(op.data) > 1:
            half = Disk(before)
            for earlier in done[: number - 1]:
                half.do(earlier)
            half.do(Operation("w", op.path, "", op.offset, op.data[: len(op.data) // 2]))
            states["killed in the middle of"] = half.seen()
        disk = Disk(before)
        for earlier in done[:number]:
            disk.do(earlier)
        states["killed after"] = disk.seen()
        states["no power after"] = disk.lost(names=False)
        states["no power, names lost, after"] = disk.lost(names=True)
        for how, files in states.items():
            key = digest(files)
            if key not in known:
                known.add(key)
                yield Crash(f"{how} operation {number} of {len(done)}: {op}", files)


def digest(files: Files) -> str:
    found = hashlib.sha256()
    for path, data in sorted(files.items()):
        found.update(repr((path, data if data is None else hashlib.sha256(data).digest())).encode())
    return found.hexdigest()


def likeness(files: Files, shown: Callable[[str, bytes], bytes]) -> str:
    """The same for states that differ only in numbers of processes and in what `shown` leaves out of a file."""
    alike: Files = {}
    for path, data in files.items():
        name = re.sub(r"(\.tmp-\w+-)\d+@", r"\1PID@", path)
        alike[name] = None if data is None else shown(name, data)
    return digest(alike)


def read(folder: Path) -> Files:
    """All that is in a folder."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def write(folder: Path, files: Files) -> None:
    """Makes a folder hold that and nothing else; folders above a file are made where they are not named."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    for name, data in sorted(files.items()):
        if data is None:
            (folder / name).mkdir(parents=True, exist_ok=True)
        else:
            (folder / name).write_bytes(data)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """-9 where it was killed after its time."""
    text: str
    operations: int
    """That it did below the folder, or tried."""


class Warm:
    """Runs commands quickly, one after the other, on the disk of `disk.c` below the folder `root`."""

    def __init__(self, home: Path, root: Path) -> None:
        self.home, self.root = home, root
        library = home / "disk.so"
        here = Path(__file__).parent
        flags = ["-std=gnu11", "-shared", "-fPIC", "-O2", "-o", str(library), str(here / "disk.c"), "-ldl", "-lpthread"]
        subprocess.run(["cc", *flags], check=True)
        environment = os.environ | {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            [sys.executable, str(here / "warm.py")],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(
        self, tokens: Sequence[str], fault: int = NONE, at: int = 0, error: int = 0, trace: bool = False,
        seconds: float = 120.0, ordered: bool = True,
    ) -> Ended:  # fmt: skip
        """Killed after so many seconds; where `ordered`, training waits for each save, so that the operations come in
        the same order every time. Temporary files go to the folder tmp below the root, where there is one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        said = self.home / "said"
        request = {
            "tokens": list(tokens), "cwd": str(self.home), "said": str(said), "root": str(self.root), "fault": fault,
            "at": at, "error": error, "seconds": seconds, "ordered": ordered,
            "trace": str(self.home / "trace") if trace else "",
            "tmp": str(self.root / "tmp") if (self.root / "tmp").is_dir() else "",
        }  # fmt: skip
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return Ended(answer["code"], said.read_text(errors="replace"), answer["operations"])

    def record(self, tokens: Sequence[str]) -> tuple[Ended, list[Operation]]:
        """As `run`, with all operations that changed something."""
        ended = self.run(tokens, trace=True)
        return ended, operations(self.home / "trace")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)
