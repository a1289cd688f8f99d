"""Atomic writes: files and folders that are complete or absent, even if the process is killed or the disk is full.

Each is written under a temporary name in the same folder, flushed to disk and renamed. The name contains the process id
and the host. The next process that writes to the same path, or the holder of a lock on the folder, removes the
leftovers of a dead process.
"""

import errno
import json
import math
import os
import platform
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from lambert.core.errors import DataError, LambertError, MachineError, UsageError, quote

MAX_BYTES = 1 << 30
"""Maximum bytes of a file that is read whole, such as settings, metrics or a tokenizer (our choice)."""
_NEW, _OLD, _GONE = "new", "old", "gone"
"""Kinds of temporary names: content that is being written; content that is being replaced, and restored if that fails;
content that is being deleted."""
_REMEDIES = {
    errno.ENOSPC: "free space, or choose another {kind}",
    errno.EDQUOT: "free space of the quota, or choose another {kind}",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f), or choose another {kind}",
    errno.EIO: "check the disk, or choose another {kind}",
    errno.ESTALE: "mount the file system again, or choose another {kind}",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or use fewer workers",
    errno.ENFILE: "end other programs, or raise the limit of open files of the system (sysctl fs.file-max)",
    errno.ENOMEM: "free memory that other programs use",
}
"""Advice for the errors of the operating system that are problems of the machine."""
_UNSUPPORTED_ERRORS = (errno.EACCES, errno.EINVAL, errno.ENOTSUP)
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_TEMPORARY = re.compile(rf"\.tmp-(?P<what>{_NEW}|{_OLD}|{_GONE})-(?P<pid>\d+)@(?P<host>[^@]*)@(?P<name>.+)")


def as_path(value: object, name: str) -> Path:
    """Returns the argument `name` of a Python call as a path. Raises UsageError if it is none, is empty, or has a NUL
    character."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str):
        raise UsageError(f"{name} must be a path, not {quote(value)}.")
    if not path:
        raise UsageError(f"{name} is empty: it must be a path.")
    if "\0" in path:
        raise UsageError(f"{name} = {quote(path)} has a NUL character: remove it.")
    return Path(path)


def write_atomic(path: Path, text: str | bytes) -> Path:
    """Writes a file, of text in UTF-8, atomically and returns its path. Raises `not_written` if the disk refuses it."""
    try:
        replace_files({path: text.encode() if isinstance(text, str) else text})
    except OSError as error:
        raise not_written(path, error) from error
    return path


def open_regular(path: Path, mode: str = "rb", buffering: int = -1) -> BufferedReader:
    """Opens a regular file, as bytes. Every file that another program may have placed is opened here.

    Raises DataError for a named pipe, which would wait for its other end, a socket or a device, which may have no end,
    and OSError as `open` does.
    """
    return cast(BufferedReader, open(path, mode, buffering, opener=regular_handle))


def regular_handle(path: str | Path, flags: int) -> int:
    """Returns the descriptor of an open regular file or folder; for writing also of a device, such as /dev/null. Raises
    as `open_regular`."""
    try:
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)  # without waiting for the end of a pipe
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a pipe that nobody reads
            raise _irregular(path) from error
        if not isinstance(error, BlockingIOError) or not os.path.isfile(path):
            raise
        handle = os.open(path, flags | os.O_NOCTTY, 0o666)  # another program has a lease on it, which ends
    kind = os.fstat(handle).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or (flags & os.O_WRONLY and stat.S_ISCHR(kind))):
        os.close(handle)
        raise _irregular(path)
    return handle


def _irregular(path: str | Path) -> DataError:
    return DataError(f"{path} is a named pipe, a socket or a device, not a file: replace it with a file.")


def read_file(path: Path) -> bytes:
    """Returns the content of a regular file. Raises DataError if it exceeds MAX_BYTES, and as `open_regular`."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
            raise DataError(
                f"{path} has {size:,} bytes, and such a file has at most {MAX_BYTES >> 30} GiB: it is damaged, or "
                "another file."
            )
        return file.read()


def remedy(error: OSError, kind: str = "place") -> str:
    """Returns advice for an error that is a problem of the machine, such as a full disk, as a sentence without a full
    stop; "" for other errors. `kind` is what the user may choose differently."""
    advice = _REMEDIES.get(error.errno or 0, "").format(kind=kind)
    return advice[:1].upper() + advice[1:]


