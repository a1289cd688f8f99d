"""The file metrics.jsonl: which rows remain, and where it ends."""

import json
from pathlib import Path

from lambert.engine.metrics_file import last_update, truncate


def test_truncation_keeps_complete_rows_only(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    truncate(path, 5)
    assert not path.exists()
    path.write_bytes(b'{"step": 1}\n\xff\xfe\n[]\n{"step": 5}\n{"step": 6}\n{"step": 3, "heldout/a": 1}\n{"step": 4')
    truncate(path, 5)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 5, 3]


def test_the_last_update_is_that_of_the_last_complete_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert last_update(path) == 0
    path.write_text('{"step": 2, "loss": 1.0}\n{"step": 4}\n[1]\n{"st')
    assert last_update(path) == 4
