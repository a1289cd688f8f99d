"""Converts annotated texts, spans of characters with checked offsets, to tags of words.

Tools count offsets in different units: characters, UTF-16 units, or lines that end in another way. If a format has the
text of each span, the convention of every row is found by comparing the two, and the notes say which convention
fits how many rows. Offsets are never changed without such a note.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tokenizers import Regex, pre_tokenizers

from lambert.core.errors import DataError, quote
from lambert.tasks.tag.conll import Offsets, Sentence
from lambert.tasks.tag.spans import tags_of

Divide = Callable[[Sequence[str]], list[Offsets]]
"""Returns the offsets of the words of each text."""


@dataclass(frozen=True, slots=True)
class Span:
    """A labelled part of a text. `end` is exclusive; `quoted` is the text of the span, if the format has it."""

    start: int
    end: int
    label: str
    quoted: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its spans. `words`: the words if the format has them, else the text is divided. `source`: what the
    annotations of one text by several annotators have in common."""

    place: str
    text: str
    spans: tuple[Span, ...]
    words: Offsets | None = None
    source: Hashable = None


_GRAPHEMES = pre_tokenizers.Split(Regex(r"\X"), "isolated")


def _grapheme_widths(text: str) -> list[int]:
    firsts = {offsets[0] for _, offsets in _GRAPHEMES.pre_tokenize_str(text)}
    return [int(at in firsts) for at in range(len(text))]


def _utf16_width(character: str) -> int:
    return 1 + (ord(character) > 0xFFFF)


def _line_widths(text: str, after_return: int, alone: int, width: Callable[[str], int]) -> list[int]:
    """Returns the width of each character. The width of a line feed depends on whether it follows a carriage return."""
    before = "\n" + text
    return [
        width(one) if one != "\n" else after_return if previous == "\r" else alone
        for previous, one in zip(before, text, strict=False)
    ]


CONVENTIONS: dict[str, Callable[[str], list[int]]] = {
    "characters": lambda text: [1] * len(text),
    "UTF-16 units": lambda text: [*map(_utf16_width, text)],
    "characters with \\r\\n as one": lambda text: _line_widths(text, 0, 1, lambda _: 1),
    "characters with \\n as \\r\\n": lambda text: _line_widths(text, 1, 2, lambda _: 1),
    "UTF-16 units with \\r\\n as one": lambda text: _line_widths(text, 0, 1, _utf16_width),
    "UTF-16 units with \\n as \\r\\n": lambda text: _line_widths(text, 1, 2, _utf16_width),
    "bytes of UTF-8": lambda text: [len(one.encode()) for one in text],
    "graphemes": _grapheme_widths,
}
"""The width of a character in each convention of offsets, in the order in which they are tried: UTF-16 is that of
JavaScript (Label Studio before 2021, doccano before 1.0), graphemes are a setting of doccano's projects."""
_CHARACTERS = "characters"
_SHIFTS = {
    "characters from 1": (-1, -1),
    "characters up to the last one of a span": (0, 1),
    "characters from 1 up to the last one of a span": (-1, 0),
}
"""What is added to start and end of spans in other conventions. They are recognised, but no format declares them."""


def convert_offsets(document: Document, convention: str) -> Document | None:
    """Returns the document with offsets in code points, from one of `CONVENTIONS` or `_SHIFTS`. None if a span is
    outside the text, within a character, or differs from its quoted text in more than white space."""
    places: list[int] = []
    first, last = _SHIFTS.get(convention, (0, 0))
    widths = CONVENTIONS.get(convention, CONVENTIONS[_CHARACTERS])
    for at, width in enumerate([*widths(document.text), 1]):
        if width:  # a character of width 0 belongs to the one before
            places += [at, *[-1] * (width - 1)]
    spans = []
    for span in document.spans:
        start, end = span.start + first, span.end + last
        if not 0 <= start < end < len(places):
            return None
        start, end = places[start], places[end]
        if (
            start < 0
            or end < 0
            or (span.quoted is not None and _solid(document.text[start:end]) != _solid(span.quoted))
        ):
            return None
        spans.append(replace(span, start=start, end=end))
    return replace(document, spans=tuple(spans))


