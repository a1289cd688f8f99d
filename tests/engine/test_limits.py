"""Resource limits that are too low are refused before torch is imported."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Called, one_line

from lambert.core.errors import MachineError
from lambert.engine.process import LEAST_ADDRESS_SPACE, LEAST_FILES, check_limits

ANY = resource.RLIM_INFINITY


def limit(monkeypatch: pytest.MonkeyPatch, space: int, files: int) -> None:
    """Gives this process these soft limits, as far as Python's module tells."""
    limits = {resource.RLIMIT_AS: (space, ANY), resource.RLIMIT_NOFILE: (files, ANY)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)


@pytest.mark.parametrize(("space", "files"), [(ANY, ANY), (LEAST_ADDRESS_SPACE, LEAST_FILES), (2**40, 1024)])
def test_enough_is_enough(space: int, files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, space, files)
    check_limits()


@pytest.mark.parametrize(
    ("space", "files", "message"),
    [
        (LEAST_ADDRESS_SPACE - 1, ANY, "is too small: torch alone takes about 700 MB"),
        (0, ANY, "An address space of 0 MB is too small"),
        (ANY, LEAST_FILES - 1, "15 open files are too few: at least 16 are needed"),
        (ANY, 0, "0 open files are too few"),
    ],
)
def test_less_is_refused(space: int, files: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, space, files)
    with pytest.raises(MachineError, match=message):
        check_limits()


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("ulimit -n 8", "8 open files are too few: at least 16 are needed. Raise ulimit -n."),
        ("ulimit -v 500000", "An address space of 512 MB is too small: torch alone takes about 700 MB."),
    ],
)
def test_limits_of_the_shell_are_a_line_and_4(limits: str, said: str, tmp_path: Path) -> None:
    command = f"{limits}; exec {sys.executable} -m lambert pretrain --corpus=c --out=o"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == ""
    one_line(Called(done.returncode, done.stdout, done.stderr), 4, f"lambert: {said}")
