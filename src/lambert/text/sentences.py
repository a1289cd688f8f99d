"""Divides documents into sentences.

sentencex (Wikimedia, MIT) finds the ends of sentences; this module finds paragraphs and cleans white space. The ids of
a document are the concatenated ids of its sentences, because white space is defined as in BERT's normalizer and no
sentence ends within a word.
"""

import re
import unicodedata
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate

import sentencex
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from lambert.text.tokenizers.roles import UNSPACED

WRAPPED_WIDTH = 100
"""A document is hard-wrapped if 19 of 20 lines have at most this many characters (plain-text editions wrap at 60 to
80)."""

_WHITE = [c for c in map(chr, range(0x3001)) if c.isspace() and c not in " \n"]  # U+3000 is the last in Unicode
_SPACES = [c for c in _WHITE if c in "\t\r" or unicodedata.category(c)[0] == "Z"]
# Form feed, U+0085 and the like are white space to Python and sentencex, but BERT's normalizer removes them.
_REMOVED = [c for c in _WHITE if c not in _SPACES]
_ASCII_SPACES = [c for c in _SPACES if c.isascii()]

_ENDS = " .!?\u3002\uff01\uff1f"  # nearly all sentences end with these; others are checked with the tokenizer
_TAIL = 4  # characters of the end of a sentence that are checked
_WINDOW = 1 << 17  # maximum characters per call of sentencex, which checks all quotations for each sentence
_WINDOW_WITHOUT_SPACES = 1 << 12  # the same, because it also checks all characters back to the last space
_UNSPACED = f"[{UNSPACED.pattern[1:-1]}\u3001-\u303f\uff01-\uff0f\uff1a-\uff20\uff5b-\uff9f]"
_BREAK_WITHOUT_SPACE = re.compile(f"(?<={_UNSPACED})\n(?={_UNSPACED})")
"""A line break between characters of scripts without spaces between words."""
_NORMALIZER, _PRE_TOKENIZER = BertNormalizer(lowercase=False), BertPreTokenizer()

LINES = ("auto", "wrapped", "paragraphs")


def clean(text: str) -> tuple[str, int]:
    """Returns the text without NUL characters, which BERT's normalizer removes too, and their number."""
    removed = text.count("\0")
    return (text.replace("\0", ""), removed) if removed else (text, 0)


def split(text: str, language: str = "en", lines: str = "auto") -> list[str]:
    """Returns the sentences of a document, without empty ones, with single spaces inside and none at the ends.

    Args:
        text: The document.
        language: ISO 639 code.
        lines: "wrapped": the lines between blank lines are joined to a paragraph. "paragraphs": each line is a
            paragraph. "auto": decided by the lengths of the lines.
    """
    found: list[str] = []
    for paragraph in _paragraphs(text, lines):
        parts = _parts(paragraph, language)
        found += [stripped for part in _whole_words(parts) if (stripped := part.strip())]
    return found


def _parts(paragraph: str, language: str) -> list[str]:
    """Returns the paragraph as divided by sentencex, whose time is quadratic: long paragraphs are divided in windows
    that begin at the start of a sentence. The last quarter of a window is divided again in the next one, because a
    quotation there may end after the window."""
    solid = _WINDOW_WITHOUT_SPACES
    spaced = all(paragraph.find(" ", at, at + solid) >= 0 for at in range(0, len(paragraph) - solid, solid))
    window = _WINDOW if spaced else solid
    if len(paragraph) <= window:
        return _segment(paragraph, language)
    found: list[str] = []
    begun: list[str] = []  # the start of the next sentence: windows without an end of a sentence
    start = 0
    while len(paragraph) - start > window:
        parts = _segment(paragraph[start : start + window], language)
        ends = list(accumulate(map(len, parts)))
        kept = max(1, bisect_right(ends, window - window // 4, hi=len(parts) - 1))
        start += ends[kept - 1]
        if len(parts) > 1:
            found += ["".join([*begun, parts[0]]), *parts[1:kept]]
            begun = []
        else:
            begun += parts
    parts = _segment(paragraph[start:], language)
    return [*found, "".join([*begun, parts[0]]), *parts[1:]]


def _segment(text: str, language: str) -> list[str]:
    """Returns the text as divided by sentencex, or whole if sentencex panics, which raises no Exception."""
    try:
        parts: list[str] = sentencex.segment(language, text)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        parts = [text]
    return parts


def _whole_words(parts: list[str]) -> list[str]:
    """Returns the parts of a paragraph, joined where the tokenizer sees no end of a word."""
    found, start = [], 0
    for end in range(1, len(parts)):
        if parts[end - 1][-1] in _ENDS or _ends_word("".join(parts[max(start, end - _TAIL) : end])[-_TAIL:]):
            found.append(parts[start] if start == end - 1 else "".join(parts[start:end]))
            start = end
    return [*found, "".join(parts[start:])]


@lru_cache(1 << 12)
def _ends_word(tail: str) -> bool:
    """Returns whether a word ends with these last characters of a sentence, independent of what follows."""
    pieces: list[tuple[str, tuple[int, int]]] = _PRE_TOKENIZER.pre_tokenize_str(_NORMALIZER.normalize_str(tail + "a"))
    return pieces[-1][0] == "a"


def _paragraphs(text: str, lines: str) -> list[str]:
    """Returns the paragraphs of a text, without empty ones, with single spaces as their only white space."""
    for control in _REMOVED:
        if control in text:
            text = text.replace(control, "")
    wrapped = lines == "wrapped" or (lines == "auto" and _is_wrapped(text))
    for space in _ASCII_SPACES if text.isascii() else _SPACES:
        if space in text:
            text = text.replace(space, " ")
    while "  " in text:
        text = text.replace("  ", " ")
    found = [line.strip(" ") for line in text.split("\n")]
    if wrapped:
        joined = "\n".join(found)
        joined = joined if joined.isascii() else _BREAK_WITHOUT_SPACE.sub("", joined)
        found = [part.strip("\n").replace("\n", " ") for part in joined.split("\n\n")]
    return [paragraph for paragraph in found if paragraph]


def _is_wrapped(text: str) -> bool:
    lengths = [len(line) for line in text.split("\n") if line]
    longer = sum(length > WRAPPED_WIDTH for length in lengths)
    return len(lengths) > 1 and longer * 20 <= len(lengths)
