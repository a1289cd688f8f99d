"""Writes encoded documents to training and held-out shards, and counts dropped documents by reason."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.randomness import Stream, key, unit
from lambert.core.shards import SPLITS, SplitWriter
from lambert.corpus.documents import Part
from lambert.corpus.duplicates import Seen
from lambert.corpus.encoding import Encoded
from lambert.corpus.unigram import cross_entropy, entropy


class Sink:
    """Writes documents to the splits below `folder`.

    A document is held out if a number in [0, 1), drawn from (seed, hash of its content), is below `threshold`. Empty
    documents, documents with fewer than `min_tokens` tokens, and duplicates are dropped and counted in `dropped`. A
    document that is read in several parts is never dropped as a duplicate; the hash of its first part identifies it.
    """

    def __init__(self, folder: Path, vocabulary: int, seed: int, threshold: float, min_tokens: int) -> None:
        self.dropped = {"empty": 0, "short": 0, "duplicate": 0}
        self.removed = 0
        self._seed, self._threshold, self._min_tokens = seed, threshold, min_tokens
        self._writers = [SplitWriter(folder / name, vocabulary) for name in SPLITS]
        self._counts = [np.zeros(vocabulary, dtype=np.int64) for _ in SPLITS]
        self._seen = Seen()
        self._least, self._most, self._kept = 1.0, 0.0, 0
        self._long_split, self._long_begun = 0, False

    def add(self, encoded: Encoded, part: Part) -> None:
        """Adds the next batch of documents."""
        self.removed += encoded.removed
        if part.long:
            self._add_long(encoded, part)
        else:
            self._add_whole(encoded)

    def _add_whole(self, encoded: Encoded) -> None:
        count = len(encoded.sentences_D)
        numbers_n = np.repeat(np.arange(count), encoded.sentences_D)
        tokens_D = np.bincount(numbers_n, weights=encoded.lengths_n, minlength=count)
        empty_D = tokens_D == 0
        short_D = ~empty_D & (tokens_D < self._min_tokens)
        kept_D = ~empty_D & ~short_D
        new_D = np.zeros(count, dtype=np.bool_)
        new_D[kept_D] = self._seen.add(encoded.hashes_D[kept_D])
        for name, dropped_D in (("empty", empty_D), ("short", short_D), ("duplicate", kept_D & ~new_D)):
            self.dropped[name] += int(dropped_D.sum())
        split_D = np.where(new_D, self._split(encoded.hashes_D, new_D), -1)
        split_n = split_D[numbers_n]
        split_T = np.repeat(split_n, encoded.lengths_n)
        for split in range(len(SPLITS)):
            numbers = np.cumsum(split_D == split) - 1
            chosen_n = split_n == split
            if chosen_n.any():
                self._put(
                    split, encoded.ids_T[split_T == split], encoded.lengths_n[chosen_n], numbers[numbers_n[chosen_n]]
                )

    def _add_long(self, encoded: Encoded, part: Part) -> None:
        if part.first:
            self._long_split = int(self._split(encoded.hashes_D, np.ones(1, dtype=np.bool_))[0])
            self._long_begun = False
        if len(encoded.ids_T):
            # -1 is the document before those of this call: these sentences continue it
            document = -1 if self._long_begun else 0
            self._put(self._long_split, encoded.ids_T, encoded.lengths_n, np.full(len(encoded.lengths_n), document))
            self._long_begun = True

    def _split(self, hashes_D: npt.NDArray[np.uint64], kept_D: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        draws_D = unit(key(self._seed, Stream.SPLIT, hashes_D))
        if kept_D.any():
            self._least = min(self._least, float(draws_D[kept_D].min()))
            self._most = max(self._most, float(draws_D[kept_D].max()))
            self._kept += int(kept_D.sum())
        return (draws_D < self._threshold).astype(np.int64)

    def _put(self, split: int, ids_T: Any, lengths_n: Any, documents_n: Any) -> None:
        self._writers[split].add(ids_T, lengths_n, documents_n)
        self._counts[split] += np.bincount(ids_T, minlength=len(self._counts[split]))

    def better_threshold(self) -> float:
        """Returns the threshold, moved by the least amount that gives each split a document, if there are two or more
        documents."""
        if self._kept < 2:
            return self._threshold
        if self._least >= self._threshold:
            return float(np.nextafter(self._least, 1.0))
        return min(self._threshold, self._most)

    def abandon(self) -> None:
        """Closes the open files after a failure, without completing the splits."""
        for writer in self._writers:
            writer.abandon()

    def close(self, unknown: int) -> dict[str, dict[str, Any]]:
        """Completes both splits and returns the manifest's entry of each. `unknown` is the id of [UNK]."""
        train_V = self._counts[0]
        entries: dict[str, dict[str, Any]] = {}
        for name, writer, counts_V in zip(SPLITS, self._writers, self._counts, strict=True):
            entry = writer.close()
            entry["unknown_rate"] = float(counts_V[unknown]) / max(entry["tokens"], 1)
            entry["unigram_entropy"] = entropy(counts_V)
            entry["unigram_cross_entropy"] = cross_entropy(counts_V, train_V)
            entries[name] = entry
        return entries
