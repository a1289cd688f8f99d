import errno
import os
from pathlib import Path

import pytest

from lambert.core.errors import LambertError, MachineError, UsageError
from lambert.wings.corpus.disk import disk_errors, format_size


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, MachineError, r"No space left on device\. All is kept; free space, or choose another out\."),
        (errno.EACCES, UsageError, r"Permission denied\. Choose another out\."),
        (errno.EIO, MachineError, r"Input/output error\. All is kept; check the disk, or choose another out\."),
        (errno.EMFILE, MachineError, r"Too many open files\. All is kept; raise the limit of open files \(ulimit -n\)"),
        (errno.ENAMETOOLONG, UsageError, r"File name too long\. Choose another out\."),
        (errno.ENOTEMPTY, UsageError, r"written by another process meanwhile"),
    ],
)
def test_a_failure_of_the_disk_is_explained(number: int, kind: type[LambertError], message: str) -> None:
    with pytest.raises(kind, match=rf"^a/b .*{message}"), disk_errors(Path("a/b"), "out", "All is kept"):
        raise OSError(number, os.strerror(number))


def test_other_errors_pass() -> None:
    for error in (MachineError("ours"), ValueError("ours")):
        with pytest.raises(type(error), match=r"^ours$"), disk_errors(Path("a")):
            raise error


def test_sizes_as_text() -> None:
    sizes = [format_size(10.0**power) for power in (0, 3, 6, 9, 12)]
    assert sizes == ["0.0 kB", "1.0 kB", "1.0 MB", "1.0 GB", "1.0 TB"]
