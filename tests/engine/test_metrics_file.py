"""The file metrics.jsonl: which rows remain, and where it ends."""

import json
from pathlib import Path

import pytest

from lambert.engine.metrics_file import last_number, last_update, read_row, truncate


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


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{", b"[]", b"{}", b'{"step": null}', b'{"step": "4"}', b'{"step": 4.0}', b'{"step": true}',
        b'{"step": -1}',
        b'{"step": 4, "loss": NaN}', b'{"step": 4, "loss": -Infinity}', b'{"step": 1e999}',
        b'{"step": 4, "x": 1' + b"0" * 400 + b"}",
        b"[" * 100_000, b'{"step": 4, "x": "\\ud800"}', b'{"step": 4, "x": "\xff"}',
    ],
)  # fmt: skip
def test_what_is_no_row_is_left_out(line: bytes, tmp_path: Path) -> None:
    assert read_row(line) is None
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 2, "cost": 0.5}\n' + line + b"\n")
    assert (last_update(path), last_number(path, "cost")) == (2, 0.5)
    truncate(path, 9)
    assert path.read_bytes() == b'{"step": 2, "cost": 0.5}\n'
