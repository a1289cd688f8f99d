import re
import sys
import time
import unicodedata
from unittest import mock

import pytest
import sentencex
from hypothesis import given
from hypothesis import strategies as st

from lambert.text import sentences
from lambert.text.sentences import LINES, clean, split

NOVEL = (
    '"The Signora had no business to do it," said Miss Bartlett, "no business\n'
    "at all. She promised us south rooms with a view close together, instead\n"
    "of which here are north rooms, looking into a courtyard, and a long way\n"
    'apart. Oh, Lucy!"\n\nDr. Smith left at 5 p.m. on Monday, and nobody\nknew.\n'
)


def test_hard_wrapped_lines_are_joined() -> None:
    sentences = split(NOVEL)
    assert sentences[-1] == "Dr. Smith left at 5 p.m. on Monday, and nobody knew."
    assert any("close together, instead of which here are" in sentence for sentence in sentences)


def test_lines_are_paragraphs_where_they_are_long() -> None:
    lines = [
        "A heading",
        "One sentence goes on " * 8 + "here. And a second follows.",
        "Another paragraph without a stop",
    ]
    assert split("\n".join(lines)) == [
        lines[0],
        ("One sentence goes on " * 8 + "here."),
        "And a second follows.",
        lines[2],
    ]


def test_the_setting_overrules() -> None:
    assert split("one\ntwo", lines="wrapped") == ["one two"]
    assert split("コンピュー\nターは、\n速い。\n\nIBM\n社", lines="wrapped") == ["コンピューターは、速い。", "IBM 社"]
    assert split("ประเทศ\nไทย", "th", "wrapped") == ["ประเทศไทย"]
    assert split("one\ntwo", lines="paragraphs") == ["one", "two"]
    assert split("one\ntwo\n\nthree", lines="auto") == ["one two", "three"]


def test_the_language_counts() -> None:
    assert split("Das ist z. B. gut. Und das auch.", "de") == ["Das ist z. B. gut.", "Und das auch."]


@given(st.text(max_size=200))
def test_nothing_but_white_space_is_lost(text: str) -> None:
    cleaned, removed = clean(text)
    assert removed == len(text) - len(cleaned) == text.count("\0")
    found = split(cleaned)
    assert "".join("".join(found).split()) == "".join(cleaned.split())
    assert all(sentence and sentence == " ".join(sentence.split()) for sentence in found)


# white space as BERT's normalizer sees it: it removes the controls that Python takes for white space
SPACES = [c for c in map(chr, range(sys.maxunicode + 1)) if c in "\t\n\r" or unicodedata.category(c)[0] == "Z"]


@given(st.lists(st.sampled_from([*SPACES, *"\n\n\n   ", "a", "b.", "Ç"]), max_size=40).map("".join))
@pytest.mark.parametrize("lines", LINES)
def test_all_white_space_is_one_space(lines: str, text: str) -> None:
    paragraphs = text.split("\n")
    if lines == "wrapped" or (lines == "auto" and len(list(filter(None, paragraphs))) > 1):
        paragraphs = re.split(r"\n[^\S\n]*(?:\n[^\S\n]*)+", text)
    flat = [" ".join(paragraph.split()) for paragraph in paragraphs]
    assert split(text, lines=lines) == [
        sentence.strip() for one in flat if one for sentence in sentencex.segment("en", one)
    ]


def test_a_long_line_takes_linear_time() -> None:
    assert len(split("It rained. " * 450_000)) == 450_000
    assert len(split("x" * 5_000_000)) == 1


@pytest.mark.parametrize("sentence", ["\u4eca\u65e5\u306f\u96e8\u3067\u3059\u3002", "Rain!"])
def test_long_text_without_spaces_takes_linear_time(sentence: str) -> None:
    began = time.process_time()
    assert split(sentence * 60_000) == [sentence] * 60_000
    assert time.process_time() - began < 15  # 60 to 150 seconds where the time grows with the square


def test_many_parts_of_one_word_take_linear_time() -> None:
    text = "ab\u061d" * 200_000
    assert split(text) == [text]


@given(st.text("aB1.!? \u3002\u201c\u201d\"'()", max_size=300))
def test_windows_lose_nothing(text: str) -> None:
    paragraph = " ".join(text.split())
    with mock.patch.multiple(sentences, _WINDOW=40, _WINDOW_WITHOUT_SPACES=16):
        assert "".join("".join(split(paragraph)).split()) == "".join(paragraph.split())


def test_windows_change_no_sentence_of_plain_text() -> None:
    whole = split(NOVEL * 5, lines="paragraphs")
    with mock.patch.multiple(sentences, _WINDOW=100):
        assert split(NOVEL * 5, lines="paragraphs") == whole
    flat = " ".join((NOVEL * 50).split())
    whole = split(flat)
    assert len(whole) == 100
    with mock.patch.multiple(sentences, _WINDOW=4000):
        assert split(flat) == whole


def test_a_paragraph_on_which_sentencex_fails_is_one_sentence() -> None:
    class PanicException(BaseException):  # what Rust's panics are in Python
        pass

    with mock.patch.object(sentencex, "segment", side_effect=PanicException):
        assert split("One. Two.\nThree. Four.", lines="paragraphs") == ["One. Two.", "Three. Four."]
    with mock.patch.object(sentencex, "segment", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        split("One. Two.")


def test_no_sentence_ends_within_a_word() -> None:
    for stop in "\u061d\u2e53":  # stops younger than the tokenizer's tables, so letters to it
        assert split(f"One{stop}Two. Three{stop} Four") == [f"One{stop}Two.", f"Three{stop}", "Four"]
    assert split("一。二！Three?Four") == ["一。", "二！", "Three?", "Four"]


def test_form_feeds_between_lines_are_blank_lines() -> None:
    assert split("one\ntwo\n\f\nthree", lines="wrapped") == ["one two", "three"]
