"""One folder a claim: each has a page, stands in the index, and names its raw output."""

from pathlib import Path

import pytest

from benchmarks.support.experiment import BENCHMARKS

SHARED = {"peers", "support", "__pycache__"}
FOLDERS = sorted(path for path in BENCHMARKS.iterdir() if path.is_dir() and path.name not in SHARED)
LOGS = (".jsonl", ".txt", ".log")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_claim_has_a_page_that_stands_in_the_index_and_names_its_logs(folder: Path) -> None:
    index = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert f"]({folder.name})" in index
    logs = [path.name for path in folder.iterdir() if path.suffix in LOGS]
    assert [name for name in logs if name not in page and f"({folder.name}/{name})" not in index] == []
