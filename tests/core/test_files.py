"""A file is complete or as it was."""

import errno
import os
from pathlib import Path

import pytest

from lambert.core.errors import MachineError
from lambert.core.files import write_whole


def test_it_writes_into_new_folders_and_over_old_files(tmp_path: Path) -> None:
    for text in ("one\n", "zwei ä\n"):
        assert write_whole(tmp_path / "new" / "file.txt", text).read_text(encoding="utf-8") == text
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file.txt"]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "file").write_text("before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="file cannot be written: No space left on device"):
        write_whole(tmp_path / "file", "after")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "before"
