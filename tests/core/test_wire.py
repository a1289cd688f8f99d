"""Bytes on the wire, compared with counts by hand."""

import pytest

from lambert.core.wire import factor, payload_bytes, quantized_bytes, ring_bytes, sent_bytes

SHAPES = [(100, 64), (64,), (512, 256)]
ELEMENTS = 100 * 64 + 64 + 512 * 256


def test_a_ring_sends_each_element_twice_but_for_one_share() -> None:
    assert [ring_bytes(1200, ranks) for ranks in (1, 2, 3, 4)] == [0, 1200, 1600, 1800]


@pytest.mark.parametrize(("bits", "times"), [(8, 3.9), (4, 7.4)])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_quantized_gradients_are_smaller_by_their_bits(bits: int, times: float, ranks: int) -> None:
    assert ring_bytes(4 * 10**7, ranks) / quantized_bytes(10**7, bits, ranks) > times


def test_a_payload_has_a_step_of_two_bytes_for_each_block() -> None:
    assert quantized_bytes(1280, 8, 2) == payload_bytes(10, 128) == 10 * 130


def test_matrices_smaller_than_their_factors_are_sent_whole() -> None:
    assert factor((512, 256), 8) == (8 * 512, 8 * 256)
    assert factor((64,), 8) is None
    assert factor((8, 8), 8) is None
    whole = 100 * 64 + 64
    assert sent_bytes(0, SHAPES, 4, 48) == ring_bytes(4 * 48 * 512, 4) + ring_bytes(4 * (whole + 48 * 256), 4)


@pytest.mark.parametrize(("bits", "size"), [(32, 4), (16, 2)])
def test_plain_methods_send_a_ring(bits: int, size: int) -> None:
    assert sent_bytes(bits, SHAPES, 8, 32) == ring_bytes(size * ELEMENTS, 8)


def test_quantized_elements_are_sent_in_blocks() -> None:
    assert sent_bytes(8, SHAPES, 8, 32) == quantized_bytes(ELEMENTS, 8, 8)
