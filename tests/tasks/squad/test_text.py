from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lambert.tasks.reading.texts import word_numbers
from lambert.tasks.squad.text import basic_tokenizer, final_text, nearest_offset, word_spans, words_of

Build = Callable[[list[str]], Tokenizer]

SPACED = st.text(alphabet="ab, .é中\u00a0\u2003\u202f\t\r\n\U0001f600", max_size=40)


@pytest.mark.parametrize(
    ("predicted", "original", "expected"),
    [
        ("steve smith", "Steve Smith's", "Steve Smith"),
        ("cafe", "(Café),", "Café"),
        ("1895", "(1895-1943).", "1895"),
        ("5 . 00", "$5.00", "5.00"),
        ("abc", "ABC ﬁne", "ABC"),
        ("fi", "(\u0065\u0301 e\u200bfi)", "(\u0065\u0301 e\u200bfi)"),  # lengths differ: all of it
        ("[UNK]", "(Ⅻ)", "(Ⅻ)"),  # not found: all of it
        ("", "abc", "abc"),
        ("a b", "A B", "A B"),
    ],
)
def test_final_text(tokenizer: Tokenizer, predicted: str, original: str, expected: str) -> None:
    assert final_text(predicted, original, basic_tokenizer(tokenizer)) == expected


@given(SPACED)
def test_words_end_at_four_spaces_and_the_narrow_one(text: str) -> None:
    for space in "\t\r\n\u202f":
        text_split = text.replace(space, " ")
        text = text_split
    assert words_of(text) == [word for word in text.split(" ") if word]


@given(SPACED)
def test_every_character_knows_its_word(text: str) -> None:
    numbers = word_numbers(text)
    assert len(numbers) == len(text)
    for word, (first, end) in enumerate(word_spans(text)):
        assert set(numbers[first:end].tolist()) == {word}
    assert len(word_spans(text)) == (int(numbers[-1]) + 1 if len(text) else 0)


@given(SPACED)
def test_basic_tokenisation_word_by_word_is_that_of_the_whole(wordpiece: Build, text: str) -> None:
    tokenizer = wordpiece(["[UNK]"])
    joined = " ".join(words_of(text))
    whole = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(joined))
    assert basic_tokenizer(tokenizer)(joined) == " ".join(part for part, _ in whole)


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=3), st.integers(-3, 15))
def test_nearest_offset(context: str, text: str, start: int) -> None:
    places = [place for place in range(len(context)) if context.startswith(text, place)]
    expected = min(places, key=lambda place: (abs(place - start), place), default=-1)
    assert nearest_offset(context, text, start) == expected
