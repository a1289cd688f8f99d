"""Decompresses Snappy, with which the blocks of a table may be compressed.

Source: github.com/google/snappy, format_description.txt.
"""

from lambert.wings.convert.tensorflow.wire import varint

_MAX_RATIO = 32
"""Maximum factor by which data may expand (our choice). Snappy reaches 22: a copy of 3 bytes stands for at most 64."""


def decompress(data: bytes) -> bytes:
    """Returns the content of compressed data. Raises ValueError if it is damaged."""
    length, position = varint(data, 0)
    if length > _MAX_RATIO * len(data):
        raise ValueError("the length is impossible")
    out = bytearray()
    while position < len(data):
        kind, size = data[position] & 3, data[position] >> 2
        tag, position = data[position], position + 1
        if kind == 0:
            if size >= 60:  # the length follows, in 1 to 4 bytes
                size, position = _number(data, position, size - 59)
            out += data[position : position + size + 1]
            position += size + 1
            continue
        if kind == 1:
            offset, position = _number(data, position, 1)
            offset, size = offset | tag >> 5 << 8, (size & 7) + 4
        else:
            offset, position = _number(data, position, 2 if kind == 2 else 4)
            size += 1
        if not 0 < offset <= len(out):
            raise ValueError("a copy begins outside of the content")
        start = len(out) - offset
        repeated = bytes(out[start : start + size])  # shorter than `size` if the copy reads what it writes
        out += (repeated * -(-size // len(repeated)))[:size]
        if len(out) > length:
            break
    if len(out) != length or position != len(data):
        raise ValueError("the length differs from that in the header")
    return bytes(out)


def _number(data: bytes, position: int, size: int) -> tuple[int, int]:
    """Returns a little-endian integer of `size` bytes, and the position after it."""
    return int.from_bytes(data[position : position + size], "little"), position + size