def _solid(text: str) -> str:
    return "".join(text.split())


def settle_offsets(documents: Sequence[Document], name: str) -> tuple[list[Document], list[str]]:
    """Returns the documents with offsets that count code points, without those that fit no convention, and notes about
    both. A row is read by the first convention that fits all of its quoted texts. A row without quoted text is read by
    the one of most rows whose convention is unambiguous. Raises DataError if no row fits.

    Args:
        name: Name of the file, for messages.
    """
    found: list[tuple[Document, str]] = [(document, _convention(document)) for document in documents]
    told = Counter(convention for document, convention in found if convention and _tells(document))
    usual = told.most_common(1)[0][0] if told else _CHARACTERS
    kept: list[Document] = []
    rows: Counter[str] = Counter()
    bad: list[Document] = []
    for document, convention in found:
        quoted = any(span.quoted is not None for span in document.spans)
        used = convention if quoted else usual
        fitting = convert_offsets(document, used) if used else None
        if fitting is None:
            bad.append(document)
            continue
        kept.append(fitting)
        rows[used] += bool(document.spans)
    notes = [*_report(rows, found, name)]
    if bad:
        line = f"{bad[0].place}: {_misfit(bad[0])}"
        if not rows:
            shift = next((shift for shift in _SHIFTS if all(convert_offsets(document, shift) for document in bad)), "")
            hint = f" They would fit as {shift}." if shift else ""
            raise DataError(f"{line}. No row of {name} has spans that fit its text: correct the offsets.{hint}")
        of = _format_count(len(found), "row")
        notes.append(f"note: {len(bad):,} of {of} left out, because their offsets fit no convention: {line}.")
    return kept, notes


def _convention(document: Document) -> str:
    """Returns the first convention that fits all quoted texts; an empty text if there is none."""
    return next((name for name in CONVENTIONS if convert_offsets(document, name) is not None), "")


def _tells(document: Document) -> bool:
    """Returns whether a document has quoted text, and characters that the conventions count differently."""
    last = max((span.end for span in document.spans if span.quoted is not None), default=0)
    return any(one > "\x7f" or one == "\n" for one in document.text[:last])


def _report(rows: Counter[str], found: Sequence[tuple[Document, str]], name: str) -> Iterator[str]:
    quoted = sum(any(span.quoted is not None for span in document.spans) for document, _ in found)
    if set(rows) <= {_CHARACTERS}:
        checked = "checked by the quoted texts" if quoted else "the format quotes no text to check them"
        yield f"{name}  offsets count characters ({checked})"
        return
    listed = ", ".join(f"{convention} fit {_format_count(count, 'row')}" for convention, count in rows.most_common())
    yield f"note: {name}: by the quoted texts, offsets count not only characters: {listed}. They were converted."


def _misfit(document: Document) -> str:
    """Returns the problem of the first span that fits no convention."""
    for span in document.spans:
        if convert_offsets(replace(document, spans=(span,)), _CHARACTERS) is None:
            break
    part, where = document.text[span.start : span.end], f"the span {span.start} to {span.end} ({span.label})"
    if span.quoted is not None and 0 <= span.start < span.end <= len(document.text):
        return f"{where} is {quote(part)} in the text, and its quoted text is {quote(span.quoted)}"
    return f"{where} is not within the text of {len(document.text):,} characters"


