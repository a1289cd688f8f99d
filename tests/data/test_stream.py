"""The stream and its background thread."""

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patience import HANGS

from lambert.core.batch import Target, flat_batch
from lambert.core.errors import DataError, UsageError
from lambert.data.batch_sizes import BatchSizes
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.data.source import CorpusSource
from lambert.data.stream import balance, micro_bounds, sequential, split, stream


class Numbered:
    """Sequence (epoch, index) is the tokens epoch, index, 0, 0, ...; the epochs have the sizes given."""

    def __init__(self, sizes, fail_at=None):
        self.sizes, self.fail_at = sizes, fail_at

    def size(self, epoch):
        return self.sizes[epoch % len(self.sizes)]

    def lengths(self, epochs, indices):
        return 2 + (indices * 7 + epochs) % 11

    def collate(self, epochs, indices):
        if self.fail_at is not None and (epochs == self.fail_at).any():
            raise DataError("rotten row 7")
        lengths = self.lengths(epochs, indices)
        ids = np.zeros(lengths.sum(), dtype=np.int64)
        first = np.cumsum(lengths) - lengths
        ids[first], ids[first + 1] = epochs, indices
        odd = np.flatnonzero(indices % 2)
        target = Target(torch.from_numpy(odd), torch.ones(len(odd), dtype=torch.long))
        return flat_batch(ids, np.zeros_like(ids), lengths, {"label": target})


def members(batch):
    first = batch.bounds_S1[:-1].long()
    return list(zip(batch.ids_T[first].tolist(), batch.ids_T[first + 1].tolist(), strict=True))


def sequences(batches):
    """(epoch, index) of each sequence, in order."""
    return [pair for item in batches for _, batch in item.micro_batches for pair in members(batch)]


def rows(batch):
    """Everything of each sequence, as plain values."""
    bounds, found = batch.bounds_S1.tolist(), []
    at = {name: target.at_N.tolist() for name, target in batch.targets.items()}
    labels = {name: target.labels_N.tolist() for name, target in batch.targets.items()}
    for s, (low, high) in enumerate(itertools.pairwise(bounds)):
        mlm = [(a - low, b) for a, b in zip(at["mlm"], labels["mlm"], strict=True) if low <= a < high]
        nsp = labels["nsp"][s] if "nsp" in labels else None
        found.append((batch.ids_T[low:high].tolist(), batch.types_T[low:high].tolist(), mlm, nsp))
    return found


@pytest.mark.parametrize("shuffle", [True, False])
def test_epochs_follow_one_another_each_sequence_once(shuffle):
    sizes = [5, 8, 3]
    seen = sequences(stream(Numbered(sizes), batch_size=4, micro_tokens=20, seed=3, shuffle=shuffle, stop=8))
    assert len(seen) == 32
    epochs = [list(group) for _, group in itertools.groupby(seen, key=lambda pair: pair[0])]
    assert [len(group) for group in epochs] == [5, 8, 3, 5, 8, 3]
    for number, group in enumerate(epochs):
        assert sorted(group) == [(number, index) for index in range(len(group))]
    assert (seen == sorted(seen)) is not shuffle
    if shuffle:
        assert [index for _, index in epochs[0]] != [index for _, index in epochs[3]]


def test_a_ramp_takes_the_same_sequences_in_smaller_updates():
    sizes = BatchSizes(8, 2, 6)
    ramped = stream(Numbered([11, 12]), batch_size=sizes, micro_tokens=30, seed=5, stop=9)
    found = [sequences([batch]) for batch in ramped]
    assert [len(each) for each in found] == [2, 2, 4, 4, 6, 6, 8, 8, 8]
    flat = [pair for each in found for pair in each]
    assert flat == sequences(stream(Numbered([11, 12]), batch_size=1, micro_tokens=30, seed=5, stop=48))
    later = stream(Numbered([11, 12]), batch_size=sizes, micro_tokens=30, seed=5, start=4, stop=9)
    assert [sequences([batch]) for batch in later] == found[4:]


