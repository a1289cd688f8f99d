import re
import sys

import pytest
import sentencex
from hypothesis import given
from hypothesis import strategies as st

from lambert.corpus.sentences import LINES, MARK, clean, split

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
    assert split("one\ntwo", lines="paragraphs") == ["one", "two"]
    assert split("one\ntwo\n\nthree", lines="auto") == ["one two", "three"]


def test_the_language_counts() -> None:
    assert split("Das ist z. B. gut. Und das auch.", "de") == ["Das ist z. B. gut.", "Und das auch."]


@given(st.text(max_size=200))
def test_nothing_but_white_space_is_lost(text: str) -> None:
    cleaned, removed = clean(text)
    assert removed == len(text) - len(cleaned) == text.count("\0") + text.count(MARK)
    sentences = split(cleaned)
    assert "".join("".join(sentences).split()) == "".join(cleaned.split())
    assert all(sentence and sentence == " ".join(sentence.split()) for sentence in sentences)


SPACES = [c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace()]


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
