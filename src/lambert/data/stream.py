"""Assigns sequences to updates, micro-batches and ranks.

Sequence k of a run is a pure function of k and the seed: the sizes of the updates determine its update, and a keyed
permutation orders each epoch. No position is saved: a run resumes by starting the stream at another update.
"""

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from queue import SimpleQueue

import numpy as np

from lambert.core.batch import Batch, Ints, Source
from lambert.core.errors import DataError, UsageError
from lambert.core.randomness import Stream, key, permute
from lambert.data.batch_sizes import BatchSizes, even_count

_AHEAD = 2  # updates assembled in advance
_CLOSING_SECONDS = 5.0  # wait for the thread to end; a thread that takes longer ends by itself after its update


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """One rank's part of the global batch of one update, and the size of the whole global batch."""

    shares: list[list[tuple[int, Batch]]]
    """This rank's micro-batches, each with its index in the global batch: one list or, if `stream` was given `shares`,
    one list for each share of this rank."""
    counts: dict[str, float]
    """Number of targets of each objective in this rank's micro-batches, or the sum of their weights."""
    loads: list[int]
    """Tokens of each rank, special tokens included. Their sum is the size of the global batch."""
    sequences: int
    """Sequences of the whole global batch."""
    wait_seconds: float
    """Seconds that the caller waited for this batch."""

    @property
    def micro_batches(self) -> list[tuple[int, Batch]]:
        """The micro-batches of all `shares`, in one list."""
        return [entry for share in self.shares for entry in share]

    @property
    def tokens(self) -> int:
        """Tokens of the whole global batch."""
        return sum(self.loads)


def stream(
    source: Source,
    *,
    batch_size: int | BatchSizes,
    micro_tokens: int,
    seed: int,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    shuffle: bool = True,
    stop: int | None = None,
    shares: int = 0,
) -> Generator[GlobalBatch, None, None]:
    """Yields the global batches of updates `start`, `start` + 1, ..., `stop` - 1.

    The epochs of the source follow one another without a gap. Micro-batches are formed of consecutive sequences
    (`even_bounds`) and do not depend on `world`; they are assigned to the ranks so that all ranks compute about the
    same number of tokens. A background thread assembles the batches; its exceptions are raised here. Closing the
    generator ends the thread.

    Args:
        source: The sequences of each epoch.
        batch_size: Sequences per update over all ranks, or those of each update.
        micro_tokens: Maximum tokens of a micro-batch; a longer sequence forms a micro-batch of its own.
        seed: Determines the order of the sequences.
        start: The first update.
        rank: This process among `world` processes.
        world: Number of ranks.
        shuffle: Permute the sequences of each epoch; otherwise they keep the order of the source.
        stop: The update to stop before; None: the stream is endless.
        shares: If not 0, a multiple of `world`: the global batch is first split into `shares` parts of about equal
            token counts, and each rank gets consecutive parts. Sums over parts then do not depend on the ranks.

    Raises:
        UsageError: `batch_size` or `micro_tokens` is below 1.
        DataError: An epoch has no sequences.
    """
    sizes = BatchSizes(batch_size) if isinstance(batch_size, int) else batch_size
    if sizes.last < 1:
        raise UsageError(f"batch_size = {sizes.last} sequences is too few: choose 1 or more.")
    if micro_tokens < 1:
        raise UsageError(f"micro_tokens = {micro_tokens} tokens is too few: choose 1 or more.")
    places = _places(source, sizes, seed, start=start, shuffle=shuffle, stop=stop)
    return _prefetch(
        _assemble(source, epochs, indices, micro_tokens, rank=rank, world=world, shares=shares)
        for epochs, indices in places
    )


def places(source: Source, sizes: BatchSizes, seed: int, update: int) -> tuple[Ints, Ints]:
    """Returns the epochs and indices [S] of the sequences of one update of a shuffled `stream`, as arguments for
    `source.collate`. Updates count from 0."""
    return next(_places(source, sizes, seed, start=update, shuffle=True, stop=update + 1))


def sequential(
    source: Source, *, micro_tokens: int, rank: int = 0, world: int = 1, sequences: int = 0
) -> Iterator[Batch]:
    """Yields this rank's micro-batches of epoch 0, in order; micro-batch i belongs to rank i % `world`.

    A micro-batch has at most `micro_tokens` tokens or is a single sequence. Over all ranks each sequence occurs exactly
    once; if `sequences` is not 0, only that many, spread evenly over the epoch.
    """
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
    """Returns the first sequence of each micro-batch, followed by S. Each micro-batch takes consecutive sequences up to
    `micro_tokens` tokens, and at least one sequence."""
    ends_S = np.cumsum(lengths_S)
    bounds, used = [0], 0
    while bounds[-1] < len(lengths_S):
        bounds.append(max(bounds[-1] + 1, int(np.searchsorted(ends_S, used + micro_tokens, side="right"))))
        used = int(ends_S[bounds[-1] - 1])
    return bounds


