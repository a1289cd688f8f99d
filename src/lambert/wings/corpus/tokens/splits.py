"""Writes encoded documents to training and held-out shards, and counts dropped documents by reason. Its state can be
saved, so that another process continues."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.errors import DataError
from lambert.core.files import open_regular, read_file, replace_files
from lambert.core.randomness import Stream, key, unit
from lambert.core.shards import SPLITS, SplitWriter, has_hash, token_type, with_hash
from lambert.text.tokenizers.encoding import Encoded
from lambert.wings.corpus.documents import Part

STATE, _SEEN, _FILES = "state.json", "seen.bin", "files.bin"
COUNTS = ("kept", "tokens", "unknown", "repeated", "empty", "short", "duplicate", "weight")
"""Counts for each input file: documents in the corpus, repeated ones included; their tokens; tokens [UNK]; repeated
documents; and dropped documents by reason."""

_REPEAT = 0x9E3779B97F4A7C15  # distinguishes the hashes of repeated documents


def select_share(seed: int, hashes_D: npt.NDArray[np.uint64], share: float) -> npt.NDArray[np.bool_]:
    """Returns which documents with these hashes [D] belong to a share of the documents. A smaller share is part of
    every larger one."""
    if share >= 1:
        return np.ones(len(hashes_D), dtype=np.bool_)
    return np.asarray(unit(key(seed, Stream.SPLIT, hashes_D, 2)) < share)


class Sink:
    """Writes documents to the splits below `folder`.

    A document is held out if a number in [0, 1), drawn from (seed, hash of its content), is below `threshold`. Empty
    documents, documents with fewer than `min_tokens` tokens, and duplicates are dropped and counted in `dropped`. A
    document that is read in several parts is never dropped as a duplicate; the hash of its first part identifies it.
    Of an input with a share below 1, those documents are used for which another drawn number is below the share.
    Repeated documents are training data only.
    """

    def __init__(
        self, folder: Path, vocabulary: int, seed: int, threshold: float, min_tokens: int, unknown: int,
        files: int = 1, keep: Path | None = None,
    ) -> None:  # fmt: skip
        """`unknown` is the id of [UNK], -1 without one, `files` the number of input files. `keep` is a folder for the
        state that `save` stores besides the splits. If `save` was called before for both folders, this object continues
        from there. Raises DataError if their files were changed since."""
        self._seed, self._threshold, self._min_tokens = seed, threshold, min_tokens
        self._keep = keep
        state = read_state(keep) if keep else None
        self.progress: Any = state["progress"] if state else None
        """The argument of the last call of `save`, or None."""
        self.dropped = state["dropped"] if state else {"empty": 0, "short": 0, "duplicate": 0}
        self.removed = state["removed"] if state else 0
        self.repeated: int = state["repeated"] if state else 0
        """Number of documents that were added again."""
        self._unknown = unknown
        self._by_file = np.zeros((files, len(COUNTS)), dtype=np.int64)
        drawn: tuple[float, float, int] = state["drawn"] if state else (1.0, 0.0, 0)
        self._least, self._most, self._kept = drawn
        self._seen = Seen()
        self._journals: dict[str, Journal] = {}
        if keep:
            saved = state or {_SEEN: None, _FILES: None}
            columns = {_SEEN: 1, _FILES: 1 + len(COUNTS)}
            self._journals = {name: Journal(keep / name, columns[name], saved[name]) for name in columns}
            self._seen.add(self._journals[_SEEN].take_restored().ravel())
            rows = self._journals[_FILES].take_restored().view("<i8")
            np.add.at(self._by_file, rows[:, 0], rows[:, 1:])
        self._writers: list[SplitWriter] = []
        try:
            for name in SPLITS:
                entry = state["splits"][name] if state else None
                self._writers.append(SplitWriter(folder / name, vocabulary, state=entry))
            self._counts = [_count_tokens(folder / name, vocabulary) for name in SPLITS]
        except BaseException:
            self.abandon()
            raise
        self._long_split, self._long_begun = 0, False

    def save(self, progress: Any) -> None:
        """Flushes everything to the disk, with `progress` (any JSON value), so that another object can continue."""
        assert self._keep is not None
        splits = {name: writer.save() for name, writer in zip(SPLITS, self._writers, strict=True)}
        state = {
            "progress": progress, "dropped": self.dropped, "removed": self.removed, "repeated": self.repeated,
            "splits": splits, "drawn": [self._least, self._most, self._kept],
            **{name: journal.save() for name, journal in self._journals.items()},
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
        if self._journals:
            self._journals[_SEEN].add(hashes_D[new_D])
        used_D = new_D & select_share(self._seed, encoded.hashes_D, part.share)
        if not part.repeat:
            dropped = {"empty": empty_D, "short": short_D, "duplicate": kept_D & ~new_D}
            if part.share < 1:
                dropped["weight"] = new_D & ~used_D
            self._drop(part, dropped)
        split_D = np.where(used_D, self._split(encoded.hashes_D, used_D), -1)
        if part.repeat:
            split_D[split_D > 0] = -1
        put_D = split_D >= 0
        unknown_n = np.searchsorted(
            np.cumsum(encoded.lengths_n), np.flatnonzero(encoded.ids_T == self._unknown), "right"
        )
        unknown_D = np.bincount(numbers_n[unknown_n], minlength=count)
        repeated_D = put_D & bool(part.repeat)
        self.repeated += int(repeated_D.sum())
        kept = {"kept": put_D, "tokens": put_D * tokens_D, "unknown": put_D * unknown_D, "repeated": repeated_D}
        self._count(part, kept)
        split_n = split_D[numbers_n]
        split_T = np.repeat(split_n, encoded.lengths_n)
        for split in range(len(SPLITS)):
            numbers = np.cumsum(split_D == split) - 1
            chosen_n = split_n == split
            if chosen_n.any():
                documents_n = numbers[numbers_n[chosen_n]]
                self._put(split, encoded.ids_T[split_T == split], encoded.lengths_n[chosen_n], documents_n)

    def _add_long(self, encoded: Encoded, part: Part) -> None:
        if part.first:
            used_D = select_share(self._seed, encoded.hashes_D, part.share)
            split = int(self._split(encoded.hashes_D, used_D)[0])
            self._long_split = split if used_D[0] and not (split and part.repeat) else -1
            self._long_begun = False
            if not part.repeat:
                if not used_D[0]:
                    self._drop(part, {"weight": np.ones(1, dtype=np.bool_)})
                else:  # until a token is found
                    self._drop(part, {"empty": np.ones(1, dtype=np.bool_)})
        if len(encoded.ids_T) and self._long_split >= 0:
            # -1 is the document before those of this call: these sentences continue it
            document = -1 if self._long_begun else 0
            documents_n = np.full(len(encoded.lengths_n), document)
            self._put(self._long_split, encoded.ids_T, encoded.lengths_n, documents_n)
            new = np.array([not self._long_begun])
            unknown = (encoded.ids_T == self._unknown).sum()
            kept = {"kept": new, "tokens": len(encoded.ids_T), "unknown": unknown, "repeated": new & bool(part.repeat)}
            self._count(part, kept)
            self.repeated += int(kept["repeated"][0])
            if new[0] and not part.repeat:
                self._drop(part, {"empty": -new.astype(np.int64)})
            self._long_begun = True

    def _drop(self, part: Part, dropped: Mapping[str, npt.NDArray[Any]]) -> None:
        """Counts the dropped documents of a batch by reason."""
        for name, dropped_D in dropped.items():
            self.dropped[name] = self.dropped.get(name, 0) + int(dropped_D.sum())
        self._count(part, dropped)

    def _count(self, part: Part, counts: Mapping[str, Any]) -> None:
        """Adds the counts of a batch of documents to those of their input files."""
        files_D = np.array(part.files, dtype=np.int64)
        if not len(files_D):
            return
        values = np.zeros((len(files_D), 1 + len(COUNTS)), dtype=np.int64)
        for name, counts_D in counts.items():
            values[:, 1 + COUNTS.index(name)] = counts_D
        firsts = np.flatnonzero(np.diff(files_D, prepend=-1))
        rows = np.add.reduceat(values, firsts, axis=0)
        rows[:, 0] = files_D[firsts]
        np.add.at(self._by_file, rows[:, 0], rows[:, 1:])
        if self._journals:
            self._journals[_FILES].add(rows)

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

    def find_better_threshold(self) -> float:
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

    def by_file(self) -> list[dict[str, int]]:
        """Returns the counts of each input file."""
        return [dict(zip(COUNTS, counts, strict=True)) for counts in self._by_file.tolist()]

    def close(self) -> dict[str, dict[str, Any]]:
        """Completes both splits and returns the manifest's entry of each."""
        train_V = self._counts[0]
        entries: dict[str, dict[str, Any]] = {}
        for name, writer, counts_V in zip(SPLITS, self._writers, self._counts, strict=True):
            entry = writer.close()
            unknown = float(counts_V[self._unknown]) if self._unknown >= 0 else 0.0
            entry["unknown_rate"] = unknown / max(entry["tokens"], 1)
            entry["unigram_entropy"] = entropy(counts_V)
            entry["unigram_cross_entropy"] = cross_entropy(counts_V, train_V)
            entries[name] = entry
        return entries


