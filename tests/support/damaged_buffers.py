"""Reads damaged files of formats whose libraries trust what a file says about its buffers. A process of its own, which
may crash: `damaged_buffers.py FOLDER FIRST COUNT`. Writes the kind and number of each example before it is read."""

import datetime
import decimal
import io
import os
import random
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError

MEMORY = 4 << 30
NUMBERS = (0, 1, -1, 2, 3, 7, 127, 255, 1000, 2**20, 2**31 - 1, -(2**31), 2**32 - 1, 2**40, 2**63 - 1, -(2**63))


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Cuts off the end, or changes bits, bytes, aligned integers or several bytes at once."""
    if draw.random() < 0.15:
        return data[: draw.randrange(len(data))]
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at, how = draw.randrange(len(found)), draw.random()
        width = 4 if how < 0.75 else 8
        if how < 0.4:
            found[at] ^= 1 << draw.randrange(8) if how < 0.25 else draw.randrange(256)
        elif how < 0.95 and (at := at // width * width) + width <= len(found):
            (value,) = struct.unpack_from("<q" if width == 8 else "<i", found, at)
            value = draw.choice((*NUMBERS, value - 1, value + 1, value + 8, value + 64)) % (1 << 8 * width)
            found[at : at + width] = value.to_bytes(width, "little")
        else:
            source = draw.randrange(len(found))
            piece = found[source : source + draw.randrange(1, 64)]
            found[at : at + len(piece)] = piece
    return bytes(found)


def columns() -> Iterator[Any]:
    """Yields a column of six values of each type."""
    import pyarrow as pa

    texts = ["good day", "", "x" * 50, None, "\u65e5\u672c", "end"]
    data = [None if text is None else text.encode() for text in texts]
    lists = [["a", "b"], [], None, ["c"], ["d", None], ["e"]]
    day = datetime.datetime(2020, 1, 1)
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        yield pa.array(texts, kind)
    for kind in (pa.binary(), pa.binary_view()):
        yield pa.array(data, kind)
    for kind in (pa.list_(pa.string()), pa.large_list(pa.string()), pa.list_view(pa.string())):
        yield pa.array(lists, kind)
    yield pa.array([["a", "b"]] * 6, pa.list_(pa.string(), 2))
    yield pa.array([{"a": text, "b": 1} for text in texts])
    yield pa.array(texts).dictionary_encode()
    yield pa.array(lists, pa.list_(pa.dictionary(pa.int32(), pa.string())))
    yield pa.array([[("k", "v")]] * 6, pa.map_(pa.string(), pa.string()))
    for kind in (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("ns"), pa.date32(), pa.date64()):
        yield pa.array([day] * 6, kind)
    for kind in (pa.duration("s"), pa.duration("ns"), pa.float16(), pa.bool_(), pa.null()):
        yield pa.array([None] * 6 if kind == pa.null() else [5] * 6 if kind != pa.bool_() else [True] * 6).cast(kind)
    yield pa.array([decimal.Decimal("1.5")] * 6)
    yield pa.array([pa.MonthDayNano([1, 2, 3])] * 6)
    yield pa.array([b"abcd"] * 6, pa.binary(4))
    yield pa.RunEndEncodedArray.from_arrays(pa.array([2, 6], pa.int32()), pa.array(["a", "b"]))
    kinds, inner = pa.array([0, 1] * 3, pa.int8()), [pa.array(list("abcdef")), pa.array(range(6))]
    yield pa.UnionArray.from_sparse(kinds, inner)
    yield pa.UnionArray.from_dense(kinds, pa.array(range(6), pa.int32()), inner)


def tables() -> Iterator[Any]:
    import pyarrow as pa

    numbers, texts = pa.array([1, 2, None, 0, 2, 1]), pa.array(["one", "two", "", None, "five", "six"])
    for column in columns():
        yield pa.table({"text": column, "label": numbers})
        yield pa.table({"text": texts, "label": column})


def arrow() -> Iterator[bytes]:
    from pyarrow import ipc

    for table in tables():
        for begin in (ipc.new_file, ipc.new_stream):
            out = io.BytesIO()
            with begin(out, table.schema) as writer:
                writer.write_table(table, max_chunksize=3)
            yield out.getvalue()


def parquet() -> Iterator[bytes]:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    ways: tuple[dict[str, Any], ...] = (
        {}, {"compression": "none", "use_dictionary": False}, {"data_page_version": "2.0"}
    )  # fmt: skip
    for table in tables():
        for way in ways:
            out = io.BytesIO()
            try:
                write_table(table, out, **way)
            except pa.ArrowException:  # Parquet lacks the type
                continue
            yield out.getvalue()


def read_rows(path: Path) -> None:
    """Reads a file as `finetune` and `predict` do, and as `prepare` does."""
    from lambert.text.rows import RowFile, open_unpacked
    from lambert.wings.corpus.reading.readers import Layout, read

    for _ in read(path, Layout()):
        pass
    with open_unpacked(path) as (_, stream):
        for _ in RowFile(path, stream, path.suffix, ["text", "label"]).rows():
            pass


def safetensors() -> Iterator[bytes]:
    import torch
    from safetensors.torch import save

    yield save({"a": torch.ones(3, 4), "b": torch.zeros(5, dtype=torch.float16), "c": torch.ones(())})


def pickled() -> Iterator[bytes]:
    import torch

    for zipped in (True, False):
        out = io.BytesIO()
        tensors = {"a": torch.ones(3, 4), "b": torch.zeros(5, dtype=torch.float16)}
        torch.save(tensors | {"c": tensors["a"][1]}, out, _use_new_zipfile_serialization=zipped)
        yield out.getvalue()


def read_weights(path: Path) -> None:
    """Reads a file as the weights of its folder, and all values."""
    from lambert.model.files import read

    for tensor in read(path.parent)[0].values():
        tensor.float().sum()


KINDS: dict[str, tuple[str, Callable[[], Iterator[bytes]], Callable[[Path], None]]] = {
    "arrow": ("rows.arrow", arrow, read_rows),
    "parquet": ("rows.parquet", parquet, read_rows),
    "safetensors": ("model.safetensors", safetensors, read_weights),
    "pickled": ("pytorch_model.bin", pickled, read_weights),
}


def main(folder: Path, first: int, count: int) -> None:
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, (name, make, read) in KINDS.items():
        whole = list(make())
        for number in range(first, first + count):
            Path(name).write_bytes(damaged(whole[number % len(whole)], random.Random(number)))
            print(kind, number, flush=True)
            try:
                read(Path.cwd() / name)
            except DataError as error:
                if len(text := str(error)) > 1500 or "\n" in text:
                    raise
        Path(name).unlink()
    print("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
