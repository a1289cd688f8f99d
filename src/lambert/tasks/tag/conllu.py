"""Finds the words of a sentence of CoNLL-U in its text (universaldependencies.org/format.html)."""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

_TEXT = re.compile(r"#\s*text\s*=\s*(.*)")
_RANGE = re.compile(r"(\d+)-(\d+)")
_FORM, _MISC = 1, 9
_NO_SPACE = "SpaceAfter=No"
Surface = tuple[str, list[tuple[int, int] | None]]


def surface(lines: Sequence[Sequence[str]]) -> Surface | None:
    """Returns the text of a sentence, from its comment `# text` or else from its words and `SpaceAfter`, and the first
    character and end of each word in it. Words of a range such as 1-2 have places of their own only if together they
    form the written word. None if the text does not have the words in this order.

    Args:
        lines: The cells of the lines of the sentence, with its comments.
    """
    tokens = [*_tokens(lines)]
    given = next((found[1] for cells in lines if (found := _TEXT.fullmatch(cells[0]))), None)
    text = "".join(form + " " * space for form, _, space in tokens).rstrip() if given is None else given
    places: list[tuple[int, int] | None] = []
    at = 0
    for form, words, _ in tokens:
        at += len(text[at:]) - len(text[at:].lstrip())
        if not text.startswith(form, at):
            return None
        if "".join(words) == form:
            places += pairwise(accumulate(map(len, words), initial=at))
        else:
            places += [None] * len(words)
        at += len(form)
    return text, places


def _tokens(lines: Sequence[Sequence[str]]) -> Iterator[tuple[str, list[str], bool]]:
    """Yields each written word, the words that it has, and whether white space follows it. Empty nodes such as 1.1 are
    not written."""
    rows = [cells for cells in lines if not cells[0].startswith("#") and "." not in cells[0]]
    inside = 0
    for at, cells in enumerate(rows):
        space = _NO_SPACE not in cells[_MISC].split("|")
        if found := _RANGE.fullmatch(cells[0]):
            inside = int(found[2]) - int(found[1]) + 1
            yield cells[_FORM], [row[_FORM] for row in rows[at + 1 : at + 1 + inside]], space
        elif inside:
            inside -= 1
        else:
            yield cells[_FORM], [cells[_FORM]], space