def _format_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def tag_words(
    documents: Sequence[Document], divide: Divide, scheme: str, *, suffix: bool
) -> tuple[list[Sentence], dict[str, int], list[str]]:
    """Returns the documents as sentences of tagged words, counts, and notes about spans that words cannot represent.

    A word has the label of a span if they have a character in common. Of spans that share a word, the longest is kept,
    and the first of equally long ones.
    """
    texts = [document.text for document in documents if document.words is None]
    divided = iter(divide(texts))
    sentences, counts = [], Counter({"spans": 0})
    first: dict[str, str] = {}
    doubtful: list[tuple[Document, Offsets]] = []
    for document in documents:
        offsets = next(divided) if document.words is None else document.words
        kept = _select_spans(document, offsets, counts, first)
        if not _are_whole(document, offsets) and all(span.quoted is None for span in document.spans):
            doubtful.append((document, offsets))
        tags = tags_of(len(offsets), kept, scheme, suffix=suffix)
        words = [document.text[start:end] for start, end in offsets]
        text = document.text if document.words is None else None
        if words:
            sentences.append(Sentence(document.place, words, tags, text=text, offsets=offsets))
        else:
            counts["rows without a word"] += 1
    notes = [
        f"note: {_format_count(counts.pop(what), 'span')} {what} (first {first[what]})"
        for what in _LOSSES
        if counts[what]
    ]
    return sentences, {"spans": counts["spans"], **+counts}, [*notes, *_other_conventions(doubtful)]


def _are_whole(document: Document, offsets: Offsets) -> bool:
    """Returns whether every span begins and ends at the ends of words."""
    starts, ends = {start for start, _ in offsets}, {end for _, end in offsets}
    return all(span.start in starts and span.end in ends for span in document.spans)


def _other_conventions(doubtful: Sequence[tuple[Document, Offsets]]) -> list[str]:
    """Returns a note about the convention in which most of these documents, which have no quoted text, would have spans
    of whole words; nothing if there is none."""
    rows: Counter[str] = Counter()
    for document, offsets in doubtful:
        for name in (*CONVENTIONS, *_SHIFTS):
            other = convert_offsets(document, name) if name != _CHARACTERS else None
            rows[name] += other is not None and _are_whole(other, offsets)
    name, count = max(rows.items(), key=lambda item: item[1], default=("", 0))
    if not count:
        return []
    return [
        f"note: offsets may count {name}: then {count:,} of the {_format_count(len(doubtful), 'row')} with spans "
        "that are not whole words would have spans of whole words. They were read as characters: check the export."
    ]


_OVERLAP = "left out, because a longer one has a word in common"
_NO_WORD = "left out, because no word is in them"
_INSIDE = "begin or end within a word, and the whole word gets their label"
_AT_SPACE = "begin or end at a space"
_LOSSES = (_OVERLAP, _NO_WORD, _INSIDE, _AT_SPACE)


def _select_spans(
    document: Document, offsets: Offsets, counts: Counter[str], places: dict[str, str]
) -> list[tuple[int, int, str]]:
    """Returns the first word, the last word and the label of each span that is kept, and counts the others."""
    starts, ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T

    def count(what: str, span: Span) -> None:
        counts[what] += 1
        places.setdefault(what, f"{document.place}: {quote(document.text[span.start : span.end])}")

    taken = np.zeros(len(offsets), dtype=np.bool_)
    kept = []
    spans = dict.fromkeys((span.start, span.end, span.label) for span in document.spans)
    for start, end, label in sorted(spans, key=lambda one: (one[0] - one[1], one[0])):
        span = Span(start, end, label)
        counts["spans"] += 1
        first, last = int(np.searchsorted(ends, start, "right")), int(np.searchsorted(starts, end)) - 1
        if document.text[start].isspace() or document.text[end - 1].isspace():
            count(_AT_SPACE, span)
        if last < first:
            count(_NO_WORD, span)
        elif taken[first : last + 1].any():
            count(_OVERLAP, span)
        else:
            if starts[first] < start or ends[last] > end:
                count(_INSIDE, span)
            taken[first : last + 1] = True
            kept.append((first, last, label))
    return sorted(kept)
