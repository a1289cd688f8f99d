"""The sizes of a ramp, against their definition."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambert.data.batch_sizes import BatchSizes

RAMPS = st.builds(
    lambda first, times, ramp: BatchSizes(first * times, first, ramp),
    st.integers(1, 7), st.integers(1, 9), st.integers(1, 40),
)  # fmt: skip


@given(RAMPS)
def test_sizes_grow_by_the_first_and_each_is_taken_equally_often(sizes: BatchSizes) -> None:
    ramp = [sizes.of(update) for update in range(sizes.ramp)]
    assert ramp == sorted(ramp)
    assert {sizes.of(sizes.ramp), sizes.of(sizes.ramp + 100)} == {sizes.last}
    if sizes.last > sizes.first:
        counts = [len([*same]) for _, same in itertools.groupby(ramp)]
        assert all(size % sizes.first == 0 and size < sizes.last for size in ramp)
        assert max(counts) - min(counts) <= 1
        if sizes.ramp >= sizes.last // sizes.first - 1:
            assert set(ramp) == set(range(sizes.first, sizes.last, sizes.first))


@given(st.one_of(RAMPS, st.builds(BatchSizes, st.integers(1, 9))), st.integers(1, 500))
def test_sums_and_their_inverse(sizes: BatchSizes, sequences: int) -> None:
    ends = np.cumsum([sizes.of(update) for update in range(600)])
    assert [sizes.before(update) for update in range(600)] == [0, *ends[:-1]]
    assert sizes.updates(sequences) == np.argmax(ends >= sequences) + 1


def test_modernbert_base() -> None:
    sizes = BatchSizes(4608, 96, 21_200)
    assert sizes.before(21_200) * 1024 == pytest.approx(50e9, rel=0.01)
    assert sizes.before(374_900) * 1024 == pytest.approx(1.719e12, rel=0.001)
    assert sizes.before(5_000) * 1024 == pytest.approx(3e9, rel=0.02)
