"""A file is complete or as it was."""

import errno
import os
import platform
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lambert.core import files
from lambert.core.errors import DataError, MachineError, UsageError
from lambert.core.files import (
    atomic_folder,
    check_regular,
    json_object,
    json_text,
    not_read,
    not_written,
    open_regular,
    parse_json,
    read_file,
    remedy,
    remove_all_leftovers,
    remove_leftovers,
    replace_files,
    scratch_folder,
    write_atomic,
    write_errors,
)


def test_it_writes_into_new_folders_and_over_old_files(tmp_path: Path) -> None:
    for text in ("one\n", "zwei ä\n"):
        assert write_atomic(tmp_path / "new" / "file.txt", text).read_text(encoding="utf-8") == text
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file.txt"]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "file").write_text("before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="file cannot be written: No space left on device"):
        write_atomic(tmp_path / "file", "after")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "before"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Free space, or choose another out"),
        (errno.EDQUOT, "Free space of the quota, or choose another out"),
        (errno.EFBIG, "Raise the limit of the size of files (ulimit -f), or choose another out"),
        (errno.EIO, "Check the disk, or choose another out"),
        (errno.ESTALE, "Mount the file system again, or choose another out"),
        (errno.EMFILE, "Raise the limit of open files (ulimit -n), or use fewer workers"),
        (errno.ENFILE, "End other programs, or raise the limit of open files of the system (sysctl fs.file-max)"),
        (errno.ENOMEM, "Free memory that other programs use"),
        (errno.EROFS, ""),
        (errno.EACCES, ""),
        (None, ""),
    ],
)  # fmt: skip
def test_the_advice_fits_the_error_of_the_system(number: int | None, advice: str) -> None:
    error = OSError(number, os.strerror(number)) if number else OSError("of a library")
    assert remedy(error, "out") == advice
    written = not_written(Path("a/b"), error, "out")
    assert str(written) == f"a/b cannot be written: {error.strerror or error}. {advice or 'Choose another out'}."
    assert type(written) is (MachineError if advice else UsageError)
    assert type(not_read(Path("a/b"), error)) is (MachineError if advice else DataError)


def beside(name: str, pid: int, what: str = "new") -> str:
    return f".tmp-{what}-{pid}@{platform.node()}@{name}"


def dead() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_what_a_dead_process_left_goes_with_the_next_write_and_nothing_else(tmp_path: Path) -> None:
    left = beside("file", dead())
    stays = {beside("file", os.getppid()), beside("other", dead()), f".tmp-new-{dead()}@elsewhere@file", ".tmp-file"}
    for name in (left, *stays):
        (tmp_path / name).touch()
    write_atomic(tmp_path / "file", "text")
    assert {path.name for path in tmp_path.iterdir()} == stays | {"file"}
    remove_all_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".tmp-file", "file"}


def test_what_was_being_replaced_goes_back_where_the_new_one_never_came(tmp_path: Path) -> None:
    for name in ("came", "lost"):
        (tmp_path / beside(name, dead(), "old")).mkdir()
    (tmp_path / "came").mkdir()
    remove_leftovers(tmp_path / "came")
    remove_leftovers(tmp_path / "lost")
    assert {path.name for path in tmp_path.iterdir()} == {"came", "lost"}


def test_several_files_change_together_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("before")
    (tmp_path / "two").write_text("a file where a folder should be")
    with pytest.raises(FileExistsError):
        replace_files({tmp_path / "one": b"after", tmp_path / "two" / "three": b"after"})
    assert (tmp_path / "one").read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_folder(tmp_path / "made") as folder:
        (folder / "half" / "file").touch()
    assert list(tmp_path.iterdir()) == []
    for content in ("one", "two"):
        with atomic_folder(tmp_path / "made", replace=True) as folder:
            (folder / content).touch()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["two"]
    with pytest.raises(OSError, match="not empty"), atomic_folder(tmp_path / "made") as folder:
        (folder / "three").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_temporary_files_of_a_killed_process_go_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / beside("work", dead())).mkdir()
    with scratch_folder("work") as folder:
        (folder / "file").touch()
        assert list(tmp_path.iterdir()) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_go_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    monkeypatch.setenv("TEMP", str(tmp_path))
    with scratch_folder("work") as folder:
        assert folder.parent == tmp_path
    monkeypatch.setattr(files, "_temporary_places", lambda: [tmp_path / "absent"])
    with pytest.raises(MachineError, match="TMPDIR"), scratch_folder("work"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("NaN", "not a finite"), ("[-Infinity]", "not a finite"), ("1e999", "not a finite"),
        ("9" * 400, "not a finite"), ("[" * 99_999, "nested too deeply"), ('"\\udc00"', "half of a surrogate pair"),
        ("{", "Expecting"), (b"\xff", "decode"),
    ],
)  # fmt: skip
def test_json_that_is_not_standard_is_a_value_error(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


def test_json_is_read_as_it_was_written() -> None:
    value = {"a": [1, -2.5, 10**300, True, None, "\U0001f600"]}
    assert parse_json(json_text(value)) == value
    assert parse_json(json_text(value).encode()) == value


def _irregular(folder: Path) -> Iterator[Path]:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(folder / "socket"))
    yield from (folder / "pipe", folder / "link", folder / "socket", Path("/dev/zero"), Path("/dev/tty"))


@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the address of a socket has at most 108 bytes
    for path in _irregular(tmp_path):
        for mode in ("rb", "r+b", "a+b"):
            with pytest.raises((DataError, OSError), match=re.escape(str(path))):
                open_regular(path, mode)
        for read in (read_file, json_object, check_regular):
            with pytest.raises((DataError, OSError), match=re.escape(str(path))):
                read(path)


def test_a_device_is_appended_to() -> None:
    with open_regular(Path("/dev/null"), "ab") as file:
        file.write(b"lost")


def test_other_errors_of_paths_are_those_of_python(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, error in ((tmp_path, IsADirectoryError), (tmp_path / "dangling", FileNotFoundError)):
        with pytest.raises(error):
            read_file(path)
    with pytest.raises(OSError, match="symbolic links"):
        read_file(tmp_path / "loop")


@pytest.mark.parametrize(
    ("name", "explained"),
    [
        ("/a/b/.tmp-new-1@h@c/x", True),
        (b"/a/b/.tmp-new-1@h@c", True),
        ("/a/b", True),
        ("/a", True),
        (None, True),
        (7, True),
        ("/a/b/other", False),
    ],
)
def test_errors_about_a_folder_that_is_written_name_it(name: Any, explained: bool) -> None:
    error = OSError(errno.EACCES, "Permission denied", name)
    with pytest.raises(UsageError if explained else PermissionError) as raised, write_errors(Path("/a/b/c")):
        raise error
    if explained:
        assert str(raised.value) == "/a/b/c cannot be written: Permission denied. Choose another output folder."
    with pytest.raises(OSError, match="of a library"), write_errors(Path("/a/b/c")):
        raise OSError("of a library")


def test_a_file_that_is_read_whole_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(files.MAX_BYTES + 1)
    with pytest.raises(DataError, match="at most 1 GiB"):
        read_file(path)