@given(
    start=st.integers(0, 12),
    world=st.sampled_from([1, 2, 4]),
    shares=st.sampled_from([0, 4, 8]),
    micro_tokens=st.sampled_from([1, 13, 40, 10**6]),
    batch_size=st.sampled_from([1, 8, 24]),
)
def test_nothing_depends_on_start_ranks_or_micro_batches(start, world, shares, micro_tokens, batch_size):
    source = Numbered([11, 12])
    reference = list(stream(source, batch_size=batch_size, micro_tokens=10**6, seed=5, stop=start + 3))[start:]
    ranks = [
        list(
            stream(
                source,
                batch_size=batch_size,
                micro_tokens=micro_tokens,
                seed=5,
                start=start,
                rank=rank,
                world=world,
                stop=start + 3,
                shares=shares,
            )
        )
        for rank in range(world)
    ]
    for update, whole in enumerate(reference):
        parts = [rank[update] for rank in ranks]
        merged = sorted(itertools.chain(*(part.micro_batches for part in parts)), key=lambda item: item[0])
        assert [number for number, _ in merged] == list(range(len(merged)))
        assert all(len(part.shares) == (shares // world or 1) for part in parts)
        assert [pair for _, batch in merged for pair in members(batch)] == sequences([whole])
        assert all(batch.tokens <= micro_tokens or batch.sequences == 1 for _, batch in merged)
        for rank, part in enumerate(parts):
            assert (part.tokens, part.sequences) == (whole.tokens, batch_size)
            assert part.loads[rank] == sum(batch.tokens for _, batch in part.micro_batches)
        assert sum(part.counts.get("label", 0) for part in parts) == whole.counts["label"]
        assert whole.counts["label"] == sum(index % 2 for _, index in sequences([whole]))
        assert whole.tokens == sum(batch.tokens for _, batch in merged)


@pytest.mark.parametrize("mode", ["pairs", "balanced", "full"])
def test_a_corpus_streams_the_same_bytes_however_it_is_split_and_resumed(random_corpus, specials, mode):
    corpus = random_corpus(12, seed=9)

    def source():
        packing = PackingConfig(mode=mode, sequence_length=48)
        return CorpusSource(corpus, packing, MaskingConfig(whole_word=True), specials, 2)

    def run(start, stop, batch_size=8, micro_tokens=10**6, world=1):
        updates = []
        shares = [
            stream(
                source(),
                batch_size=batch_size,
                micro_tokens=micro_tokens,
                seed=2,
                start=start,
                rank=rank,
                world=world,
                stop=stop,
            )
            for rank in range(world)
        ]
        for parts in zip(*shares, strict=True):
            merged = sorted(itertools.chain(*(part.micro_batches for part in parts)), key=lambda item: item[0])
            updates.append([row for _, batch in merged for row in rows(batch)])
        return updates

    size = source().size(0)
    stop = 3 * size // 8 + 1  # into the fourth epoch
    whole = run(0, stop)
    for world in (1, 2, 4):
        assert run(0, stop, micro_tokens=100, world=world) == whole
    for start in (1, stop // 2, stop - 1):
        assert run(start, stop, micro_tokens=333) == whole[start:]
    assert [row for update in run(0, 8 * stop, batch_size=1) for row in update] == [r for u in whole for r in u]


def test_the_shares_of_an_update_are_those_of_any_number_of_ranks():
    def shares(world):
        ranks = [
            next(stream(Numbered([40]), batch_size=32, micro_tokens=20, seed=1, rank=rank, world=world, shares=4))
            for rank in range(world)
        ]
        return [[(n, members(batch)) for n, batch in share] for rank in ranks for share in rank.shares]

    assert shares(1) == shares(2) == shares(4)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 9))
def test_parts_hold_about_as_many_tokens_each(lengths, parts):
    lengths = np.array(lengths)
    found = split(lengths, parts)
    assert [index for low, high in found for index in range(low, high)] == list(range(len(lengths)))
    loads = [lengths[low:high].sum() for low, high in found]
    assert max(loads) <= lengths.sum() / parts + lengths.max()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 6))
