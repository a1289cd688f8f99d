import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambert.text.tokenizers.lexicon import WIDTH, Lexicon

WORDS = st.lists(st.binary(min_size=1, max_size=2 * WIDTH + 3).filter(lambda word: 0 not in word), max_size=60)


def find(lexicon: Lexicon, words: list[bytes]) -> tuple[list[int], list[bytes]]:
    """What `find` says of words that stand one after the other."""
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    values, unknown = lexicon.find(b"".join(words), np.cumsum(lengths) - lengths, lengths)
    return values.tolist(), unknown


def check(batches: list[list[bytes]], memory: int) -> None:
    """A lexicon and a dict say the same, batch after batch."""
    lexicon, known = Lexicon(memory), dict[bytes, int]()
    for words in batches:
        values, unknown = find(lexicon, words)
        assert values == [known.get(word, 0) for word in words]
        assert sorted(unknown) == sorted({word for word in words if word not in known})
        numbers = np.arange(1, len(unknown) + 1) + len(known)
        lexicon.add(unknown, numbers)
        known |= zip(unknown, numbers.tolist(), strict=True)
        assert find(lexicon, words) == ([known[word] for word in words], [])
    assert find(lexicon, list(known)) == (list(known.values()), [])


@given(st.lists(WORDS, max_size=4))
def test_it_is_a_dict(batches: list[list[bytes]]) -> None:
    check(batches, 1 << 20)


@given(st.lists(WORDS, max_size=4))
def test_words_of_one_hash_are_told_apart(batches: list[list[bytes]]) -> None:
    def last(self: Lexicon, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        return np.full(len(keys), len(self._rows) - 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lexicon, "_slots", last)
        check(batches, 1)
        check([[b"abcdefghij%d" % number for number in range(20)], [b"x" * length for length in range(1, 20)]], 1)


@pytest.mark.parametrize("memory", [1, 1 << 20, 1 << 24])
def test_it_grows(memory: int) -> None:
    words = [b"%d" % (number * 7919**3) for number in range(60_000)]
    check([words[:10], words[:30_000], words[20_000:]], memory)


def test_it_is_full_when_its_memory_is_used_up() -> None:
    lexicon = Lexicon(1 << 20)
    words = [b"word%d" % number for number in range(40_000)]
    added = 0
    while not lexicon.full:
        lexicon.add(words[added : added + 100], np.arange(added + 1, added + 101))
        added += 100
    assert 15_000 < added < 25_000  # three quarters of the memory, 24 bytes a row, six words in ten rows
    long = Lexicon(1 << 20)
    long.add([b"x" * (1 << 20)], np.array([1]))
    assert long.full
