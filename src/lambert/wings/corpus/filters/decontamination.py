"""Finds documents that contain text of evaluation files."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lambert.core.errors import DataError
from lambert.core.settings import check
from lambert.text.rows import (
    JSON,
    RowFile,
    kind,
    list_data_files,
    open_unpacked,
    read_content,
    read_json_values,
    read_lines,
)
from lambert.text.tables import read_cells
from lambert.wings.corpus.batch import Booleans, Hashes, Outcome, PlainWords, TextBatch
from lambert.wings.corpus.characters import Integers


@dataclass(frozen=True, slots=True)
class Decontaminate:
    """Settings of `decontaminate`. Source: Brown et al. 2020, Language Models are Few-Shot Learners, appendix C."""

    files: tuple[Path, ...] = ()
    """Evaluation files: JSON lines, JSON, Parquet and Arrow (every string in them, as in SQuAD), CSV and TSV (every
    cell), or text. They may be compressed."""
    words: int = 13
    """Documents that share this many consecutive words with an evaluation file, in lower case and without punctuation,
    are dropped. Shorter strings of these files are not searched for."""
    drop: bool = True
    """Whether such documents are dropped; false: they are counted and kept."""

    def __post_init__(self) -> None:
        check(self, "decontaminate.", words="[1, 1000]")


class Decontamination:
    """The filter `decontaminate`. Reads the evaluation files when it is first called."""

    def __init__(self, rules: Decontaminate) -> None:
        self._rules = rules

    def __call__(self, batch: TextBatch) -> Outcome:
        outcome = Outcome()
        grams, documents = _hash_grams([data.decode() for data in batch.encoded], self._rules.words)
        known, table, bits = self._known
        maybe = np.flatnonzero(table[(grams >> np.uint64(64 - bits)).view(np.int64)])
        grams, documents = grams[maybe], documents[maybe]
        for path, hashes in known.items():
            at = np.minimum(np.searchsorted(hashes, grams), max(len(hashes) - 1, 0))
            hit = hashes[at] == grams if len(hashes) else np.zeros(len(grams), dtype=np.bool_)
            for document in np.unique(documents[hit]).tolist():
                outcome.found.setdefault(document, Counter())[path.name] += 1
                if self._rules.drop:
                    outcome.dropped.setdefault(document, path.name)
        return outcome

    @cached_property
    def _known(self) -> tuple[dict[Path, Hashes], Booleans, int]:
        """The hashes of the sequences of words of each file, in order, and a table of their first bits."""
        known = {path: np.unique(_hash_grams(list(strings(path)), self._rules.words)[0]) for path in self._rules.files}
        bits = min(26, max(16, sum(len(hashes) for hashes in known.values()).bit_length() + 4))
        table = np.zeros(1 << bits, dtype=np.bool_)
        for hashes in known.values():
            table[(hashes >> np.uint64(64 - bits)).view(np.int64)] = True
        return known, table, bits


def _hash_grams(texts: list[str], size: int) -> tuple[Hashes, Integers]:
    """Returns the hash and the text of each sequence of this many words."""
    batch = PlainWords(texts)
    first = np.arange(max(len(batch.starts_N) - size + 1, 0))
    documents = batch.documents_N[first]
    inside = batch.documents_N[first + (size - 1)] == documents
    first = first[inside]
    mixed = batch.grams(first, first + size) * np.uint64(0x9E3779B97F4A7C15)
    return mixed, documents[inside].astype(np.int64)


def strings(path: Path) -> Iterator[str]:
    """Yields the strings of an evaluation file. Raises DataError if it cannot be read."""
    suffix = kind(path)
    if suffix in JSON:
        for _, value in read_json_values(path):
            yield from _inside(value)
    elif suffix in (".parquet", ".arrow"):
        for file in list_data_files(path):
            with open_unpacked(file) as (_, stream):
                for read in RowFile(file, stream, suffix, ()).rows():
                    yield from _inside(read.row)
    elif suffix in (".csv", ".tsv"):
        for line, cells, problem in read_cells(read_content(path), suffix):
            if problem:
                raise DataError(f"{path}:{line} {problem}.")
            yield from cells
    else:
        yield "".join(text for _, text in read_lines(path))


def _inside(value: Any) -> Iterator[str]:
    """Yields the strings in parsed JSON, except the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _inside(item)