def not_written(path: Path, error: OSError, kind: str = "place", kept: str = "") -> LambertError:
    """Returns the error for a file or folder that cannot be written: MachineError for a problem of the machine, else
    UsageError, which advises another `kind` of path. `kept` is a sentence without a full stop about what remains after
    a problem of the machine."""
    problem = f"{replace_temporary_names(path)} cannot be written: {error.strerror or error}."
    if not (advice := remedy(error, kind)):
        return UsageError(f"{problem} Choose another {kind}.")
    return MachineError(f"{problem} {f'{kept}; {advice[0].lower()}{advice[1:]}' if kept else advice}.")


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """A context in which `path` is written. Raises a system error about it, its content or its parents, or about no
    path, as `not_written`."""
    try:
        yield
    except OSError as error:
        about = Path(path_of(error) or path)
        if error.errno is None or not (path in (about, *about.parents) or about in path.parents):
            raise
        raise not_written(path, error, "output folder") from error


def path_of(error: OSError) -> str:
    """Returns the path that a system error is about, "" if it names none."""
    name = error.filename
    return replace_temporary_names(os.fsdecode(name)) if isinstance(name, str | bytes | os.PathLike) else ""


def replace_temporary_names(path: str | Path) -> str:
    """Returns a path with final names in place of temporary ones, for messages."""
    found = [(part, _TEMPORARY.fullmatch(part)) for part in Path(path).parts]
    return str(Path(*(match["name"] if match else part for part, match in found)))


def not_read(path: str | Path, error: OSError) -> LambertError:
    """Returns the error for a file that cannot be read: MachineError for a problem of the machine, else DataError."""
    problem = f"{path} cannot be read: {error.strerror or error}."
    return MachineError(f"{problem} {advice}.") if (advice := remedy(error, "copy of it")) else DataError(problem)


def check_regular(path: Path) -> Path:
    """Returns the path, for libraries that open it themselves. Raises DataError if it names something that is not a
    file."""
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file: replace it with a file.")
    if path.exists() and not path.is_file():
        raise _irregular(path)
    return path


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Returns a value as standard JSON that UTF-8 can encode. Numbers that are not finite become null. Halves of
    surrogate pairs, which stand for bytes of file names that are not UTF-8, are escaped."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return text if text.isascii() else _HALF_PAIR.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def parse_json(text: str | bytes, *, surrogates: bool = False) -> Any:
    """Returns the value of a JSON text. Raises ValueError if it is not standard JSON, is nested too deeply, or has a
    number beyond float64 or, unless `surrogates`, half of a surrogate pair. Those stand for bytes of file names that
    are not UTF-8."""
    try:
        value = json.loads(text, parse_constant=_parse_number, parse_float=_parse_number, parse_int=_parse_integer)
        json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass" if surrogates else "strict")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair, which is not a character") from None
    return value


def is_name(value: object) -> bool:
    """Returns whether a value in a file is the name of a file or folder beside it."""
    return isinstance(value, str) and value not in ("", ".", "..") and not set(value) & set("/\\:\0")


def json_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file. Raises DataError if the path does not name a file, or the file does not
    contain a JSON object (`parse_json`)."""
    try:
        found = parse_json(read_file(check_regular(path)))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} is not a JSON object.")
    return found


def _parse_number(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def _parse_integer(text: str) -> int:
    _parse_number(text)
    return int(text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_replaceable(path: Path, own: Callable[[bytes], bool], verb: str) -> None:
    """Raises UsageError if `path` is a file that `lambert VERB` did not write. `own` returns whether a file that begins
    with these bytes, at most 64 KiB, is an earlier output of the verb."""
    try:
        with open_regular(path) as file:
            beginning = file.read(1 << 16)
    except OSError:
        return  # there is no file, or writing it will explain why it cannot be used
    if beginning and not own(beginning):
        raise UsageError(f"{path} exists, and `lambert {verb}` did not write it: name another file.")


def check_new_folder(path: Path) -> None:
    """Removes leftovers of dead processes. Raises UsageError if `path` exists and is not an empty folder."""
    remove_leftovers(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} exists already. Choose another --out, or remove it.")


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Writes several files atomically. All new contents are on disk before the first file is replaced; files are
    replaced in the given order. Raises OSError if a write fails."""
    temporary = {path: _temporary(path, _NEW) for path in contents}
    try:
        for path, data in contents.items():
            remove_leftovers(path)
            make_folder(path.parent)
            with temporary[path].open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path, new in temporary.items():
            new.replace(path)
        for folder in {path.parent for path in contents}:
            sync(folder)
    finally:
        for new in temporary.values():
            _delete(new)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A context with the name of a temporary file, which is flushed and renamed to `path` at the end, or deleted after
    an exception. Raises OSError if a write fails."""
    new = _temporary(path, _NEW)
    try:
        yield new
        sync(new)
        new.replace(path)
        sync(path.parent)
    finally:
        _delete(new)


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A context with a temporary folder, which is renamed to `path` at the end, or deleted after an exception.

    Raises OSError, with `path` unchanged, if a write fails, or if `path` is a folder that is not empty and `replace` is
    false.
    """
    old = _temporary(path, _OLD)
    try:
        with temporary_folder(path) as new:
            yield new
            for found in (*sorted(new.rglob("*")), new):
                sync(found)
            if replace and path.is_dir():
                path.rename(old)
            new.rename(path)
            sync(path.parent)
    finally:
        _finish_replacement(old, path)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A context with a new folder that has a temporary name for `path`, and is deleted at the end. Also deletes those
    of killed processes. Raises OSError if a write fails."""
    folder = _temporary(path, _NEW)
    try:
        remove_leftovers(path)
        make_folder(path.parent)
        folder.mkdir()
        yield folder
    finally:
        _delete(folder)


def delete_folder(path: Path) -> None:
    """Deletes a folder. It is renamed first, so a killed process never leaves a part of it at `path`."""
    gone = _temporary(path, _GONE)
    path.rename(gone)
    _delete(gone)


def make_folder(path: Path) -> None:
    """Creates a folder and its parents, and flushes their entries to the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """A context with a folder for temporary files, which is deleted at the end. Also deletes folders of the same `name`
    of killed processes. Raises MachineError if no folder for temporary files can be written."""
    folder = next(filter(None, (_create_temporary(place / name) for place in _temporary_places())), None)
    if folder is None:
        raise MachineError("No folder for temporary files can be written: name one in the environment, as TMPDIR.")
    try:
        yield folder
    finally:
        _delete(folder)


