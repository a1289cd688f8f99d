"""Describes the documents of a part for comparison with all others: a signature, a content key and the hashes of long
lines.

The files of a part are `signatures-KEY.bin` and `lines-KEY.bin`, arrays of records, and `signatures-KEY.json`, which is
written after them. They are complete or absent, and depend only on the part.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.contents import sha256
from lambert.core.files import atomic_file, check_regular, open_regular
from lambert.wings.corpus.disk import disk_errors, have_hashes, read_record, write_record
from lambert.wings.corpus.duplicates import minhash, shingles
from lambert.wings.corpus.duplicates.spill import write
from lambert.wings.corpus.parts import read_part
from lambert.wings.corpus.reading.pieces import Piece

DOCUMENT = np.dtype(
    [
        ("key", "<u8"), ("characters", "<u4"), ("shingles", "<u4"), ("lines", "<u4"),
        ("signature", "<u4", (minhash.PERMUTATIONS,)),
    ]
)  # fmt: skip
"""A record of a document: the 64-bit BLAKE2b hash of its text; its characters; the number of its shingles, with
repeated ones, 0 if it is unreadable or blank; the number of its lines that have a word; and its signature."""
LINE = np.dtype([("hash", "<u8"), ("document", "<u4"), ("line", "<u4")])
"""A record of a long line: the hash of its words; the number of its document in the part; its number there."""
BATCH, BATCH_TEXTS = 1 << 18, 1 << 12
"""Number of characters, and of texts, that are hashed together (our choice: the arrays take about 25 MB)."""
Records = npt.NDArray[Any]
_RECORD = {"key": str, "documents": int, "files": {"*": str}}


@dataclass(frozen=True, slots=True)
class Signed:
    """A part and the files that describe its documents."""

    key: str
    path: Path
    """The part."""
    folder: Path
    name: str
    """Hash of everything that determines the files."""

    @property
    def source(self) -> str:
        """Name of the part in messages."""
        return str(self.path)

    @property
    def documents(self) -> Path:
        return self.folder / f"signatures-{self.name}.bin"

    @property
    def lines(self) -> Path:
        return self.folder / f"lines-{self.name}.bin"

    @property
    def record(self) -> Path:
        return self.documents.with_suffix(".json")

    def complete(self) -> dict[str, Any] | None:
        """Returns the record if the files are unchanged since they were written, otherwise None."""
        record = read_record(self.record, _RECORD)
        hashes = {path: record["files"].get(path.name) for path in (self.documents, self.lines)} if record else {}
        return record if have_hashes(hashes) else None

    def read(self, count: int = 1 << 14) -> Iterator[tuple[int, Records]]:
        """Yields the records of at most `count` documents at a time, with the number of the first."""
        yield from _chunks(self.documents, DOCUMENT, count)

    def read_lines(self, count: int = 1 << 18) -> Iterator[Records]:
        """Yields the records of at most `count` lines at a time."""
        for _, records in _chunks(self.lines, LINE, count):
            yield records

    def records(self, documents: npt.NDArray[np.int64]) -> Records:
        """Returns the records of the documents with these numbers [n]."""
        return np.asarray(np.memmap(check_regular(self.documents), DOCUMENT, "r")[documents])


class Sign:
    """Writes the files of a part and returns their record."""

    def __init__(self, least: int) -> None:
        """`least` is the number of characters of a long line; 0: lines are not hashed."""
        self._least = least
        minhash.import_rensa()

    def __call__(self, part: Signed) -> dict[str, Any]:
        count = 0
        with (
            disk_errors(part.documents),
            atomic_file(part.documents) as documents, documents.open("wb") as to_documents,
            atomic_file(part.lines) as lines, lines.open("wb") as to_lines,
        ):  # fmt: skip
            for records, found in describe(read_part(part.path), self._least):
                write(to_documents, records)
                write(to_lines, found)
                count += len(records)
            to_documents.flush()
            to_lines.flush()
        files = {path.name: sha256(path) for path in (part.documents, part.lines)}
        with disk_errors(part.record):
            return write_record(part.record, {"key": part.key, "documents": count, "files": files})


def describe(pieces: Iterable[Piece], least: int) -> Iterator[tuple[Records, Records]]:
    """Yields the records of documents and of long lines in blocks. The shingles of a document in several pieces are
    those of its pieces. Unreadable and blank rows have none.
    """
    batch = _Batch(least)
    number, line = 0, 0
    digest = blake2b(digest_size=8)
    for piece in pieces:
        text = "" if piece.error else piece.text
        batch.add(text, number, line)
        digest.update(text.encode())
        line += text.count("\n") + 1
        if piece.last:
            batch.keys.append(int.from_bytes(digest.digest(), "little"))
            number, line = number + 1, 0
            digest = blake2b(digest_size=8)
        if batch.characters >= BATCH or len(batch.texts) >= BATCH_TEXTS:
            yield batch.flush(whole=piece.last)
    if line:  # the last document has no last piece
        batch.keys.append(int.from_bytes(digest.digest(), "little"))
    yield batch.flush(whole=True)


class _Batch:
    """Texts whose hashes are computed together."""

    def __init__(self, least: int) -> None:
        self.texts: list[str] = []
        self.keys: list[int] = []
        """The content keys of the documents that ended."""
        self.characters = 0
        self._least = least
        self._documents: list[int] = []
        self._lines: list[int] = []
        self._begun = np.zeros(0, dtype=DOCUMENT)
        """The record so far of a document that began before these texts."""

    def add(self, text: str, document: int, line: int) -> None:
        """Adds a piece of the document with this number, whose first line has the number `line`."""
        self.texts.append(text)
        self._documents.append(document)
        self._lines.append(line)
        self.characters += len(text)

    def flush(self, whole: bool) -> tuple[Records, Records]:
        """Returns the records of the documents that ended, and of the long lines.

        `whole` says whether the last document has ended.
        """
        if not self.texts:
            self._begun["key"] = self.keys
            return self._begun, np.zeros(0, dtype=LINE)
        words = shingles.find_words(self.texts)
        hashes, bounds = shingles.hash_shingles(self.texts, words)
        blank = np.array([not text or text.isspace() for text in self.texts])
        documents = np.array(self._documents)
        pieces = np.zeros(len(self.texts), dtype=DOCUMENT)
        pieces["characters"] = [len(text) for text in self.texts]
        pieces["shingles"] = np.where(blank, 0, np.diff(bounds))
        pieces["lines"] = shingles.count_lines_with_words(words)
        pieces["signature"] = minhash.compute_signatures(hashes, bounds)
        pieces["signature"][blank] = np.iinfo(np.uint32).max
        begun = len(self._begun)
        pieces = np.concatenate([self._begun, pieces])
        firsts = np.flatnonzero(np.diff(np.concatenate([documents[:begun], documents]), prepend=-1))
        records = pieces[firsts]
        records["signature"] = np.minimum.reduceat(pieces["signature"], firsts, axis=0)
        for name in ("characters", "shingles", "lines"):
            records[name] = np.add.reduceat(pieces[name], firsts)
        ended = len(records) - (not whole)
        records["key"][:ended] = self.keys
        self._begun = records[ended:]
        lines = np.zeros(0, dtype=LINE)
        if self._least:
            found, texts, numbers = shingles.hash_long_lines(words, self._least)
            lines = np.zeros(len(found), dtype=LINE)
            lines["hash"], lines["document"] = found, documents[texts]
            lines["line"] = numbers + np.array(self._lines)[texts]
        self.texts, self.keys, self._documents, self._lines, self.characters = [], [], [], [], 0
        return records[:ended], lines


def _chunks(path: Path, dtype: np.dtype[Any], count: int) -> Iterator[tuple[int, Records]]:
    at = 0
    with open_regular(path) as file:
        while len(records := np.fromfile(file, dtype, count)):
            yield at, records
            at += len(records)
