"""CRC-32C against the vectors of RFC 3720 and TensorBoard's loop over bytes."""

import numpy as np
import pytest
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c as theirs

from lambert.wings.convert.tensorflow.crc32c import crc32c, masked_crc32c

ROW = 4 << 13
"""Bytes that are reduced at once."""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # this one and the next three: RFC 3720, appendix B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_checksums(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected
    assert crc32c(np.frombuffer(data, np.uint8)) == expected


@pytest.mark.parametrize("size", [1, 3, 4, 5, 4095, ROW - 1, ROW, ROW + 1, 3 * ROW, 3 * ROW + 2])
def test_every_length_has_tensorboards_checksum(size: int) -> None:
    data = np.random.default_rng(size).bytes(size + 1)
    assert masked_crc32c(data[1:]) == theirs(data[1:])
    unaligned = np.frombuffer(data, np.uint8)[1:]
    assert masked_crc32c(unaligned) == theirs(data[1:])


def test_one_bit_changes_the_checksum() -> None:
    data = bytearray(np.random.default_rng(0).bytes(2 * ROW + 5))
    before = crc32c(bytes(data))
    for place in (0, 3, ROW, len(data) - 1):
        data[place] ^= 1
        assert crc32c(bytes(data)) != before
        data[place] ^= 1
    assert crc32c(bytes(data)) == before
