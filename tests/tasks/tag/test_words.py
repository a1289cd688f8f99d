"""Windows over long sentences: each word is in one window, that in which it has the most context."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lambert.tasks.tag.words import NONE, tokenise
from lambert.wings.corpus.tokens.vocabulary import train_bytes

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", *(f"n{number}" for number in range(10))]


def test_each_word_is_predicted_where_it_has_most_context(wordpiece: Callable[[list[str]], Tokenizer]) -> None:
    tokenizer = wordpiece(PIECES)
    word = st.sampled_from(["a", "ab", "abbb", "\u200b", *PIECES[-10:]])

    @settings(max_examples=60)
    @given(st.lists(st.lists(word, max_size=40), min_size=1, max_size=4), st.integers(8, 20))
    def check(sentences: list[list[str]], length: int) -> None:
        data = tokenise(tokenizer, sentences, length)
        room, windows = length - 2, data.size(0)
        assert (data.lengths_S <= length).all()
        batch = data.collate(np.zeros(windows, np.int64), np.arange(windows))
        assert data.first.ids.tolist() == [
            tokenizer.token_to_id(piece)
            for sentence in sentences for piece in tokenizer.encode(sentence, is_pretokenized=True).tokens
        ]  # fmt: skip
        owner: dict[int, int] = {}
        for window, (low, high) in enumerate(pairwise(data.firsts.bounds)):
            owner |= dict.fromkeys(data.words_N[low:high].tolist(), window)
        begins = np.cumsum(data.lengths_S) - data.lengths_S
        number, begin = 0, 0
        for sentence in sentences:
            encoding = tokenizer.encode(sentence, is_pretokenized=True)
            for word in range(len(sentence)):
                assert (number in owner) == (word in encoding.word_ids)
                if number in owner:
                    at = begin + encoding.word_ids.index(word)
                    before_S = at - data.first.starts_S
                    after_S = data.first.lengths_S - 1 - before_S
                    context_S = np.minimum(before_S, after_S)
                    window = owner[number]
                    if len(encoding.ids) <= room:  # windows of other sentences do not contain it
                        assert context_S[window] >= 0
                    else:
                        assert context_S[window] == context_S.max() >= 0
                    assert int(batch.ids_T[begins[window] + 1 + before_S[window]]) == encoding.ids[at - begin]
                number += 1
            begin += len(encoding.ids)
        classes_T = np.arange(int(data.lengths_S.sum()))
        found = data.of_words(classes_T)
        assert [int(value) != NONE for value in found] == [number in owner for number in range(len(found))]
        assert (batch.ids_T.numpy()[found[found != NONE]] != 2).all()

    check()


def test_short_sentences_are_one_window_and_nothing_is_none(wordpiece: Callable[[list[str]], Tokenizer]) -> None:
    tokenizer = wordpiece(PIECES)
    data = tokenise(tokenizer, [["a"] * 6, [], ["a"] * 7], 8)
    assert data.lengths_S.tolist() == [8, 2, 8, 8]
    assert data.counts == {"examples": 3, "divided_into_windows": 1}
    assert tokenise(tokenizer, [], 8).of_words(np.zeros(0, np.int64)).tolist() == []


def test_words_of_byte_level_pieces_have_a_space_before_them() -> None:
    tokenizer = train_bytes(["the river stone walked near the river stone"] * 9, vocabulary=290, lowercase=False)
    words = ["the", "river", "stone", "walked"]
    data = tokenise(tokenizer, [words], 40)
    assert data.first.ids.tolist() == tokenizer.encode(" the river stone walked", add_special_tokens=False).ids
