"""Snappy against pyarrow's, and damaged data."""

import random

import pyarrow
import pytest

from lambert.wings.convert.tensorflow.snappy import decompress

CODEC = pyarrow.Codec("snappy")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a",
        b"ab" * 5000,  # copies that read what they write
        bytes(100_000),
        random.Random(0).randbytes(70_000),  # literals with lengths of 3 bytes
        b"".join(random.Random(1).choices([b"bert/encoder/layer_", b"kernel", b"bias", b"\0\1", b"x"], k=20_000)),
    ],
)
def test_what_pyarrow_compresses_is_read(content: bytes) -> None:
    assert decompress(CODEC.compress(content, asbytes=True)) == content


def test_copies_with_four_bytes_of_offset() -> None:
    """pyarrow does not write them."""
    assert decompress(b"\x08" + b"\x0cabcd" + b"\x0f\x04\0\0\0") == b"abcdabcd"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no end"),
        (b"\xff\xff\xff\xff\x7f\0a", "impossible"),
        (b"\x04\x0cab", "differs from"),
        (b"\x03\x0cabcd", "differs from"),
        (b"\x08\x0cabcd\x05\x00", "outside"),
        (b"\x08\x0cabcd\x05\x09", "outside"),
        (b"\x05\x0cabcd\x05\x04", "differs from"),
    ],
)
def test_damaged_data(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decompress(data)


def test_no_damage_is_another_error() -> None:
    draw = random.Random(2)
    whole = CODEC.compress(b"".join(draw.choices([b"gamma", b"beta/", b"1"], k=300)), asbytes=True)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draw.randrange(8)
        for data in (bytes(damaged), whole[:place]):
            try:
                assert len(decompress(data)) <= 32 * len(data)
            except ValueError:
                continue
