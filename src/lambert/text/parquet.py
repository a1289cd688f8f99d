"""Reads rows of Parquet files, in memory that is bounded by the size of the file."""

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from lambert.text.arrow import pyarrow

_ROWS = 256
_MEMORY = 64 << 20
"""Maximum bytes of the rows of one batch, unless a single row has more."""
_RATIO = 200
"""Maximum factor of the bytes of a decompressed column over those of the file, if that is more than _MEMORY. Text has 2
to 10 times."""


class NotParquet(Exception):
    """A file cannot be read as Parquet. The message is the reason, in one line."""


def parquet_groups(stream: BinaryIO, size: int) -> list[int]:
    """Returns the numbers of row groups at which the file can be divided in parts of about `size` decompressed bytes, 0
    the first. A file that is not Parquet is not divided. Raises UsageError if pyarrow is not installed."""
    arrow, parquet = pyarrow("parquet", "Reading Parquet")
    try:
        metadata = parquet.ParquetFile(stream).metadata
    except (arrow.ArrowException, OSError, ValueError):
        return [0]
    starts, held = [0], 0
    for group in range(metadata.num_row_groups):
        if held >= size:
            starts.append(group)
            held = 0
        held += metadata.row_group(group).total_byte_size
    return starts


def parquet_metadata(stream: BinaryIO) -> dict[bytes, bytes]:
    """Returns the metadata in the schema of a Parquet file, such as the features of a data set. Raises NotParquet, and
    UsageError if pyarrow is not installed."""
    with _explained() as parquet:
        return dict(parquet.ParquetFile(stream).schema_arrow.metadata or {})


def parquet_names(stream: BinaryIO) -> list[str]:
    """Returns the names of the columns of a Parquet file. Raises NotParquet, and UsageError if pyarrow is not
    installed."""
    with _explained() as parquet:
        return list(parquet.ParquetFile(stream).schema_arrow.names)


def parquet_sizes(stream: BinaryIO) -> list[int]:
    """Returns the number of rows of each row group of a Parquet file. Raises as `parquet_names`."""
    with _explained() as parquet:
        metadata = parquet.ParquetFile(stream).metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


@contextmanager
def _explained() -> Iterator[Any]:
    """A context with pyarrow.parquet. Raises its failures as NotParquet, except those of the disk."""
    arrow, parquet = pyarrow("parquet", "Reading Parquet")
    try:
        yield parquet
    except (arrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise NotParquet(f"is damaged or not Parquet ({' '.join(str(error).split())})") from error
    except (ValueError, OverflowError) as error:  # text that is not UTF-8, times beyond those of Python
        raise NotParquet(f"has a name or value that cannot be read ({' '.join(str(error).split())})") from error


def parquet_rows(
    stream: BinaryIO, columns: Sequence[str] | None = None, groups: tuple[int, int] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a Parquet file as dictionaries, with all columns or these; of all row groups, or of those from
    `groups[0]` to `groups[1]` - 1. Raises NotParquet, and UsageError if pyarrow is not installed.

    A few kilobytes can hold gigabytes: a page of one repeated letter, or a long text in the dictionary to which every
    row refers. The first is refused. For the second, the number of rows in a batch follows from the longest text.
    """
    with _explained() as parquet:
        file = parquet.ParquetFile(stream)
        _check_sizes(file, stream)
        leaves = [file.schema.column(number) for number in range(len(file.schema))]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and not leaf.max_repetition_level]
        dictionaries = parquet.ParquetFile(stream, metadata=file.metadata, read_dictionary=texts)
        chosen: dict[str, Any] = {"columns": columns, "use_threads": False}
        first_group, last_group = groups or (0, file.num_row_groups)
        for group in range(first_group, min(last_group, file.num_row_groups)):
            first = next(dictionaries.iter_batches(1, row_groups=[group], **chosen), None)
            longest = max((_longest(values) for values in first.columns), default=0) if first is not None else 0
            size = max(1, min(_ROWS, _MEMORY // max(longest, 1)))
            for batch in file.iter_batches(size, row_groups=[group], **chosen):
                yield from batch.to_pylist()


def _check_sizes(file: Any, stream: BinaryIO) -> None:
    bytes_of_file = stream.seek(0, os.SEEK_END)
    for group in map(file.metadata.row_group, range(file.num_row_groups)):
        # Sizes of columns would be closer, and damaged statistics of a column end the process in pyarrow 26.
        if (size := group.total_byte_size) > max(_MEMORY, _RATIO * bytes_of_file):
            raise NotParquet(
                f"has a row group of {size:,} bytes in a file of {bytes_of_file:,}: it is not read, because no text is "
                "so repetitive. If the file is correct, write it without compression"
            )


def _longest(values: Any) -> int:
    """Returns the bytes of the longest text in the dictionary of a column; 0 if the column has no dictionary."""
    compute = importlib.import_module("pyarrow.compute")
    dictionary = getattr(values, "dictionary", None)
    return compute.max(compute.binary_length(dictionary)).as_py() or 0 if dictionary is not None else 0
