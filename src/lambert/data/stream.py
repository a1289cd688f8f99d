"""The stream: which sequences make up which update, in which micro-batches, on which rank.

Sequence k of a run is a pure function of k and the seed: update k // batch_size, and within the walk through the
epochs a keyed permutation of each. There is no position to save; a run resumes by asking for another first update.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from queue import SimpleQueue
from typing import Generic, TypeVar

import numpy as np

from lambert.core.batch import Batch, Ints, Source
from lambert.core.errors import DataError, UsageError
from lambert.core.randomness import Stream, key, permuted

Item = TypeVar("Item")

_AHEAD = 2  # updates assembled in advance
_MULTIPLE = 8  # of micro-batches, where there are more than so many: the ranks of a machine are that many or fewer
_CLOSING_SECONDS = 5.0  # how long to wait for the thread to notice; it ends by itself after its update


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """What one rank computes of one update, and what all ranks together do."""

    shares: list[list[tuple[int, Batch]]]
    """This rank's micro-batches, each with its number in the global batch. In one list, or with `shares` in as many as
    this rank has of them."""
    counts: dict[str, int]
    """Targets of each objective in this rank's micro-batches."""
    loads: list[int]
    """Tokens of each rank, special tokens included: together the whole global batch."""
    sequences: int
    """Sequences of the whole global batch."""
    wait_seconds: float
    """How long the caller waited for this batch."""

    @property
    def micro_batches(self) -> list[tuple[int, Batch]]:
        """All of `shares`, in one list."""
        return [entry for share in self.shares for entry in share]

    @property
    def tokens(self) -> int:
        """Tokens of the whole global batch."""
        return sum(self.loads)