def test_ranks_get_about_as_many_tokens_each(lengths, ranks):
    lengths = np.array(lengths)
    micro_batches = [(n, n, n + 1) for n in range(len(lengths))]
    found = balance(micro_batches, lengths, ranks)
    assert sorted(entry for share in found for entry in share) == micro_batches
    loads = [sum(lengths[low] for _, low, _ in share) for share in found]
    best = max(lengths.max(), lengths.sum() / ranks)
    assert max(loads) <= (4 / 3) * best + 1e-9 or max(loads) - min(loads) <= lengths.max()


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
def test_micro_batches_are_as_full_as_they_can_be(lengths, micro_tokens):
    bounds = micro_bounds(np.array(lengths, dtype=np.int64), micro_tokens)
    assert bounds[0] == 0
    assert bounds[-1] == len(lengths)
    for low, high in itertools.pairwise(bounds):
        assert high > low
        assert sum(lengths[low:high]) <= micro_tokens or high == low + 1
        assert high == len(lengths) or sum(lengths[low : high + 1]) > micro_tokens


@pytest.mark.parametrize("world", [1, 3])
def test_once_gives_every_sequence_of_epoch_0_in_order(world):
    source = Numbered([23])
    shares = [list(sequential(source, micro_tokens=30, rank=rank, world=world)) for rank in range(world)]
    interleaved = [batch for group in itertools.zip_longest(*shares) for batch in group if batch is not None]
    assert [pair for batch in interleaved for pair in members(batch)] == [(0, index) for index in range(23)]


@pytest.mark.parametrize(
    ("limit", "expected"), [(4, [0, 5, 11, 17]), (23, list(range(23))), (99, list(range(23))), (0, list(range(23)))]
)
def test_once_takes_a_limited_number_from_everywhere(limit, expected):
    batches = sequential(Numbered([23]), micro_tokens=30, sequences=limit)
    assert [index for batch in batches for _, index in members(batch)] == expected


def test_an_error_in_the_background_is_raised_here_after_what_came_before():
    batches = stream(Numbered([4], fail_at=2), batch_size=4, micro_tokens=50, seed=0)
    assert len(sequences([next(batches), next(batches)])) == 8
    with pytest.raises(DataError, match="rotten row 7"):
        next(batches)
    assert not alive()


def alive():
    return [thread for thread in threading.enumerate() if thread.name == "lambert-stream"]


def test_closing_ends_the_thread():
    batches = stream(Numbered([1000]), batch_size=2, micro_tokens=50, seed=0)
    assert not alive()  # nothing runs before it is asked for
    next(batches)
    assert len(alive()) == 1
    batches.close()
    assert not alive()
    finite = list(stream(Numbered([10]), batch_size=2, micro_tokens=50, seed=0, stop=3))
    assert len(finite) == 3
    assert not alive()
    assert list(stream(Numbered([10]), batch_size=2, micro_tokens=50, seed=0, start=3, stop=3)) == []


def test_the_next_update_is_assembled_while_the_caller_works():
    second_is_made = threading.Event()
    calls = iter(range(9))

    class Slow(Numbered):
        def collate(self, epochs, indices):
            time.sleep(0.2)
            if next(calls):
                second_is_made.set()
            return super().collate(epochs, indices)

    batches = stream(Slow([100]), batch_size=2, micro_tokens=1000, seed=0)
    first = next(batches)
    assert second_is_made.wait(HANGS), "nobody has asked for it yet"
    second = next(batches)
    batches.close()
    assert first.wait_seconds > second.wait_seconds


def test_an_interrupt_while_waiting_leaves_at_once():
    begun = []

    class Slow(Numbered):
        def collate(self, epochs, indices):
            begun.append(indices)
            time.sleep(0.5)
            return super().collate(epochs, indices)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    batches = stream(Slow([100]), batch_size=2, micro_tokens=1000, seed=0)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, handler)
    assert len(begun) == 1  # the batch under way is finished, none is begun
    assert not alive()


def test_no_data_and_no_room_are_named():
    with pytest.raises(DataError, match="no sequence"):
        next(stream(Numbered([0]), batch_size=2, micro_tokens=50, seed=0))
    with pytest.raises(UsageError, match="batch_size"):
        stream(Numbered([4]), batch_size=0, micro_tokens=50, seed=0)
    with pytest.raises(UsageError, match="micro_tokens"):
        stream(Numbered([4]), batch_size=2, micro_tokens=0, seed=0)
    with pytest.raises(UsageError, match="micro_tokens"):
        next(sequential(Numbered([4]), micro_tokens=0))
    assert list(sequential(Numbered([0]), micro_tokens=5)) == []