def _places(
    source: Source, sizes: BatchSizes, seed: int, *, start: int, shuffle: bool, stop: int | None
) -> Iterator[tuple[Ints, Ints]]:
    """Yields for each update the epochs and indices [S] of its sequences."""
    epoch = base = 0
    update, high = start, sizes.before(start)
    while stop is None or update < stop:
        low, high = high, high + sizes.of(update)
        epochs, indices = [], []
        while low < high:
            size = source.size(epoch)
            if size < 1:
                raise DataError(f"Epoch {epoch} of the data has no sequences. Provide more data.")
            if low < base + size:
                numbers = np.arange(low, min(high, base + size)) - base
                low += len(numbers)
                epochs.append(np.full(len(numbers), epoch))
                indices.append(permute(numbers, size, key(seed, Stream.ORDER, epoch)) if shuffle else numbers)
            if low >= base + size:
                epoch, base = epoch + 1, base + size
        yield np.concatenate(epochs), np.concatenate(indices)
        update += 1


def _assemble(
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
        ranks = [[share] for share in balance(cuts, lengths_S, world)]
    mine = [
        [(number, source.collate(epochs_S[low:high], indices_S[low:high])) for number, low, high in share]
        for share in ranks[rank]
    ]
    counts: dict[str, float] = {}
    for name, target in (item for share in mine for _, batch in share for item in batch.targets.items()):
        counts[name] = counts.get(name, 0) + target.count
    loads = [sum(int(lengths_S[low:high].sum()) for part in of_rank for _, low, high in part) for of_rank in ranks]
    return GlobalBatch(mine, counts, loads, len(lengths_S), 0.0)


def even_bounds(lengths_S: Ints, micro_tokens: int) -> list[tuple[int, int]]:
    """Returns the bounds of micro-batches of about equal token counts, each with at most `micro_tokens` tokens or one
    sequence. Their number is 1, 2, 4 or a multiple of 8, so that small numbers of ranks get equal shares."""
    count = len(micro_bounds(lengths_S, micro_tokens)) - 1
    while count > 1:
        count = even_count(count)
        if count >= len(lengths_S):
            return [*pairwise(micro_bounds(lengths_S, micro_tokens))]
        found = [(low, high) for low, high in split(lengths_S, count) if low < high]
        if all(high - low == 1 or lengths_S[low:high].sum() <= micro_tokens for low, high in found):
            return found
        count += 1
    return [(0, len(lengths_S))]


def split(lengths_S: Ints, parts: int) -> list[tuple[int, int]]:
    """Returns the bounds of `parts` runs of consecutive sequences of about equal token counts. Some runs are empty if
    there are fewer sequences than `parts`."""
    ends_S = np.cumsum(lengths_S)
    aims = ends_S[-1] * np.arange(1, parts) / parts
    # Each cut is the sequence end nearest to its aim.
    cuts = np.searchsorted(ends_S - lengths_S / 2, aims)
    return [*pairwise([0, *(int(cut) for cut in cuts), len(lengths_S)])]


def balance(
    micro_batches: Sequence[tuple[int, int, int]], lengths_S: Ints, ranks: int
) -> list[list[tuple[int, int, int]]]:
    """Returns the micro-batches (index, first sequence, end) of each rank, sorted by index.

    The micro-batches are assigned in order of decreasing token count, each to the rank with the fewest tokens so far.
    Source: Graham, "Bounds on multiprocessing timing anomalies", 1969.
    """
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    tokens = {entry[0]: int(lengths_S[entry[1] : entry[2]].sum()) for entry in micro_batches}
    for entry in sorted(micro_batches, key=lambda entry: (-tokens[entry[0]], entry[0])):
        least = loads.index(min(loads))
        found[least].append(entry)
        loads[least] += tokens[entry[0]]
    return [sorted(share) for share in found]


def _prefetch(batches: Iterator[GlobalBatch]) -> Generator[GlobalBatch, None, None]:
    """Yields the batches of an iterator that a daemon thread runs `_AHEAD` items in advance."""
    ready: SimpleQueue[GlobalBatch | BaseException] = SimpleQueue()
    room, closed = threading.Semaphore(_AHEAD), threading.Event()

    def work() -> None:
        try:
            while room.acquire() and not closed.is_set():
                ready.put(next(batches))
        except BaseException as error:  # StopIteration included: the caller receives whatever ends the iterator
            ready.put(error)

    thread = threading.Thread(target=work, name="lambert-stream", daemon=True)
    thread.start()
    try:
        while True:
            start = time.perf_counter()
            item = ready.get()
            room.release()
            if isinstance(item, StopIteration):
                return
            if isinstance(item, BaseException):
                raise item
            yield replace(item, wait_seconds=time.perf_counter() - start)
    finally:
        closed.set()
        room.release()
        thread.join(_CLOSING_SECONDS)