def read_state(folder: Path) -> dict[str, Any] | None:
    """Returns the state that `Sink.save` stored in a folder, or None if there is none. Raises DataError if it is
    damaged."""
    if not (folder / STATE).exists():
        return None
    try:
        state = json.loads(read_file(folder / STATE))
        if not has_hash(state):
            raise ValueError("its hash does not match")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{folder / STATE} cannot be used ({error}).") from error
    return dict(state)


def _count_tokens(folder: Path, vocabulary: int) -> npt.NDArray[np.int64]:
    """Returns how often each token occurs in the shards of a folder."""
    counts_V = np.zeros(vocabulary, dtype=np.int64)
    for path in sorted(folder.glob("*.bin")):
        for start in range(0, path.stat().st_size, 1 << 24):
            ids = np.fromfile(path, token_type(vocabulary), (1 << 24) // token_type(vocabulary).itemsize, offset=start)
            if len(ids) and ids.max() >= vocabulary:
                raise DataError(f"{path} has a token beyond the vocabulary.")
            counts_V += np.bincount(ids, minlength=vocabulary)
    return counts_V


Hashes = npt.NDArray[np.uint64]


class Seen:
    """A set of 64-bit hashes, stored as sorted arrays of different sizes that are merged as the set grows (a
    log-structured merge tree).

    Any two of n different documents collide with probability n^2 / 2^65: 3e-4 for a hundred million documents.
    """

    def __init__(self) -> None:
        self._levels: list[Hashes] = []

    def __len__(self) -> int:
        return sum(len(level) for level in self._levels)

    def add(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Adds hashes [D]. Returns for each hash [D] whether it is neither in the set nor earlier in `hashes`."""
        new = np.zeros(len(hashes), dtype=np.bool_)
        new[np.unique(hashes, return_index=True)[1]] = True
        for level in self._levels:
            at = np.minimum(np.searchsorted(level, hashes), len(level) - 1)
            new &= level[at] != hashes
        fresh = np.sort(hashes[new])
        if len(fresh):
            self._levels.append(fresh)
        while len(self._levels) > 1 and len(self._levels[-1]) * 2 >= len(self._levels[-2]):
            last = self._levels.pop()
            merged = np.concatenate([self._levels.pop(), last])
            merged.sort(kind="stable")
            self._levels.append(merged)
        return new


class Journal:
    """Records in memory until `save` appends them to a file. The state that `save` returns determines which records of
    the file count; later ones are ignored."""

    def __init__(self, path: Path, columns: int, state: Mapping[str, Any] | None) -> None:
        """Continues from `state`, which `save` returned for this file; None: from nothing. A record has `columns`
        numbers of 64 bits. Raises DataError if the file was changed since."""
        self._path, self._columns = path, columns
        self._count, self._hash = 0, hashlib.sha256()
        self._fresh: list[npt.NDArray[Any]] = []
        self._restored = np.zeros((0, columns), dtype="<u8")
        if state:
            self._count = state["records"]
            data = b""
            if path.is_file():
                with open_regular(path) as file:
                    data = file.read(self._bytes())
            self._hash.update(data)
            if self._hash.hexdigest() != state["sha256"]:
                raise DataError(f"{path} is damaged.")
            self._restored = np.frombuffer(data, dtype="<u8").reshape(-1, columns)

    def take_restored(self) -> npt.NDArray[np.uint64]:
        """Returns, once, the records of the state with which this object began [n, columns], unsigned."""
        found, self._restored = self._restored, self._restored[:0].copy()
        return found

    def add(self, records: npt.NDArray[Any]) -> None:
        """Adds records [n, columns] of integers of 64 bits."""
        self._fresh.append(records)

    def save(self) -> dict[str, Any]:
        """Appends the records to the file, flushes it to the disk and returns the state."""
        data = b"".join(records.astype(records.dtype.newbyteorder("<")).tobytes() for records in self._fresh)
        with open_regular(self._path, "r+b" if self._count else "wb") as file:
            file.truncate(self._bytes())
            file.seek(self._bytes())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._fresh = []
        self._hash.update(data)
        self._count += len(data) // (8 * self._columns)
        return {"records": self._count, "sha256": self._hash.hexdigest()}

    def _bytes(self) -> int:
        return 8 * self._columns * self._count


def entropy(counts_V: npt.NDArray[np.int64]) -> float:
    """Returns the entropy, in nats per token, of the distribution with these counts; 0 if all counts are 0."""
    present = counts_V[counts_V > 0].astype(np.float64)
    total = present.sum()
    return float(np.log(total) - (present * np.log(present)).sum() / total) if total else 0.0


def cross_entropy(counts_V: npt.NDArray[np.int64], model_V: npt.NDArray[np.int64]) -> float:
    """Returns the cross entropy, in nats per token, of tokens with `counts_V` under the frequencies of `model_V`.

    Each count of `model_V` is increased by one, so that pieces it lacks have a finite cost (Laplace's rule).
    """
    total = int(counts_V.sum())
    if not total:
        return 0.0
    surprise_V = np.log(model_V.sum() + len(model_V)) - np.log(model_V + 1.0)
    return float((counts_V * surprise_V).sum() / total)
