"""CRC-32C (Castagnoli) of large arrays, with numpy.

A checksum is the remainder of a polynomial over GF(2), and remainders are linear. So the words of the data are divided
among many lanes, every lane is reduced at the same time, and the remainders of the lanes are added at the end.

Polynomials have their bits reversed, as in RFC 3720, appendix B.4: bit 31 is the coefficient of x^0.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_ONE, _X = 1 << 31, 1 << 30
_LANES = 1 << 13
"""Words that are reduced at once. States, indices and tables fit the second cache of a core."""
_MASK_DELTA = 0xA282EAD8
"""LevelDB, util/crc32c.h."""


def masked_crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """Returns the CRC-32C of the data as LevelDB's and TensorFlow's files hold it: rotated, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES


def crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """Returns the CRC-32C of the data."""
    bytes_N = np.frombuffer(data, np.uint8)
    first = len(bytes_N) % (4 * _LANES)
    row = np.zeros(4 * _LANES, np.uint8)
    row[len(row) - first :] = bytes_N[:first]  # zeros in front do not change the remainder
    states = row.view("<u4").astype(np.uint32)
    low, high = _tables()
    for words in bytes_N[first:].view("<u4").reshape(-1, _LANES):
        states = low[states & 0xFFFF] ^ high[states >> 16] ^ words
    lanes = _LANES
    while lanes > 1:
        lanes //= 2
        states = _times(states[:lanes], _power(32 * lanes)) ^ states[lanes:]
    remainder: int = _times(int(states[0]), _power(32))
    start: int = _times(_ONES, _power(8 * len(bytes_N)))  # the register is all ones before the first byte
    return remainder ^ start ^ _ONES


@cache
def _tables() -> tuple[Words, Words]:
    """Returns the products of x^(32 _LANES) with all polynomials of the lower and of the upper half of the bits."""
    numbers = np.arange(1 << 16, dtype=np.uint32)
    factor = _power(32 * _LANES)
    return _times(numbers, factor), _times(numbers << 16, factor)


@cache
def _power(exponent: int) -> int:
    """Returns x^exponent."""
    result, square = _ONE, _X
    while exponent:
        if exponent & 1:
            result = _times(result, square)
        square, exponent = _times(square, square), exponent >> 1
    return result


def _times(values: Any, factor: int) -> Any:
    """Returns the product of a polynomial, or of each in an array of uint32, with another one."""
    products = values & 0
    for bit in range(31, -1, -1):
        products = products ^ (values >> bit & 1) * factor
        factor = factor >> 1 ^ (_POLYNOMIAL if factor & 1 else 0)
    return products
