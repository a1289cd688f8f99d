"""Writes encoded documents to training and held-out shards, and counts dropped documents by reason."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.errors import DataError
from lambert.core.files import replace_files
from lambert.core.randomness import Stream, key, unit
from lambert.core.shards import SPLITS, SplitWriter, has_hash, token_type, with_hash
from lambert.corpus.documents import Part
from lambert.corpus.duplicates.exact import Seen
from lambert.corpus.tokens.encoding import Encoded
from lambert.corpus.tokens.unigram import cross_entropy, entropy

STATE, _SEEN = "state.json", "seen.bin"

_REPEAT = 0x9E3779B97F4A7C15  # distinguishes the hashes of repeated documents


def used(seed: int, hashes_D: npt.NDArray[np.uint64], share: float) -> npt.NDArray[np.bool_]:
    """Returns which documents with these hashes [D] belong to a share of the documents. Those of a smaller share belong
    to every larger one."""
    if share >= 1:
        return np.ones(len(hashes_D), dtype=np.bool_)
    return np.asarray(unit(key(seed, Stream.SPLIT, hashes_D, 2)) < share)


class Sink:
    """Writes documents to the splits below `folder`.

    A document is held out if a number in [0, 1), drawn from (seed, hash of its content), is below `threshold`. Empty
    documents, documents with fewer than `min_tokens` tokens, and duplicates are dropped and counted in `dropped`. A
    document that is read in several parts is never dropped as a duplicate; the hash of its first part identifies it.
    Of an input with a share below 1, the documents are used for which another drawn number is below it. Documents that
    are repeated are training data only.
    """

    def __init__(
        self, folder: Path, vocabulary: int, seed: int, threshold: float, min_tokens: int, unknown: int,
        inputs: int = 1, keep: Path | None = None,
    ) -> None:  # fmt: skip
        """`unknown` is the id of [UNK], `inputs` the number of inputs. `keep` is a folder for what `save` keeps besides
        the splits. If `save` was called before for both folders, this object continues from there. Raises DataError if
        their files were changed since."""
        self._seed, self._threshold, self._min_tokens = seed, threshold, min_tokens
        self._keep = keep
        state = read_state(keep) if keep else None
        self.progress: Any = state["progress"] if state else None
        """What the last call of `save` was given, or None."""
        self.dropped = state["dropped"] if state else {"empty": 0, "short": 0, "duplicate": 0}
        self.removed = state["removed"] if state else 0
        self.repeated: int = state["repeated"] if state else 0
        """Number of documents that were added again."""
        self._unknown = unknown
        self._by_input = np.zeros((inputs, 3), dtype=np.int64)
        if state:  # of as many inputs or fewer
            self._by_input[: len(state["inputs"])] = state["inputs"]
        drawn: tuple[float, float, int] = state["drawn"] if state else (1.0, 0.0, 0)
        self._least, self._most, self._kept = drawn
        self._seen, self._seen_hash = Seen(), hashlib.sha256()
        if keep and state:
            self._restore_seen(keep / _SEEN, state["seen"], state["seen_sha256"])
        self._writers: list[SplitWriter] = []
        try:
            for name in SPLITS:
                entry = state["splits"][name] if state else None
                self._writers.append(SplitWriter(folder / name, vocabulary, state=entry))
            self._counts = [_counted(folder / name, vocabulary) for name in SPLITS]
        except BaseException:
            self.abandon()
            raise
        self._fresh: list[npt.NDArray[np.uint64]] = []
        self._long_split, self._long_begun = 0, False

    def _restore_seen(self, path: Path, count: int, expected: str) -> None:
        data = path.read_bytes()[: 8 * count] if path.is_file() else b""
        self._seen_hash.update(data)
        if self._seen_hash.hexdigest() != expected:
            raise DataError(f"{path} is damaged.")
        self._seen.add(np.frombuffer(data, dtype="<u8"))

    def save(self, progress: Any) -> None:
        """Flushes everything to the disk, so that another object can continue, with `progress`, any JSON value."""
        assert self._keep is not None
        splits = {name: writer.save() for name, writer in zip(SPLITS, self._writers, strict=True)}
        before = len(self._seen) - sum(map(len, self._fresh))
        with (self._keep / _SEEN).open("r+b" if before else "wb") as file:
            file.truncate(8 * before)
            file.seek(8 * before)
            data = np.concatenate([*self._fresh, np.zeros(0, np.uint64)]).astype("<u8").tobytes()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._fresh = []
        self._seen_hash.update(data)
        state = {
            "progress": progress, "dropped": self.dropped, "removed": self.removed, "repeated": self.repeated,
            "splits": splits, "inputs": self._by_input.tolist(), "drawn": [self._least, self._most, self._kept],
            "seen": len(self._seen), "seen_sha256": self._seen_hash.hexdigest(),
        }  # fmt: skip
        replace_files({self._keep / STATE: json.dumps(with_hash(state)).encode()})

    def add(self, encoded: Encoded, part: Part) -> None:
        """Adds the next batch of documents."""
        self.removed += encoded.removed
        if part.long:
            self._add_long(encoded, part)
        else:
            self._add_whole(encoded, part)

    def _add_whole(self, encoded: Encoded, part: Part) -> None:
        count = len(encoded.sentences_D)
        numbers_n = np.repeat(np.arange(count), encoded.sentences_D)
        tokens_D = np.bincount(numbers_n, weights=encoded.lengths_n, minlength=count)
        empty_D = tokens_D == 0
        short_D = ~empty_D & (tokens_D < self._min_tokens)
        kept_D = ~empty_D & ~short_D
        new_D = np.zeros(count, dtype=np.bool_)
        hashes_D = encoded.hashes_D ^ np.uint64(part.repeat * _REPEAT % 2**64)
        new_D[kept_D] = self._seen.add(hashes_D[kept_D])
        if self._keep:
            self._fresh.append(hashes_D[new_D])
        used_D = new_D & used(self._seed, encoded.hashes_D, part.share)
        if not part.repeat:
            for name, dropped_D in (("empty", empty_D), ("short", short_D), ("duplicate", kept_D & ~new_D)):
                self.dropped[name] += int(dropped_D.sum())
            if part.share < 1:
                self.dropped["weight"] = self.dropped.get("weight", 0) + int((new_D & ~used_D).sum())
        split_D = np.where(used_D, self._split(encoded.hashes_D, used_D), -1)
        if part.repeat:
            split_D[split_D > 0] = -1
        split_n = split_D[numbers_n]
        split_T = np.repeat(split_n, encoded.lengths_n)
        for split in range(len(SPLITS)):
            numbers = np.cumsum(split_D == split) - 1
            chosen_n = split_n == split
            if chosen_n.any():
                documents_n = numbers[numbers_n[chosen_n]]
                self._put(split, encoded.ids_T[split_T == split], encoded.lengths_n[chosen_n], documents_n, part)

    def _add_long(self, encoded: Encoded, part: Part) -> None:
        if part.first:
            used_D = used(self._seed, encoded.hashes_D, part.share)
            split = int(self._split(encoded.hashes_D, used_D)[0])
            self._long_split = split if used_D[0] and not (split and part.repeat) else -1
            self._long_begun = False
        if len(encoded.ids_T) and self._long_split >= 0:
            # -1 is the document before those of this call: these sentences continue it
            document = -1 if self._long_begun else 0
            documents_n = np.full(len(encoded.lengths_n), document)
            self._put(self._long_split, encoded.ids_T, encoded.lengths_n, documents_n, part)
            self._long_begun = True

    def _split(self, hashes_D: npt.NDArray[np.uint64], kept_D: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        draws_D = unit(key(self._seed, Stream.SPLIT, hashes_D))
        if kept_D.any():
            self._least = min(self._least, float(draws_D[kept_D].min()))
            self._most = max(self._most, float(draws_D[kept_D].max()))
            self._kept += int(kept_D.sum())
        return (draws_D < self._threshold).astype(np.int64)

    def _put(self, split: int, ids_T: Any, lengths_n: Any, documents_n: Any, part: Part) -> None:
        counts = documents_n[-1] + 1, len(ids_T), (ids_T == self._unknown).sum()
        self._by_input[part.input] += np.array(counts, dtype=np.int64)
        self.repeated += int(counts[0]) if part.repeat else 0
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

    def by_input(self) -> list[dict[str, Any]]:
        """Returns the numbers of documents and tokens of each input, and the share of its tokens that is [UNK]."""
        return [
            {"documents": documents, "tokens": tokens, "unknown_rate": unknown / max(tokens, 1)}
            for documents, tokens, unknown in self._by_input.tolist()
        ]

    def close(self) -> dict[str, dict[str, Any]]:
        """Completes both splits and returns the manifest's entry of each."""
        train_V = self._counts[0]
        entries: dict[str, dict[str, Any]] = {}
        for name, writer, counts_V in zip(SPLITS, self._writers, self._counts, strict=True):
            entry = writer.close()
            entry["unknown_rate"] = float(counts_V[self._unknown]) / max(entry["tokens"], 1)
            entry["unigram_entropy"] = entropy(counts_V)
            entry["unigram_cross_entropy"] = cross_entropy(counts_V, train_V)
            entries[name] = entry
        return entries


def read_state(folder: Path) -> dict[str, Any] | None:
    """Returns what `Sink.save` kept in a folder, or None if there is nothing. Raises DataError if it is damaged."""
    if not (folder / STATE).exists():
        return None
    try:
        state = json.loads((folder / STATE).read_bytes())
        if not has_hash(state):
            raise ValueError("its hash does not match")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{folder / STATE} cannot be used ({error}).") from error
    return dict(state)


def _counted(folder: Path, vocabulary: int) -> npt.NDArray[np.int64]:
    """Returns how often each token occurs in the shards of a folder."""
    counts_V = np.zeros(vocabulary, dtype=np.int64)
    for path in sorted(folder.glob("*.bin")):
        for start in range(0, path.stat().st_size, 1 << 24):
            ids = np.fromfile(path, token_type(vocabulary), (1 << 24) // token_type(vocabulary).itemsize, offset=start)
            if len(ids) and ids.max() >= vocabulary:
                raise DataError(f"{path} has a token beyond the vocabulary.")
            counts_V += np.bincount(ids, minlength=vocabulary)
    return counts_V