def _temporary_places() -> list[Path]:
    """Returns the places that Python's tempfile tries. tempfile itself would leave a file there if the process was
    killed while it tries them."""
    named = filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP")))
    return [Path(place).absolute() for place in (*named, "/tmp", "/var/tmp", "/usr/tmp", ".")]


def _create_temporary(path: Path) -> Path | None:
    """Creates a folder with a temporary name for `path`. Returns None if it, or a file in it, cannot be written."""
    folder = _temporary(path, _NEW)
    try:
        remove_leftovers(path)
        folder.mkdir(mode=0o700)
        (folder / "room").write_bytes(b"for data")
        (folder / "room").unlink()
    except OSError:
        _delete(folder)
        return None
    return folder


def remove_leftovers(path: Path) -> None:
    """Removes the leftovers of dead processes of this host that wrote to `path`."""
    for left, match in _leftovers(path.parent):
        pid = int(match["pid"])
        dead = match["host"] == platform.node() and (pid == os.getpid() or not process_exists(pid))
        if match["name"] == path.name and dead:
            _clean_up(left, match)


def remove_all_leftovers(folder: Path) -> None:
    """Removes the leftovers of all processes in `folder`. The caller must keep other processes out of it."""
    for left, match in _leftovers(folder):
        _clean_up(left, match)


def is_temporary(path: Path) -> bool:
    """Returns whether `path` has a temporary name of this module."""
    return _TEMPORARY.fullmatch(path.name) is not None


def identity(path: Path) -> tuple[int, int] | None:
    """Returns the device and inode number, which identify a file or folder; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def explain_removal(folder: Path) -> str:
    """Returns the error message for a run folder that disappeared during the run."""
    return (
        f"{folder} was removed or replaced while the run was writing to it, and the run stops. If it was moved, move "
        "it back, and the same command continues."
        + " If the program changed its working directory, give an absolute path."
        * (not folder.is_absolute())
    )


def discard_output() -> None:
    """Discards what this process still writes to standard output, which nobody reads any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def process_exists(pid: int) -> bool:
    """Returns whether this host has a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def sync(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to disk. A folder that cannot be flushed is ignored: some file
    systems do not support it, and a writable folder may be unreadable."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRORS or not path.is_dir():
            raise


def _temporary(path: Path, what: str) -> Path:
    return path.with_name(f".tmp-{what}-{os.getpid()}@{platform.node()}@{path.name}")


def _leftovers(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    found = [(path, _TEMPORARY.fullmatch(path.name)) for path in sorted(folder.glob(".tmp-*"))]
    return [(path, match) for path, match in found if match]


def _clean_up(left: Path, match: re.Match[str]) -> None:
    if match["what"] == _OLD:
        _finish_replacement(left, left.with_name(match["name"]))
    else:
        _delete(left)


def _finish_replacement(old: Path, path: Path) -> None:
    """Ends a replacement: deletes `old`, or renames it back to `path` if the replacement was not completed."""
    if path.exists():
        _delete(old)
    elif old.exists():
        with suppress(OSError):
            old.rename(path)


def _delete(path: Path) -> None:
    """Deletes a file or folder. Errors are ignored: `remove_leftovers` deletes the rest later."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def write_files(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """Writes files by their paths in `folder`, and creates their folders."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
