"""Documents as sentences.

sentencex (Wikimedia, MIT) finds the ends of sentences; what is here decides what a paragraph is and cleans white space.
"""

import sentencex

MARK = "\ufdd0"
"""A noncharacter that no text holds after `clean`; the encoder sets it between sentences."""

WRAPPED_WIDTH = 100
"""Lines are taken for hard-wrapped where 19 of 20 are no longer than this many characters (typewriters and plain-text
editions wrap at 60 to 80)."""

_SPACES = [c for c in map(chr, range(0x3001)) if c.isspace() and c not in " \n"]  # U+3000 is the last of Unicode
_ASCII_SPACES = [c for c in _SPACES if c.isascii()]

LINES = ("auto", "wrapped", "paragraphs")


def clean(text: str) -> tuple[str, int]:
    """(the text without NUL characters and noncharacter marks, how many were removed)."""
    removed = text.count("\0") + text.count(MARK)
    return (text.replace("\0", "").replace(MARK, ""), removed) if removed else (text, 0)


def split(text: str, language: str = "en", lines: str = "auto") -> list[str]:
    """The sentences of a document, none of them empty, with single spaces inside and none around.

    Paragraphs end at blank lines. Lines within one are joined where `lines` is "wrapped", are paragraphs of their own
    where it is "paragraphs"; "auto" decides by the lengths of the document's lines. `language` is an ISO 639 code.
    """
    found: list[str] = []
    for paragraph in _paragraphs(text, lines):
        found += [stripped for sentence in sentencex.segment(language, paragraph) if (stripped := sentence.strip())]
    return found


def _paragraphs(text: str, lines: str) -> list[str]:
    """The paragraphs of a text, none of them empty, with single spaces inside as their only white space."""
    wrapped = lines == "wrapped" or (lines == "auto" and _is_wrapped(text))
    for space in _ASCII_SPACES if text.isascii() else _SPACES:
        if space in text:
            text = text.replace(space, " ")
    while "  " in text:
        text = text.replace("  ", " ")
    found = [line.strip(" ") for line in text.split("\n")]
    if wrapped:
        found = [part.strip("\n").replace("\n", " ") for part in "\n".join(found).split("\n\n")]
    return [paragraph for paragraph in found if paragraph]


def _is_wrapped(text: str) -> bool:
    lengths = [len(line) for line in text.split("\n") if line]
    longer = sum(length > WRAPPED_WIDTH for length in lengths)
    return len(lengths) > 1 and longer * 20 <= len(lengths)
