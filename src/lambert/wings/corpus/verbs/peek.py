"""`lambert corpus peek`: shows what each step of `prepare` does with a few documents, without reading whole inputs and
without writing."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from lambert.runs.result import Say, silent
from lambert.text import sentences
from lambert.text.streams import Stream, unpack
from lambert.text.tokenizers import roles, tokenizer
from lambert.text.tokenizers.trial import library_errors
from lambert.wings.corpus.config import PeekConfig, PrepareConfig
from lambert.wings.corpus.filtering import Chain, Ledger, apply_filters, build_filters
from lambert.wings.corpus.reading import files
from lambert.wings.corpus.reading.readers import Layout, Piece, find_separator, open_file, recognise_kind
from lambert.wings.corpus.reading.slices import END, WHOLE, Slice, SliceReader, divide

LABEL = 12
"""Width of the first column."""
DOCUMENTS = 10
PIECES = 20
"""Tokens of a document that are shown."""
SENTENCES = 3
"""Sentences of a document that are shown."""
_TRIED = 1000
"""At a place in a dump, the search for an article ends after this many other pages."""
_FAR = 1 << 20
"""Minimum distance, in bytes, between two sampled documents of a file."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """The effect of a filter of the step `clean` on a document."""

    name: str
    dropped: str | None
    """The name of the filter and its reason; None: the document is kept."""
    text: str
    """The text after the filter."""
    changed: bool


@dataclass(frozen=True, slots=True)
class Peeked:
    """A document after each step."""

    source: str
    place: str
    text: str
    """The text after `extract`: the whole document, or its first piece of about 2 MiB."""
    whole: bool
    """Whether `text` is the whole document."""
    error: str = ""
    """Why the document cannot be read."""
    filters: list[Filtered] = field(default_factory=list)
    """The effect of each filter, up to the one that dropped the document."""
    sentences: list[str] = field(default_factory=list)
    """All sentences of the cleaned text."""
    tokens: int | None = None
    """Number of tokens; None without a tokenizer."""
    pieces: list[str] = field(default_factory=list)
    """The first tokens, [UNK] with the characters that it replaces; without a tokenizer, the first words."""


def run(config: PeekConfig, say: Say = silent) -> list[Peeked]:
    """Shows ten documents of the inputs. Writes nothing."""
    documents = peek(config)
    for line in format_documents(documents, width=shutil.get_terminal_size((100, 24)).columns):
        say(line)
    return documents


def format_documents(documents: Sequence[Peeked], width: int) -> Iterator[str]:
    """Yields the lines about the documents, none wider than `width` columns."""
    for number, document in enumerate(documents, 1):
        if number > 1:
            yield ""
        for label, text in _list_lines(document):
            yield _fit(f"{label:<{LABEL}}{_make_plain(text)}", width)


def peek(config: PrepareConfig, count: int = DOCUMENTS) -> list[Peeked]:
    """Returns some documents of the inputs after each step of `prepare`. Nothing is written.

    The documents are spread over the list of inputs, and over each uncompressed file whose documents can be found
    without reading all of it; of other files the first documents are taken. The same inputs give the same documents.

    Raises:
        DataError: An input cannot be read.
        UsageError: A setting is wrong.
    """
    without = [config.folder, config.work_folder] if config.folder.parts else []
    found, _ = files.find(config.input, without, config.text_field)
    filters = build_filters(config.cleaners, config)
    learnt = None
    if config.tokenizer != "train":
        learnt = tokenizer.load(Path(config.tokenizer), lowercase=config.lowercase)
    each = -(-count // min(len(found), count))
    chosen = [found[len(found) * n // min(len(found), count)] for n in range(min(len(found), count))]
    documents = [(file, piece) for file in chosen for piece in _sample_documents(file, config, each)]
    return [_run_steps(file, piece, filters, config, learnt) for file, piece in documents[:count]]


def _sample_documents(path: Path, config: PrepareConfig, count: int) -> list[Piece]:
    """Returns the first piece of each of `count` documents of a file, or of fewer if it has fewer."""
    layout = config.layout
    places = _choose_places(path, layout, config.format, count)
    read = SliceReader(layout, config.format)
    pieces: list[Piece] = []
    for place in places:
        pieces += islice(_take_first_pieces(read(path, place)), -(-count // len(places)))
    read.close()
    return pieces[:count]


def _take_first_pieces(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yields the first piece of each document."""
    inside = False
    for piece in islice(pieces, _TRIED):
        if not piece.passed_over:
            if not inside:
                yield piece
            inside = not piece.last


