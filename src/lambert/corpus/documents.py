"""Reads the documents of all files in batches of bounded size, and counts and names unreadable documents."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lambert.core.errors import DataError
from lambert.corpus.files import text_bytes
from lambert.corpus.readers import Layout, Piece, read

BATCH = 1 << 20  # characters: large enough to amortize calls, small enough for dozens in memory
BATCH_DOCUMENTS = 1 << 14
Reader = Callable[[Path, Layout, str, Callable[[int], None]], Iterator[Piece]]
NAMED = 20  # unreadable documents that the manifest names; all are counted


@dataclass(frozen=True, slots=True)
class Part:
    """The content of a batch: whole documents, or one piece of a long document."""

    long: bool = False
    first: bool = False


WHOLE = Part()


class Documents:
    """The documents of a list of files. `read` and `bad` count the documents of the last pass, `passed_over` what is no
    document, by reason; `named` lists bad ones."""

    def __init__(
        self, files: Sequence[Path], layout: Layout, kind: str, max_bad: float, read: Reader = read,
        passed_over: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """`read` yields the pieces of a file; `passed_over` counts what was passed over before."""
        self.files, self.layout, self.kind, self.max_bad, self._read = files, layout, kind, max_bad, read
        self.total = sum(file.stat().st_size for file in files)
        """Bytes on disk."""
        self.done = 0
        """Bytes on disk read so far in the current pass."""
        self.text_bytes = text_bytes(files)
        """Approximate bytes of text in the files."""
        self.read = self.bad = 0
        self.named: list[str] = []
        self._passed_over_before = passed_over or {}
        self.passed_over: Counter[str] = Counter()

    def batches(self) -> Iterator[tuple[list[str], Part]]:
        """Yields lists of texts with their kind, for one pass over the files. A long document is yielded as consecutive
        batches of one piece each.

        Raises DataError at the end if more than a share `max_bad` of the documents could not be read.
        """
        self.done = self.read = self.bad = 0
        self.named = []
        self.passed_over = Counter(self._passed_over_before)
        texts: list[str] = []
        size = 0
        for file in self.files:
            before, inside = self.done, False
            for piece in self._read(file, self.layout, self.kind, partial(self._count, before)):
                if piece.passed_over:
                    self.passed_over[piece.passed_over] += 1
                    continue
                self.read += not inside
                if piece.error:
                    self._refuse(f"{file}, {piece.place}, {piece.error}")
                if piece.last and not inside:
                    if not piece.error:
                        texts.append(piece.text)
                        size += len(piece.text)
                else:
                    if texts:
                        yield texts, WHOLE
                        texts, size = [], 0
                    yield [piece.text], Part(long=True, first=not inside)
                inside = not piece.last
                if size >= BATCH or len(texts) >= BATCH_DOCUMENTS:
                    yield texts, WHOLE
                    texts, size = [], 0
            self.done = before + file.stat().st_size
        if texts:
            yield texts, WHOLE
        too_many_bad(self.bad, self.read, self.max_bad, self.named)

    def _count(self, before: int, of_file: int) -> None:
        self.done = before + of_file

    def _refuse(self, what: str) -> None:
        self.bad += 1
        if len(self.named) < NAMED:
            self.named.append(what)


def too_many_bad(bad: int, read: int, max_bad: float, named: Sequence[str]) -> None:
    """Raises DataError, which names the first, if more than a share `max_bad` of the documents could not be read."""
    if bad > max_bad * read:
        raise DataError(
            f"{named[0]}. {bad} of {read} documents cannot be read, more than max_bad = {max_bad:g}. Repair or remove "
            "them, or raise max_bad to drop them."
        )
