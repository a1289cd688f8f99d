"""Arrow files whose offsets, indices and sizes lead beyond the file, or to far more memory than it has."""

import io
import struct
from typing import Any

import pytest

from lambert.text.arrow import ArrowFile, UnreadableTable

pa = pytest.importorskip("pyarrow")
from pyarrow import ipc  # noqa: E402

LAST = 2**31 - 2


def written(column: Any) -> io.BytesIO:
    out, batch = io.BytesIO(), pa.record_batch([column], ["text"])
    with ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return io.BytesIO(out.getvalue())


def packed(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


WORDS = ["abc", "defgh", "ijk"]
DAMAGED: dict[str, tuple[Any, bytes, bytes]] = {
    "beyond the data": (pa.array(WORDS), packed(0, 3, 8, 11), packed(0, 3, 8, 4096)),
    "negative": (pa.array(WORDS), packed(0, 3, 8, 11), packed(-64, 3, 8, 11)),
    "falling": (pa.array(WORDS), packed(0, 3, 8, 11), packed(0, 8, 3, 11)),
    "not UTF-8": (pa.array(WORDS), b"abcdefgh", b"abc\xff\xfefgh"),
    "a list beyond its values": (pa.array([[7], [8, 9]]), packed(0, 1, 3), packed(0, 1, 900)),
    "texts of a list": (pa.array([WORDS]), packed(0, 3, 8, 11), packed(0, 3, 8, 4096)),
    "an index beyond the dictionary": (pa.array([*"abba"]).dictionary_encode(), packed(0, 1, 1), packed(0, 9, 1)),
    "a negative index": (pa.array([*"abba"]).dictionary_encode(), packed(0, 1, 1), packed(0, -9, 1)),
    "a long text of a view": (pa.array(["x" * 20], pa.string_view()), packed(20), packed(2000)),
    "the buffer of a view": (pa.array(["x" * 20], pa.string_view()), packed(0, 0), packed(5, 0)),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_columns_are_refused(kind: str) -> None:
    column, old, new = DAMAGED[kind]
    data = written(column).getvalue()
    if kind == "the buffer of a view":
        at = data.index(b"xxxx") + 4
        data = data[:at] + new + data[at + 8 :]
    else:
        assert old in data
        data = data.replace(old, new)
    with pytest.raises(UnreadableTable, match="is damaged or not Arrow"):
        list(ArrowFile(io.BytesIO(data)).rows())


def test_decimals_of_impossible_length_are_refused() -> None:
    with pytest.raises(UnreadableTable, match="digits behind the point"):
        ArrowFile(written(pa.array([None], pa.decimal128(10, -(2**20)))))


def run_ends() -> Any:
    return pa.RunEndEncodedArray.from_arrays(pa.array([LAST + 1], pa.int32()), pa.array(["a"]))


def repeated() -> Any:
    """100,000 lists of the same 100,000 numbers."""
    starts, sizes = pa.array([0] * 100_000, pa.int32()), pa.array([100_000] * 100_000, pa.int32())
    return pa.ListViewArray.from_arrays(starts, sizes, pa.array(range(100_000)))


def lists(end: int, values: Any) -> Any:
    """A list of all values."""
    return pa.ListArray.from_arrays(pa.array([0, end], pa.int32()), values)


LARGE = {
    "runs": run_ends,
    "a list of a run": lambda: lists(LAST, run_ends()),
    "a list of nothing": lambda: lists(1 << 28, pa.nulls(1 << 28)),
    "a list of long words": lambda: lists(
        100_000, pa.DictionaryArray.from_arrays([0] * 100_000, ["x" * 100_000])
    ),
    "a list of lists": lambda: lists(100_000, repeated()),
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
def test_rows_much_larger_than_the_file_are_refused(kind: str) -> None:
    with pytest.raises(UnreadableTable, match="has a record batch of"):
        list(ArrowFile(written(LARGE[kind]())).rows())


USUAL = {
    "words": pa.array(["a", None, "a"]).dictionary_encode(),
    "no answers": pa.array([[], []], pa.list_(pa.null())),
    "views": pa.array([["a", "b"], None], pa.list_(pa.string_view())),
    "lists that share": pa.ListViewArray.from_arrays([0, 0, 1], [2, 2, 1], pa.array(["a", "b"])),
    "structs": pa.array([{"a": ["x"], "b": 1}, None]),
    "unions": pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array(["a", "b"]), pa.array([1, 2])]),
}


@pytest.mark.parametrize("kind", USUAL)
def test_usual_columns_are_read(kind: str) -> None:
    assert [row["text"] for row in ArrowFile(written(USUAL[kind])).rows()] == USUAL[kind].to_pylist()