def stream(
    source: Source,
    *,
    batch_size: int,
    micro_tokens: int,
    seed: int,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    shuffle: bool = True,
    stop: int | None = None,
    shares: int = 0,
) -> Iterator[GlobalBatch]:
    """The global batches of updates `start`, `start` + 1, ... up to and without `stop`; without `stop`, endless.

    Each holds `batch_size` sequences; the epochs of the source follow one another without a gap, each in an order
    of its own if `shuffle`. Consecutive sequences form micro-batches of at most `micro_tokens` tokens (at least one
    sequence; see `even_bounds`), the same for any `world`; they go to the ranks so that each computes about as many
    tokens. With `shares`, a multiple of `world`, the global batch is cut into so many parts of about as many tokens
    before, and each rank has its parts, one after the other: sums over parts then need not know of ranks. Batches are
    assembled in a background thread; what fails there is raised here. Closing the generator ends the thread.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size = {batch_size} sequences is too few: choose 1 or more.")
    if micro_tokens < 1:
        raise UsageError(f"micro_tokens = {micro_tokens} tokens is too few: choose 1 or more.")
    places = _places(source, batch_size, seed, start=start, shuffle=shuffle, stop=stop)
    return _prefetched(
        _assembled(source, epochs, indices, micro_tokens, rank=rank, world=world, shares=shares)
        for epochs, indices in places
    )


def places(source: Source, batch_size: int, seed: int, update: int) -> tuple[Ints, Ints]:
    """Epochs and indices [S] of the sequences of update `update`, from 0, of a shuffled `stream`: the samples it saw,
    as `source.collate` takes them. They are numbers update * `batch_size` and on of the run."""
    return next(_places(source, batch_size, seed, start=update, shuffle=True, stop=update + 1))


def once(source: Source, *, micro_tokens: int, rank: int = 0, world: int = 1, sequences: int = 0) -> Iterator[Batch]:
    """Every sequence of epoch 0 exactly once, in order, in micro-batches of at most `micro_tokens` tokens (at least one
    sequence); micro-batch i goes to rank i % `world`. With `sequences`, only so many, spread evenly over the epoch."""
    if micro_tokens < 1:
        raise UsageError(f"micro_tokens = {micro_tokens} tokens is too few: choose 1 or more.")
    size = source.size(0)
    count = min(size, sequences) if sequences else size
    indices_S = np.arange(count) * size // max(count, 1)
    epochs_S = np.zeros_like(indices_S)
    cuts = micro_bounds(source.lengths(epochs_S, indices_S), micro_tokens)
    for number, (low, high) in enumerate(pairwise(cuts)):
        if number % world == rank:
            yield source.collate(epochs_S[low:high], indices_S[low:high])


def micro_bounds(lengths_S: Ints, micro_tokens: int) -> list[int]:
    """Where micro-batches begin, and at the end S: each takes sequences while they fit, and at least one."""
    ends_S = np.cumsum(lengths_S)
    bounds, used = [0], 0
    while bounds[-1] < len(lengths_S):
        bounds.append(max(bounds[-1] + 1, int(np.searchsorted(ends_S, used + micro_tokens, side="right"))))
        used = int(ends_S[bounds[-1] - 1])
    return bounds


def _places(
    source: Source, batch_size: int, seed: int, *, start: int, shuffle: bool, stop: int | None
) -> Iterator[tuple[Ints, Ints]]:
    """Epochs and indices [S] of the sequences of each update."""
    epoch = base = 0
    update = start
    while stop is None or update < stop:
        low, high = update * batch_size, (update + 1) * batch_size
        epochs, indices = [], []
        while low < high:
            size = source.size(epoch)
            if size < 1:
                raise DataError(f"Epoch {epoch} of the data has no sequence. Give more data.")
            if low < base + size:
                numbers = np.arange(low, min(high, base + size)) - base
                low += len(numbers)
                epochs.append(np.full(len(numbers), epoch))
                indices.append(permuted(numbers, size, key(seed, Stream.ORDER, epoch)) if shuffle else numbers)
            if low >= base + size:
                epoch, base = epoch + 1, base + size
        yield np.concatenate(epochs), np.concatenate(indices)
        update += 1


def _assembled(
    source: Source, epochs_S: Ints, indices_S: Ints, micro_tokens: int, *, rank: int, world: int, shares: int
) -> GlobalBatch:
    lengths_S = source.lengths(epochs_S, indices_S)
    numbers = iter(range(len(lengths_S)))
    if shares:
        parts = [
            [(next(numbers), low + a, low + b) for a, b in pairwise(micro_bounds(lengths_S[low:high], micro_tokens))]
            for low, high in split(lengths_S, shares)
        ]
        each = shares // world
        ranks = [parts[r * each : (r + 1) * each] for r in range(world)]
    else:
        cuts = [(next(numbers), low, high) for low, high in even_bounds(lengths_S, micro_tokens)]
        ranks = [[share] for share in balanced(cuts, lengths_S, world)]
    mine = [
        [(number, source.collate(epochs_S[low:high], indices_S[low:high])) for number, low, high in share]
        for share in ranks[rank]
    ]
    counts: dict[str, int] = {}
    for name, target in (item for share in mine for _, batch in share for item in batch.targets.items()):
        counts[name] = counts.get(name, 0) + target.count
    loads = [sum(int(lengths_S[low:high].sum()) for part in theirs for _, low, high in part) for theirs in ranks]
    return GlobalBatch(mine, counts, loads, len(lengths_S), 0.0)


def even_bounds(lengths_S: Ints, micro_tokens: int) -> list[tuple[int, int]]:
    """Bounds of micro-batches of at most `micro_tokens` tokens (or one sequence) that hold about as many each: 1, 2, 4
    or a multiple of 8, so that small numbers of ranks get equal shares of them."""
    count = len(micro_bounds(lengths_S, micro_tokens)) - 1
    while count > 1:
        count = 1 << (count - 1).bit_length() if count <= _MULTIPLE else -(-count // _MULTIPLE) * _MULTIPLE
        if count >= len(lengths_S):
            return [*pairwise(micro_bounds(lengths_S, micro_tokens))]
        found = [(low, high) for low, high in split(lengths_S, count) if low < high]
        if all(high - low == 1 or lengths_S[low:high].sum() <= micro_tokens for low, high in found):
            return found
        count += 1
    return [(0, len(lengths_S))]


def split(lengths_S: Ints, parts: int) -> list[tuple[int, int]]:
    """Bounds of `parts` runs of consecutive sequences with about as many tokens each; some are empty where there are
    fewer sequences."""
    ends_S = np.cumsum(lengths_S)
    aims = ends_S[-1] * np.arange(1, parts) / parts
    # To the nearer end: half of the sequence that an aim falls into decides.
    cuts = np.searchsorted(ends_S - lengths_S / 2, aims)
    return [*pairwise([0, *(int(cut) for cut in cuts), len(lengths_S)])]


def balanced(
    micro_batches: Sequence[tuple[int, int, int]], lengths_S: Ints, ranks: int
) -> list[list[tuple[int, int, int]]]:
    """Micro-batches (number, first sequence, end) for each rank, in the order of their numbers: the longest first, each
    to the rank that has the fewest tokens so far (Graham, "Bounds on multiprocessing timing anomalies", 1969)."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    tokens = {entry[0]: int(lengths_S[entry[1] : entry[2]].sum()) for entry in micro_batches}
    for entry in sorted(micro_batches, key=lambda entry: (-tokens[entry[0]], entry[0])):
        least = loads.index(min(loads))
        found[least].append(entry)
        loads[least] += tokens[entry[0]]
    return [sorted(share) for share in found]


class _Background(Generic[Item]):
    """Runs an iterator in a daemon thread, `_AHEAD` items in advance."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._ready: SimpleQueue[Item | BaseException] = SimpleQueue()
        self._room = threading.Semaphore(_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lambert-stream", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while self._room.acquire() and not self._closed.is_set():
                self._ready.put(next(self._items))
        except BaseException as error:  # StopIteration included: whatever ends the items ends them in the caller
            self._ready.put(error)

    def get(self) -> Item | BaseException:
        item = self._ready.get()
        self._room.release()
        return item

    def close(self) -> None:
        self._closed.set()
        self._room.release()
        self._thread.join(_CLOSING_SECONDS)


def _prefetched(items: Iterator[GlobalBatch]) -> Iterator[GlobalBatch]:
    background = _Background(items)
    try:
        while True:
            asked = time.perf_counter()
            item = background.get()
            if isinstance(item, StopIteration):
                return
            if isinstance(item, BaseException):
                raise item
            yield replace(item, wait_seconds=time.perf_counter() - asked)
    finally:
        background.close()
