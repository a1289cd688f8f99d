"""Reads a sorted table of keys and values, the format of LevelDB's files and of the index of a checkpoint.

A table has data blocks, an index block with the place of each, and a footer with the place of the index block. Keys in
a block share their beginnings with the key before them. Every block has a CRC-32C, which is verified.

Source: github.com/google/leveldb, doc/table_format.md; tensorflow/core/lib/io/table_builder.cc.
"""

from collections.abc import Iterator
from pathlib import Path

from lambert.core.errors import DataError
from lambert.core.files import open_regular
from lambert.wings.convert.tensorflow.crc32c import masked_crc32c
from lambert.wings.convert.tensorflow.snappy import decompress
from lambert.wings.convert.tensorflow.wire import varint

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER = 48
_PLAIN, _SNAPPY = 0, 1
_FOREIGN = {
    b"\x89HDF": "an HDF5 file, as Keras writes it",
    b"PK\x03\x04": "a ZIP file",
    b"version https://git-lfs": "a pointer of Git LFS, without the content",
}
"""Beginnings of other files, and what they are."""


def read(path: Path) -> dict[str, bytes]:
    """Returns the values of a table by their keys. Raises DataError if the file is damaged or is not a table."""
    with open_regular(path) as file:
        beginning = file.read(32)
        size = file.seek(0, 2)
        file.seek(max(0, size - _FOOTER))
        footer = file.read()
        if len(footer) < _FOOTER or not footer.endswith(_MAGIC):
            what = next((what for start, what in _FOREIGN.items() if beginning.startswith(start)), "")
            raise DataError(
                f"{path} is {what}, not the index of a TensorFlow checkpoint."
                if what
                else f"{path} does not end as the index of a TensorFlow checkpoint does: it is cut short or another "
                "kind of file. Fetch it again."
            )
        file.seek(0)
        data = file.read()
    values: dict[str, bytes] = {}
    last = None
    try:
        _, position = _place(footer, 0)  # of the block of metadata, which checkpoints do not use
        place, _ = _place(footer, position)
        for number, (_, value) in enumerate(_entries(_block(data, place, "the index block"))):
            place, _ = _place(value, 0)
            entries = [*_entries(_block(data, place, f"block {number}"))]
            if not entries or (last is not None and entries[0][0] <= last):
                raise ValueError(f"block {number} is empty or out of order")
            last = entries[-1][0]
            values |= {key.decode(): value for key, value in entries}
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}. Fetch it again.") from error
    return values


def _place(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Returns the first byte and the size of a block, and the position after both numbers."""
    offset, position = varint(data, position)
    size, position = varint(data, position)
    return (offset, size), position


def _block(data: bytes, place: tuple[int, int], what: str) -> bytes:
    """Returns the content of a block. Its bytes are followed by the kind of compression and the CRC-32C of both."""
    offset, end = place[0], place[0] + place[1]
    if end + 5 > len(data):
        raise ValueError(f"{what} ends after the end of the file")
    if masked_crc32c(data[offset : end + 1]) != int.from_bytes(data[end + 1 : end + 5], "little"):
        raise ValueError(f"{what} (bytes {offset:,} to {end:,}) does not have its CRC-32C")
    if data[end] not in (_PLAIN, _SNAPPY):
        raise ValueError(f"{what} has the unknown compression {data[end]}")
    return data[offset:end] if data[end] == _PLAIN else decompress(data[offset:end])


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block, up to its list of restarts: positions of keys that share nothing."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise ValueError("a list of restarts is longer than its block")
    key, position = b"", 0
    while position < end:
        shared, position = varint(block, position)
        added, position = varint(block, position)
        size, position = varint(block, position)
        after = position + added
        if shared > len(key) or after + size > end:
            raise ValueError("a key or a value is cut short")
        key, value, position = key[:shared] + block[position:after], block[after : after + size], after + size
        yield key, value
