"""Reads the documents of all files in batches of bounded size, and counts and names unreadable documents."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lambert.core.contents import HashedFile
from lambert.core.errors import DataError, printable_line
from lambert.wings.corpus.reading.files import find_size
from lambert.wings.corpus.reading.pieces import escape_name
from lambert.wings.corpus.reading.readers import Layout, Piece, read

BATCH = 1 << 20  # characters: large enough to amortize calls, small enough for dozens in memory
BATCH_DOCUMENTS = 1 << 14
Stamp = tuple[int, int, int] | None
MARK = 1 << 25  # minimum number of characters between two batches with a mark
NAMED = 20
"""The manifest names this many unreadable documents, and as many more that end a file early. All are counted."""
_CUT = re.compile(
    r", is damaged or (truncated after this|not )|: the file is truncated|: the rest of the file is lost|"
    r"and is not read further|: the file ends within it"
)
"""Errors of an unreadable document after which the rest of its file is missing."""


@dataclass(frozen=True, slots=True)
class Part:
    """The content of a batch: whole documents, or one piece of a long document."""

    long: bool = False
    first: bool = False
    files: Sequence[int] = ()
    """The number of the input file of each document of the batch."""
    share: float = 1.0
    """Share of the documents that is used."""
    repeat: int = 0
    """How often the documents have been used before."""
    mark: Mapping[str, Any] | None = None
    """Where `Documents.batches` can continue after this batch; None if it cannot."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of documents."""

    files: tuple[str, ...]
    """The input files of the documents."""
    bytes: int
    """Bytes on disk, for progress."""
    pieces: Callable[[Callable[[int], None]], Iterator[Piece]]
    """Called with a function that takes the number of bytes read so far."""
    key: str = ""
    """Hash of everything that determines its documents; empty if it is unknown."""
    encoded: Path = Path()
    """The part of the step `encode`, if there is one."""
    share: float = 1.0
    repeat: int = 0
    """As in `Part`."""
    grows: bool = False
    """Whether adding input files may add documents to it."""


def apply_weights(
    sources: Sequence[InputFile], input_of: Mapping[str, int], weights: Sequence[float]
) -> list[InputFile]:
    """Returns the sources with their shares. Sources of inputs with weights above 1 are repeated at the end, in rounds.

    Args:
        input_of: For each input file, the number of its entry of `input`.
        weights: How often the documents of each entry are used; empty: once.
    """
    found = []
    for repeat in range(math.ceil(max(weights, default=1.0))):
        for source in sources:
            share = min(1.0, weights[input_of[source.files[0]]] - repeat) if weights else 1.0
            if share > 0:
                found.append(replace(source, share=share, repeat=repeat))
    return found


def list_file_sources(
    files: Sequence[Path], layout: Layout, kind: str, stamps: Sequence[Stamp] | None = None
) -> list[InputFile]:
    """Returns the input files, which had these `stamps` when they were hashed, as sources."""

    def source(file: Path, stamp: Stamp) -> InputFile:
        def pieces(tell: Callable[[int], None]) -> Iterator[Piece]:
            yield from read(file, layout, kind, tell)
            if HashedFile(file, "").stamp() != stamp:
                raise build_change_error(file)

        return InputFile((str(file),), find_size(file), pieces)

    stamps = [HashedFile(file, "").stamp() for file in files] if stamps is None else stamps
    return [source(file, stamp) for file, stamp in zip(files, stamps, strict=True)]


def read_texts(paths: Sequence[Path]) -> Iterator[list[str]]:
    """Yields the documents of files of any format that is read, in lists. Raises DataError for one that cannot be
    read."""
    return (texts for texts, _ in Documents(list_file_sources(paths, Layout(), "auto"), 0, max_bad=0.0).batches())


