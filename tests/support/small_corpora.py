"""Small corpora for the tests of preparation: settings, what is on the disk after it, and a way to stop it."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare

WORDS = "the river runs under an old stone bridge near the quiet road to town"


class Stopped(Exception):
    """A stand-in for a kill."""


def small_config(inputs: Path, out: str, **settings: Any) -> PrepareConfig:
    """Settings for a corpus beside `inputs`, made by one process."""
    fixed: dict[str, Any] = {"input": (inputs,), "vocabulary": 120, "workers": 1, "min_tokens": 2}
    return PrepareConfig(out=inputs.parent / out, **fixed | settings)


def content(folder: Path, without: Collection[str] = ()) -> dict[str, bytes]:
    """The files below a folder, but for those named in `without` or in a folder named there."""
    files = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(file): (folder / file).read_bytes() for file in files if not set(file.parts).intersection(without)}


def written(folder: Path, pattern: str = "*.parquet") -> dict[str, tuple[int, int]]:
    """The inode and time of each file in a folder, which change when it is written again."""
    files = [path for path in sorted(folder.glob(pattern)) if path.is_file()]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def stopping(phase: str, calls: int = 0) -> Callable[[int, int, str], None]:
    """A function for the progress that raises Stopped in a phase, after so many calls in it."""
    left = calls

    def progress(done: int, total: int, note: str) -> None:
        nonlocal left
        left -= note == phase
        if left < 0:
            raise Stopped

    return progress


def stopped(chosen: PrepareConfig, phase: str, calls: int = 0) -> None:
    """Prepares until a phase has been told so many times."""
    with pytest.raises(Stopped):
        prepare(chosen, stopping(phase, calls))
