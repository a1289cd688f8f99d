import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lambert.wings.corpus.tokens.splits import Seen


@given(st.lists(st.lists(st.integers(0, 30) | st.integers(0, 2**64 - 1), max_size=20), max_size=12))
def test_it_is_a_set(calls: list[list[int]]) -> None:
    seen, known = Seen(), set[int]()
    for hashes in calls:
        expected = []
        for number in hashes:
            expected.append(number not in known)
            known.add(number)
        assert seen.add(np.array(hashes, dtype=np.uint64)).tolist() == expected
    assert len(seen) == len(known)