class Documents:
    """The documents of a list of sources. `read` and `bad` count the documents of the last pass, `passed_over` counts
    the skipped items by reason; `named` lists unreadable documents."""

    def __init__(
        self, sources: Sequence[InputFile], text_bytes: int, max_bad: float,
        passed_over: Mapping[str, int] | None = None, found: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """`text_bytes` is the approximate number of bytes of text, repeats included; `passed_over` has the counts of
        earlier steps, and `found` what the readers found."""
        self.sources, self.text_bytes, self._max_bad = sources, text_bytes, max_bad
        self.total = sum(source.bytes for source in sources)
        """Bytes on disk."""
        self.done = 0
        """Bytes on disk read so far in the current pass."""
        self.files = list(dict.fromkeys(name for source in sources for name in source.files))
        """The input files, which are numbered in this order."""
        self._numbers = {escape_name(name): number for number, name in enumerate(self.files)}
        self.read = self.bad = 0
        self.bad_of: Counter[str] = Counter()
        """Numbers of unreadable documents of each input file in a pass from the beginning."""
        self.named: list[str] = []
        self._passed_over_before = passed_over or {}
        self.passed_over: Counter[str] = Counter()
        self._found_before = found or {}
        self.found: Counter[str] = Counter()
        """`Piece.found` of all documents, of a pass from the beginning."""

    def batches(self, mark: Mapping[str, Any] | None = None) -> Iterator[tuple[list[str], Part]]:
        """Yields lists of texts with their kind, for one pass over the sources, or for the rest of it after the batch
        with this `mark`. A long document is yielded as consecutive batches of one piece each.

        Raises DataError if a file was changed, and at the end if more than a share `max_bad` of the documents could not
        be read.
        """
        texts: list[str] = []
        files: list[int] = []
        size = since = 0
        own = Part()
        for number, source in self._begin(mark):
            before, inside = self.done, False
            if texts and (own.share, own.repeat) != (source.share, source.repeat):
                yield texts, replace(own, files=files)
                texts, files, size = [], [], 0
            own = Part(share=source.share, repeat=source.repeat)
            for piece in source.pieces(partial(self._count, before)):
                if piece.passed_over:
                    self.passed_over[piece.passed_over] += 1
                    continue
                self.read += not inside and not source.repeat
                if piece.found and not source.repeat:
                    self.found.update(piece.found)
                since += len(piece.text)
                name = piece.source or escape_name(source.files[0])
                if piece.error and not source.repeat:
                    self._refuse(name, f"{piece.place}, {piece.error}")
                if piece.last and not inside:
                    if not piece.error:
                        texts.append(piece.text)
                        files.append(self._numbers[name])
                        size += len(piece.text)
                else:
                    if texts:
                        yield texts, replace(own, files=files)
                        texts, files, size = [], [], 0
                    yield [piece.text], replace(own, long=True, first=not inside, files=[self._numbers[name]])
                inside = not piece.last
                if size >= BATCH or len(texts) >= BATCH_DOCUMENTS:
                    yield texts, replace(own, files=files)
                    texts, files, size = [], [], 0
            self.done = before + source.bytes
            if since >= MARK or self.is_before_growing(number):
                yield texts, replace(own, files=files, mark=self.mark(number))
                texts, files, size, since = [], [], 0, 0
        if texts:
            yield texts, replace(own, files=files)
        check_bad(self.bad, self.read, self._max_bad, self.named)

    def _begin(self, mark: Mapping[str, Any] | None) -> Iterator[tuple[int, InputFile]]:
        """Sets the counts to those of a mark. Returns the remaining sources with their numbers, from 1."""
        mark = mark or {"sources": 0, "done": 0, "read": 0, "bad": 0, "named": []}
        self.done, self.read, self.bad, self.named = mark["done"], mark["read"], mark["bad"], list(mark["named"])
        self.passed_over, self.bad_of = Counter(self._passed_over_before), Counter()
        self.found = Counter(self._found_before)
        return enumerate(self.sources[mark["sources"] :], mark["sources"] + 1)

    def mark(self, sources: int) -> dict[str, Any]:
        """Returns the mark after the first `sources` sources, which were just read. It has no `passed_over`:
        resumable sources skip nothing."""
        counts = {"done": self.done, "read": self.read, "bad": self.bad, "named": [*self.named]}
        return {"sources": sources, **counts}

    def last_mark(self) -> dict[str, Any] | None:
        """Returns the mark after the last source, or None if a larger corpus must resume before it."""
        return None if self.sources[-1].grows else self.mark(len(self.sources))

    def is_before_growing(self, number: int) -> bool:
        """Returns True if only the last source follows the first `number` sources and it may grow. In that
        case a larger corpus must resume before that source."""
        return number == len(self.sources) - 1 and self.sources[-1].grows

    def _count(self, before: int, of_file: int) -> None:
        self.done = before + of_file

    def _refuse(self, file: str, what: str) -> None:
        self.bad += 1
        self.bad_of[file] += 1
        add_name(self.named, printable_line(f"{file}, {what}"))


MOST_FOUND = 200
"""Number of names, the most frequent ones, that a part or a manifest keeps of what readers found. `holes` is the sum
over all names."""


def select_found(found: Mapping[str, int]) -> dict[str, int]:
    """Returns what readers found, with the counts of the most frequent names only."""
    names = sorted((name for name in found if name.startswith("{{")), key=lambda name: (-found[name], name))
    kept = [name for name in ("sentences", "holes") if name in found] + names[:MOST_FOUND]
    return {name: found[name] for name in kept}


def add_name(named: list[str], what: str) -> None:
    """Appends an unreadable document to the list of named ones, unless the list is full."""
    if len(named) < NAMED or (ends_early(what) and sum(map(ends_early, named)) < NAMED):
        named.append(what)


def ends_early(what: str) -> bool:
    """Returns whether this unreadable document is the last of its file because the rest is missing."""
    return _CUT.search(what) is not None


def check_bad(bad: int, read: int, max_bad: float, named: Sequence[str]) -> None:
    """Raises DataError, which names the first unreadable document, if their share exceeds `max_bad`."""
    if bad > max_bad * read:
        text = "is not UTF-8" in named[0] and "no text file" not in named[0]
        other = "Name the encoding (--encoding NAME) if it is another one. " if text else ""
        raise DataError(
            f"{named[0]}. {bad} of {read} documents cannot be read, more than max_bad = {max_bad:g}. {other}Repair or "
            "remove them, or raise max_bad to drop them."
        )


def build_change_error(file: object) -> DataError:
    """Returns the error for an input file that changed while it was read."""
    return DataError(f"{file} changed while it was read. Give the command again when it is complete.")
