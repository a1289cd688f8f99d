"""Files of predictions, which are complete or absent."""

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from lambert.core.errors import MachineError, UsageError
from lambert.inference.answer_file import Unfinished, answer_file

ROWS = [{"id": n, "vector": [float(n), 0.1, -2.5]} for n in range(9000)]


class Broken(list[object]):
    """Rows of which the second one cannot be computed."""

    def __iter__(self) -> Iterator[object]:
        yield self[0]
        raise KeyError


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    with answer_file(path) as add:
        for row in rows:
            add(row)
    return path


@pytest.mark.parametrize("count", [0, 1, 9000])
def test_an_array_has_a_row_for_each_vector(count: int, tmp_path: Path) -> None:
    found = np.load(write(tmp_path / "vectors.npy", ROWS[:count]))
    assert found.dtype == np.float32
    assert found.tolist() == [np.array(row["vector"], np.float32).tolist() for row in ROWS[:count]]


def test_parquet_has_the_columns_and_float32_vectors(tmp_path: Path) -> None:
    table = pyarrow.parquet.read_table(write(tmp_path / "deep" / "vectors.parquet", ROWS))
    assert table.column("id").to_pylist() == [row["id"] for row in ROWS]
    assert table.schema.field("vector").type == pyarrow.list_(pyarrow.float32())
    assert table.column("vector").to_pylist()[7] == pytest.approx(ROWS[7]["vector"])


@pytest.mark.parametrize("form", [lambda n: n, lambda n: [n], lambda n: {"n": n}], ids=["number", "list", "object"])
@pytest.mark.parametrize("reverse", [False, True], ids=["large first", "fraction first"])
def test_parquet_keeps_the_digits_of_large_integers_beside_fractions(
    form: Callable[[float], Any], reverse: bool, tmp_path: Path
) -> None:
    """As text, in whichever row group the first fraction stands."""
    values = [form(n) for n in (2**60 + 1, *[3] * 9000, 0.5)][:: -1 if reverse else 1]
    rows = [{"id": value, "label": "a"} for value in values]
    table = pyarrow.parquet.read_table(write(tmp_path / "answers.parquet", rows))
    assert [json.loads(text) for text in table.column("id").to_pylist()] == values
    assert set(table.column("label").to_pylist()) == {"a"}


def test_json_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "answers.jsonl", [{"label": "a"}, {"label": "b"}])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"label": "a"}, {"label": "b"}]


@pytest.mark.parametrize("name", ["answers.jsonl", "vectors.npy", "vectors.parquet"])
def test_an_unfinished_file_does_not_appear(name: str, tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        write(tmp_path / name, Broken(ROWS))  # type: ignore[arg-type]
    assert not [*tmp_path.iterdir()]


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this model has none: write"):
        write(tmp_path / "labels.npy", [{"label": "a"}])
    with pytest.raises(UsageError, match=r"\.jsonl.*\.npy.*\.parquet"):
        write(tmp_path / "labels.xls", [])


def test_a_full_disk_names_the_file_when_it_is_noticed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"

    def close() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with (
        pytest.raises(MachineError, match=r"out\.jsonl cannot be written: No space left"),
        Unfinished(out, {}, ()) as rows,
    ):
        rows._stack.callback(close)
