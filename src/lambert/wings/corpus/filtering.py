"""Applies the filters of the step `clean` to the pieces of a part, and counts and samples their effects."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from lambert.core.errors import UsageError
from lambert.core.registry import nearest
from lambert.wings.corpus.batch import Filter, Outcome, TextBatch
from lambert.wings.corpus.cleaning import CLEANERS, Cleaner, call, find_cleaner, hash_code
from lambert.wings.corpus.filters import FILTERS
from lambert.wings.corpus.reading.readers import Piece
from lambert.wings.corpus.versions import list_filter_versions

if TYPE_CHECKING:
    from lambert.wings.corpus.config import PrepareConfig

BATCH = 1 << 20
"""Characters after which a batch ends (our choice: its arrays then need some 60 MB)."""
BATCH_PIECES = 1 << 14
KEPT = "kept"
SAMPLED = {"part": 3, "all": 10}
"""Number of sampled documents for each reason: in a part, and in all parts together."""
SHOWN = 300
"""Characters of a sample."""
Chain = list[tuple[str, Filter]]
Sample = dict[str, str]


def build_filters(names: Iterable[str], config: "PrepareConfig") -> Chain:
    """Returns the filters with these names. Raises UsageError if one is unknown or cannot be used with the settings."""
    return [(name, _filter(name, config)) for name in names]


def _filter(name: str, config: "PrepareConfig") -> Filter:
    if name in FILTERS:
        return FILTERS[name].build(config)
    if ":" not in name and name not in CLEANERS:
        raise UsageError(f"clean = {name!r} is unknown.{nearest(name, [*FILTERS, *CLEANERS])}")
    return wrap_cleaner(name, find_cleaner(name))


def list_causes(names: Iterable[str], config: "PrepareConfig") -> list[Any]:
    """Returns everything besides the documents that determines the result of these filters."""
    found: list[Any] = []
    for name in names:
        if name in FILTERS:
            found.append((name, FILTERS[name].settings(config), list_filter_versions(name)))
        else:
            found.append((name, hash_code(find_cleaner(name)) if ":" in name else "", list_filter_versions(name)))
    return found


def wrap_cleaner(name: str, function: Cleaner) -> Filter:
    """Returns the filter that calls a function for each document."""

    def run(batch: TextBatch) -> Outcome:
        outcome = Outcome()
        for document, place in enumerate(batch.places):
            if document not in batch.dropped:
                found = call(name, function, batch.text(document), place)
                if found is None:
                    outcome.dropped[document] = ""
                else:
                    outcome.texts[document] = found.encode()
        return outcome

    return run


@dataclass(slots=True)
class Ledger:
    """Counts and samples of the effects of filters on the documents of a part."""

    dropped: Counter[str] = field(default_factory=Counter)
    """Dropped documents by filter and reason."""
    changed: Counter[str] = field(default_factory=Counter)
    """Documents, or pieces of long ones, whose text a filter changed."""
    found: Counter[str] = field(default_factory=Counter)
    """Counts of what filters found in documents that were not dropped before, such as masked addresses."""
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    """For each reason, and for documents that are kept, those with the smallest hashes of their contents."""

    def drop(self, reason: str, piece: Piece, data: bytes) -> None:
        """Counts a dropped document; `data` is its text in UTF-8."""
        self.dropped[reason] += 1
        self.sample(reason, piece, data, SAMPLED["part"])

    def sample(self, reason: str, piece: Piece, data: bytes, count: int) -> None:
        """Keeps a document if it is among the `count` ones with the smallest hashes."""
        own = self.samples.setdefault(reason, [])
        digest = blake2b(data, digest_size=8).hexdigest()
        if len(own) < count or digest < own[-1]["hash"]:
            own.append({"hash": digest, "source": piece.source, "place": piece.place, "text": piece.text[:SHOWN]})
            own[:] = select_smallest(own, count)

    def record(self) -> dict[str, Any]:
        """Returns the entries of the record of the part."""
        return {
            "dropped": dict(self.dropped), "changed": dict(self.changed), "found": dict(self.found),
            "samples": self.samples,
        }  # fmt: skip


def select_smallest(samples: Iterable[Sample], count: int) -> list[Sample]:
    """Returns the samples with the smallest hashes, each content once, in the order of their hashes."""
    first: dict[str, Sample] = {}
    for sample in samples:
        first.setdefault(sample["hash"], sample)
    return [first[digest] for digest in sorted(first)[:count]]


def merge_samples(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Sample]]:
    """Returns the samples of all parts."""
    found: dict[str, list[Sample]] = {}
    for record in records:
        for reason, samples in record["samples"].items():
            found.setdefault(reason, []).extend(samples)
    return {reason: select_smallest(samples, SAMPLED["all"]) for reason, samples in found.items()}


def apply_filters(pieces: Iterable[Piece], filters: Chain, ledger: Ledger) -> Iterator[Piece]:
    """Yields the pieces of the documents that no filter drops, with their new texts. Unreadable documents pass.

    The first piece of a long document decides whether the document is dropped; a later piece that a filter would drop
    keeps its text. Raises UsageError if a function fails or returns neither a text nor None.
    """
    dropping = False
    for batch, first in _batches(pieces):
        if not first and dropping:
            continue
        before = [piece.text.encode() for piece in batch]
        after = _run(batch, before, first, filters, ledger)
        dropping = after[-1] is None
        for piece, data, new in zip(batch, before, after, strict=True):
            if new is not None:
                if first and not piece.error:
                    ledger.sample(KEPT, piece, data, SAMPLED["all"])
                yield piece if new is data else replace(piece, text=new.decode())


def _batches(pieces: Iterable[Piece]) -> Iterator[tuple[list[Piece], bool]]:
    """Yields first pieces of documents in batches, with True, and each later piece of a long document alone, with
    False."""
    batch: list[Piece] = []
    size, inside = 0, False
    for piece in pieces:
        if inside:
            yield [piece], False
        else:
            batch.append(piece)
            size += len(piece.text)
        inside = not piece.last
        if batch and (inside or size >= BATCH or len(batch) >= BATCH_PIECES):
            yield batch, True
            batch, size = [], 0
    if batch:
        yield batch, True


def _run(pieces: list[Piece], before: list[bytes], first: bool, filters: Chain, ledger: Ledger) -> list[bytes | None]:
    """Returns the new text of each piece, None if its document is dropped. `before` are the texts in UTF-8."""
    after: list[bytes | None] = [*before]
    rows = [row for row, piece in enumerate(pieces) if not piece.error]
    places = [f"{piece.source}, {piece.place}" if piece.source else piece.place for piece in pieces]
    batch = TextBatch([before[row] for row in rows], [places[row] for row in rows])
    for name, apply in filters:
        if len(batch.dropped) == len(rows):
            break
        outcome = apply(batch)
        for document, counts in outcome.found.items():
            if document not in batch.dropped:
                for what, count in counts.items():
                    ledger.found[f"{name}: {what}"] += count
        changed = 0
        for document, data in outcome.texts.items():
            if document not in batch.dropped and document not in outcome.dropped and data != batch.encoded[document]:
                after[rows[document]] = data
                changed += 1
        if first:
            for document, reason in sorted(outcome.dropped.items()):
                if document not in batch.dropped:
                    batch.dropped.add(document)
                    row = rows[document]
                    after[row] = None
                    ledger.drop(f"{name}: {reason}" if reason else name, pieces[row], before[row])
        if changed:
            ledger.changed[name] += changed
            rows = [row for row in rows if after[row] is not None]
            batch = TextBatch([after[row] or b"" for row in rows], [places[row] for row in rows])
    return after
