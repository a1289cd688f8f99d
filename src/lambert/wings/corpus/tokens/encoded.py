"""Writes and reads the parts of the step `encode`: documents as ids, from which `tokens` makes the corpus without their
texts.

A part is a Parquet file without compression, because ids hardly compress, and a single process must read them all. A
row, in a row group of its own, is a batch of documents.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.errors import DataError
from lambert.core.files import open_regular, read_file
from lambert.text.tokenizers.encoding import Encoded, Encoder
from lambert.wings.corpus.documents import MARK, Documents, InputFile, Part, add_name
from lambert.wings.corpus.parts import pyarrow
from lambert.wings.corpus.reading.pieces import escape_name

_ARRAYS = {"ids": "ids_T", "lengths": "lengths_n", "sentences": "sentences_D", "hashes": "hashes_D"}
"""The array columns and their fields of `Encoded`. The column `files` has for each document the number of its input
file among those of the part."""
_NUMBERS = ("width", "removed", "long", "first", "characters")


def encode_part(path: Path, source: InputFile, encoder: Encoder) -> dict[str, Any]:
    """Encodes the documents of a part to a new file. Returns the numbers of its documents, unreadable documents and
    characters, and `named`, the first unreadable documents.

    Raises OSError if the disk refuses a write, and DataError if the part is damaged.
    """
    arrow, parquet = pyarrow()
    fields = [(name, arrow.large_binary()) for name in (*_ARRAYS, "files")] + [
        (name, arrow.int64()) for name in _NUMBERS
    ]
    schema = arrow.schema(fields)
    documents = Documents([source], 0, 1.0)
    total = 0
    with (
        path.open("wb") as file,
        parquet.ParquetWriter(file, schema, compression="none", use_dictionary=False, write_statistics=False,
                              store_schema=False) as writer,
    ):  # fmt: skip
        for texts, kind in documents.batches():
            encoded = encoder(texts)
            size = sum(map(len, texts))
            total += size
            row = {name: [getattr(encoded, field).tobytes()] for name, field in _ARRAYS.items()}
            row["files"] = [np.array(kind.files, dtype="<i8").tobytes()]
            numbers = (encoded.ids_T.itemsize, encoded.removed, int(kind.long), int(kind.first), size)
            row |= {name: [number] for name, number in zip(_NUMBERS, numbers, strict=True)}
            writer.write_table(arrow.table(row, schema=schema))
    return {"documents": documents.read, "unreadable": documents.bad, "characters": total, "named": documents.named}


def _read(path: Path) -> Iterator[tuple[Encoded, Part, int]]:
    """Yields the batches of a part with their numbers of characters. Raises DataError if it is damaged."""
    arrow, parquet = pyarrow()

    def array(batch: Any, name: str, kind: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.frombuffer(batch.column(name)[0].as_buffer(), kind)

    try:
        with open_regular(path) as file:
            for batch in parquet.ParquetFile(file).iter_batches(1, use_threads=False):
                width, removed, long, first, size = (batch.column(name)[0].as_py() for name in _NUMBERS)
                encoded = Encoded(
                    array(batch, "ids", f"<u{width}"), array(batch, "lengths", "<i8"), array(batch, "sentences", "<i8"),
                    array(batch, "hashes", "<u8"), removed,
                )  # fmt: skip
                yield encoded, Part(bool(long), bool(first), array(batch, "files", "<i8").tolist()), size
    except (arrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} cannot be read ({error}). Delete it, and run its step again.") from error


class EncodedDocuments(Documents):
    """The documents of encoded parts. The counts are those of the parts before `encode`."""

    def read_encoded(self, mark: Mapping[str, Any] | None = None) -> Iterator[tuple[tuple[None, Part], Encoded]]:
        """Yields what `workers.encode` yields for the batches of the documents, from `mark` on."""
        since = 0
        for number, source in self._begin(mark):
            own = Part(share=source.share, repeat=source.repeat)
            numbers = [self._numbers[escape_name(name)] for name in source.files]
            for encoded, part, size in _read(source.encoded):
                since += size
                files = [numbers[number] for number in part.files]
                yield (None, replace(own, long=part.long, first=part.first, files=files)), encoded
            if not source.repeat:
                record = json.loads(read_file(source.encoded.with_suffix(".json")))
                self.read += record["documents"]
                self.bad += record["unreadable"]
                for text in record["named"]:
                    add_name(self.named, text)
            self.done += source.bytes
            if since >= MARK or self.is_before_growing(number):
                yield (None, replace(own, mark=self.mark(number))), _NOTHING
                since = 0


_NONE = np.zeros(0, np.int64)
_NOTHING = Encoded(np.zeros(0, np.uint16), _NONE, _NONE, np.zeros(0, np.uint64), 0)
