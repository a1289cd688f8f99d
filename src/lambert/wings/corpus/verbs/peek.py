"""`lambert corpus peek`: shows a few documents of the inputs after each step of `prepare`."""

import shutil
from collections.abc import Iterator, Sequence

from lambert.runs.result import Say, silent
from lambert.wings.corpus.config import PeekConfig
from lambert.wings.corpus.peek import SENTENCES, Filtered, Peeked, peek

LABEL = 12
"""Width of the first column."""


def run(config: PeekConfig, say: Say = silent) -> list[Peeked]:
    """Shows ten documents of the inputs. Writes nothing."""
    documents = peek(config)
    for line in shown(documents, width=shutil.get_terminal_size((100, 24)).columns):
        say(line)
    return documents


def shown(documents: Sequence[Peeked], width: int) -> Iterator[str]:
    """Yields the lines about the documents, none wider than `width` columns."""
    for number, document in enumerate(documents, 1):
        if number > 1:
            yield ""
        for label, text in _lines(document):
            yield _fitted(f"{label:<{LABEL}}{_plain(text)}", width)


def _lines(document: Peeked) -> Iterator[tuple[str, str]]:
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
            yield from _changed(step, before)
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


def _changed(step: Filtered, before: str) -> Iterator[tuple[str, str]]:
    """Yields the first change that a filter made, with some characters before it."""
    yield step.name, f"changed: {len(before):,} to {len(step.text):,} characters"
    at = next(
        (n for n, (old, new) in enumerate(zip(before, step.text, strict=False)) if old != new),
        min(len(before), len(step.text)),
    )
    start = max(0, at - 20)
    yield "  before", f"{'...' if start else ''}{_marked(before[start : start + 400])}"
    yield "  after", f"{'...' if start else ''}{_marked(step.text[start : start + 400])}"


def _marked(text: str) -> str:
    """Returns a text with visible line breaks, and with codes in place of other invisible characters."""
    return "".join(
        c if c == " " or c.isprintable() else {"\n": "\\n", "\t": "\\t"}.get(c, f"\\u{ord(c):04x}") for c in text
    )


def _plain(text: str) -> str:
    """Returns the beginning of a text in one line, without characters that control a terminal."""
    return "".join(c if c.isprintable() else " " for c in text[:2000])


def _fitted(line: str, width: int) -> str:
    """Returns a line, shortened to the width of a terminal, in which some characters take two columns."""
    from rich.cells import cell_len, set_cell_size

    return line if cell_len(line) <= width else set_cell_size(line, max(width - 3, 1)).rstrip() + "..."