def _choose_places(path: Path, layout: Layout, kind: str, count: int) -> Sequence[Slice]:
    """Returns at most `count` places at which to begin reading."""
    with open_file(path) as raw:
        opened, inner = unpack(path, raw)
        if opened is not raw:
            return [WHOLE]
        beginning = Stream(opened).peek()
        kind = recognise_kind(kind, inner, beginning, layout.text_field)
        between = None if kind == "parquet" else find_separator(kind, layout, beginning)
    if kind == "parquet":
        groups = divide(path, layout, kind)
        return [groups[len(groups) * n // count] for n in range(count)] if len(groups) >= count else groups
    size = path.stat().st_size
    if between is None or size < _FAR * count:
        return [WHOLE]
    return [Slice(size * n // count, END) for n in range(count)]


def _run_steps(path: Path, piece: Piece, filters: Chain, config: PrepareConfig, learnt: Any) -> Peeked:
    if piece.error:
        return Peeked(str(path), piece.place, "", whole=True, error=piece.error)
    done: list[Filtered] = []
    now = Piece(piece.text, piece.place)
    for step in filters:
        ledger, before = Ledger(), now
        after = next(apply_filters([before], [step], ledger), None)
        if after is None:
            done.append(Filtered(step[0], next(iter(ledger.dropped)), before.text, changed=False))
            return Peeked(str(path), piece.place, piece.text, piece.last, filters=done)
        now = after
        done.append(Filtered(step[0], None, now.text, now.text != before.text))
    found = sentences.split(sentences.clean(now.text)[0], config.language, config.lines)
    if learnt is None:
        words = [word for sentence in found[:PIECES] for word in sentence.split()]
        tokens, pieces = None, words[:PIECES]
    else:
        tokens, pieces = _encode(found, learnt)
    return Peeked(str(path), piece.place, piece.text, piece.last, "", done, found, tokens, pieces)


@library_errors()
def _encode(found: list[str], learnt: Any) -> tuple[int, list[str]]:
    """Returns the number of tokens of sentences, and the first of them as text."""
    unknown = roles.specials(learnt).unk
    encodings = learnt.encode_batch(found, add_special_tokens=False)
    pieces = (
        f"[UNK: {sentence[begin:end]}]" if number == unknown else token
        for sentence, encoding in zip(found, encodings, strict=True)
        for token, number, (begin, end) in zip(encoding.tokens, encoding.ids, encoding.offsets, strict=True)
    )
    return sum(map(len, encodings)), list(islice(pieces, PIECES))


def _list_lines(document: Peeked) -> Iterator[tuple[str, str]]:
    yield "document", f"{document.source}, {document.place}"
    if document.error:
        yield "unreadable", document.error
        return
    begun = "" if document.whole else ", the first piece of a longer document"
    yield "extract", f"{len(document.text):,} characters{begun}: {document.text}"
    before, same = document.text, []
    for step in document.filters:
        if step.dropped is not None:
            yield step.name, f"dropped{step.dropped.removeprefix(step.name)}"
        elif step.changed:
            yield from _show_change(step, before)
        else:
            same.append(step.name)
        before = step.text
    if same:
        yield "kept by", ", ".join(same)
    if document.filters and document.filters[-1].dropped is not None:
        return
    yield "sentences", f"{len(document.sentences):,}"
    for sentence in document.sentences[:SENTENCES]:
        yield "", sentence
    if document.tokens is None:
        yield "words", " ".join(document.pieces)
        yield "tokens", "none: the vocabulary is not learnt yet"
    else:
        yield "tokens", f"{document.tokens:,}: {' '.join(document.pieces)}"


def _show_change(step: Filtered, before: str) -> Iterator[tuple[str, str]]:
    """Yields the first change that a filter made, with some characters before it."""
    yield step.name, f"changed: {len(before):,} to {len(step.text):,} characters"
    at = next(
        (n for n, (old, new) in enumerate(zip(before, step.text, strict=False)) if old != new),
        min(len(before), len(step.text)),
    )
    start = max(0, at - 20)
    yield "  before", f"{'...' if start else ''}{_escape(before[start : start + 400])}"
    yield "  after", f"{'...' if start else ''}{_escape(step.text[start : start + 400])}"


def _escape(text: str) -> str:
    """Returns a text with visible line breaks, and with codes in place of other invisible characters."""
    return "".join(
        c if c == " " or c.isprintable() else {"\n": "\\n", "\t": "\\t"}.get(c, f"\\u{ord(c):04x}") for c in text
    )


def _make_plain(text: str) -> str:
    """Returns the beginning of a text in one line, without characters that control a terminal."""
    return "".join(c if c.isprintable() else " " for c in text[:2000])


def _fit(line: str, width: int) -> str:
    """Returns a line, shortened to the width of a terminal, in which some characters take two columns."""
    from rich.cells import cell_len, set_cell_size

    return line if cell_len(line) <= width else set_cell_size(line, max(width - 3, 1)).rstrip() + "..."
