"""Sequences of many callers are computed together, in turn, and each caller gets its own outputs."""

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import ClassVar

import numpy as np
import pytest
import torch
from patience import HANGS
from torch import Tensor

from lambert.core.batch import Batch, Ints, Target, flat_batch
from lambert.core.world import World
from lambert.engine.precision import Precision
from lambert.inference.scheduler import Observer, OverloadedError, ReadyModel, Scheduler


class Texts:
    """A Source of sequences whose tokens are all `number`; with targets, the last token of each."""

    def __init__(self, number: int, lengths: list[int], targets: bool = False) -> None:
        self.number, self.lengths_S, self.targets = number, np.array(lengths), targets

    def size(self, epoch: int) -> int:
        return len(self.lengths_S)

    def lengths(self, epochs_S: Ints, indices_S: Ints) -> Ints:
        return self.lengths_S[indices_S]

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        lengths_S = self.lengths_S[indices_S]
        ids = np.full(int(lengths_S.sum()), self.number)
        last = torch.from_numpy(np.cumsum(lengths_S) - 1)
        targets = {"mlm": Target(last, last)} if self.targets else {}
        return flat_batch(ids, np.zeros_like(ids), lengths_S, targets)


class Model:
    """Returns the ids, a number for each sequence, and at targets the positions; it waits for `go`."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun = threading.Semaphore(0)
        """Released when a worker begins a batch."""
        self.go = threading.Event()
        self.fails = False

    def eval(self) -> "Model":
        return self

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        self.begun.release()
        self.go.wait(10)
        if self.fails:
            raise RuntimeError("broken")
        self.batches.append(batch.ids_T[batch.bounds_S1[:-1].long()].tolist())
        found = {"tokens": batch.ids_T, "texts": batch.ids_T[batch.bounds_S1[:-1].long()]}
        return found | ({"mlm": batch.positions_T[batch.targets["mlm"].at_N]} if batch.targets else {})


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def work(model: Model) -> ReadyModel:
    return ReadyModel(model, Precision("float32"))


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler(World(), workers=1, batch_tokens=600, most_tokens=2000)
    yield made
    made.close()


def test_each_caller_gets_its_own_outputs(model: Model, work: ReadyModel, scheduler: Scheduler) -> None:
    model.go.set()
    asked = [Texts(number, [2 + number, 3, 200 * (number % 3) + 2], targets=True) for number in range(4)]
    for source, future in [(source, scheduler.submit(work, source)) for source in asked]:
        found = future.result(10)
        assert torch.cat([part["tokens"] for part in found]).tolist() == [source.number] * int(source.lengths_S.sum())
        assert torch.cat([part["texts"] for part in found]).tolist() == [source.number] * 3
        assert torch.cat([part["mlm"] for part in found]).tolist() == (source.lengths_S - 1).tolist()
    assert scheduler.submit(work, Texts(1, [])).result(0) == []
    assert scheduler.waiting_tokens == 0


def test_a_short_request_does_not_wait_for_a_long_one(model: Model, work: ReadyModel, scheduler: Scheduler) -> None:
    first = scheduler.submit(work, Texts(0, [10]))
    assert model.begun.acquire(timeout=HANGS)
    long, short = scheduler.submit(work, Texts(1, [100] * 18)), scheduler.submit(work, Texts(2, [100]))
    model.go.set()
    for future in (first, long, short):
        future.result(10)
    assert [sorted(set(batch)) for batch in model.batches] == [[0], [1], [1], [1, 2], [1]]
    assert sum(batch.count(1) for batch in model.batches) == 18


def test_a_second_worker_starts_for_enough_tokens_only(model: Model, work: ReadyModel) -> None:
    scheduler = Scheduler(World(), workers=2, batch_tokens=600)
    futures = [scheduler.submit(work, Texts(0, [10]))]
    assert model.begun.acquire(timeout=HANGS)
    futures.append(scheduler.submit(work, Texts(1, [200])))
    assert not model.begun.acquire(timeout=0.2)
    futures.append(scheduler.submit(work, Texts(2, [56])))
    assert model.begun.acquire(timeout=HANGS)
    futures.append(scheduler.submit(work, Texts(3, [10])))
    model.go.set()
    for future in futures:  # the last one too, though it was too small for a second worker
        future.result(10)
    scheduler.close()
    assert sorted(map(sorted, model.batches)) == [[0], [1, 2], [3]]


def test_an_odd_output_fails_its_request_and_the_worker_lives(work: ReadyModel) -> None:
    class Odd(Model):
        def outputs(self, batch: Batch) -> dict[str, Tensor]:
            return {"odd": torch.tensor(1.0)}

    scheduler = Scheduler(World(), workers=2)
    with pytest.raises(IndexError):
        scheduler.submit(ReadyModel(Odd(), work.precision), Texts(0, [10])).result(10)
    assert isinstance(work.model, Model)
    work.model.go.set()
    assert scheduler.submit(work, Texts(1, [10])).result(10)[0]["texts"].tolist() == [1]
    scheduler.close()


def test_models_are_not_mixed(model: Model, work: ReadyModel, scheduler: Scheduler) -> None:
    other = Model()
    model.go.set()
    other.go.set()
    futures = [
        scheduler.submit(ReadyModel(m, work.precision), Texts(n, [50] * 3)) for n, m in enumerate([model, other] * 3)
    ]
    for future in futures:
        future.result(10)
    assert {number % 2 for batch in model.batches for number in batch} == {0}
    assert {number % 2 for batch in other.batches for number in batch} == {1}


def test_too_much_work_is_refused_until_some_is_done(model: Model, work: ReadyModel, scheduler: Scheduler) -> None:
    scheduler.submit(work, Texts(0, [600]))
    assert model.begun.acquire(timeout=HANGS)
    big = scheduler.submit(work, Texts(1, [600] * 5))  # more than the queue holds, but nothing waits
    with pytest.raises(OverloadedError, match="Too much work is waiting") as refused:
        scheduler.check(10)
    with pytest.raises(OverloadedError, match="600 tokens"):
        Scheduler(World(), most_tokens=600).check(10, coming=600)
    assert 0 < refused.value.seconds < math.inf
    model.go.set()
    big.result(10)
    scheduler.check(10)
    scheduler.submit(work, Texts(2, [10])).result(10)


def test_work_that_would_wait_too_long_is_refused(model: Model, work: ReadyModel) -> None:
    scheduler = Scheduler(World(), workers=1, most_tokens=10**7, most_seconds=30)
    futures = [scheduler.submit(work, Texts(0, [10]))]
    assert model.begun.acquire(timeout=HANGS)
    scheduler._speed = 100.0  # so that 3,000 tokens take 30 s
    for lengths, accepted in [
        ([100] * 1000, True),  # nothing waits
        ([10], True),  # waits for 1,024 tokens of the first one
        ([100] * 15, True),  # in two turns, for 2,048 tokens of it
        ([100] * 15, False),  # for 2,048 and 1,510
        ([100] * 9, True),  # for 1,024, 10 and 1,024
        ([10], True),  # for 1,024, 10, 1,024 and 900
        ([10] * 5, True),
        ([10], False),  # for 3,018
    ]:
        if accepted:
            scheduler.check(sum(lengths))
            futures.append(scheduler.submit(work, Texts(1, lengths)))
        else:
            with pytest.raises(OverloadedError, match="Too much work"):
                scheduler.check(sum(lengths))
    idle = Scheduler(World(), most_seconds=30)
    idle._speed = 100.0
    idle.check(1, coming=2000, seconds=10)
    for coming, seconds in [(2001, 10), (2000, 10.1)]:
        with pytest.raises(OverloadedError, match="Too much work"):
            idle.check(1, coming=coming, seconds=seconds)
    model.go.set()
    for future in futures:
        future.result(10)
    scheduler.close()


def test_the_speed_follows_the_batches_that_are_not_small(model: Model, work: ReadyModel) -> None:
    scheduler = Scheduler(World(), workers=1)
    model.go.set()
    scheduler.submit(work, Texts(0, [10])).result(10)
    assert scheduler.tokens_per_second > 0
    assert scheduler._speed == 0
    scheduler.submit(work, Texts(0, [300])).result(10)
    scheduler.submit(work, Texts(0, [10])).result(10)
    speed = scheduler._speed
    assert speed > 0
    scheduler._speed = 2 * speed
    scheduler.submit(work, Texts(0, [10])).result(10)
    assert scheduler._speed == 2 * speed
    scheduler._speed = 1e-9
    scheduler.submit(work, Texts(0, [300])).result(10)
    scheduler.close()
    assert scheduler._speed > 1e-9


def test_cancelled_requests_are_not_computed(model: Model, work: ReadyModel, scheduler: Scheduler) -> None:
    running = scheduler.submit(work, Texts(0, [10]))
    assert model.begun.acquire(timeout=HANGS)
    left = scheduler.submit(work, Texts(1, [600] * 2))
    waiting = scheduler.waiting_tokens
    assert left.cancel()
    assert scheduler.waiting_tokens == waiting - 1200  # at once, so that others are not refused
    model.go.set()
    running.result(10)
    with pytest.raises(CancelledError):
        left.result(10)
    scheduler.submit(work, Texts(3, [10])).result(10)
    assert model.batches == [[0], [3]]
    assert scheduler.waiting_tokens == 0


def test_a_failure_reaches_the_caller_and_the_worker_lives(
    model: Model, work: ReadyModel, scheduler: Scheduler
) -> None:
    model.go.set()
    model.fails = True
    with pytest.raises(RuntimeError, match="broken"):
        scheduler.submit(work, Texts(0, [600] * 3)).result(10)
    model.fails = False
    assert scheduler.submit(work, Texts(1, [10])).result(10)[0]["texts"].tolist() == [1]


def test_a_failing_request_fails_alone(model: Model, work: ReadyModel, scheduler: Scheduler) -> None:
    class Broken(Texts):
        def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
            raise RuntimeError("broken")

    first = scheduler.submit(work, Texts(0, [10]))
    assert model.begun.acquire(timeout=HANGS)
    futures = [scheduler.submit(work, kind(number, [10, 20])) for number, kind in enumerate([Texts, Broken, Texts], 1)]
    model.go.set()
    first.result(10)
    assert [future.result(10)[0]["texts"].tolist() for future in (futures[0], futures[2])] == [[1, 1], [3, 3]]
    with pytest.raises(RuntimeError, match="broken"):
        futures[1].result(10)


def test_closing_computes_what_was_accepted(model: Model, work: ReadyModel) -> None:
    scheduler = Scheduler(World(), workers=2, batch_tokens=100)
    futures = [scheduler.submit(work, Texts(number, [60])) for number in range(9)]
    model.go.set()
    scheduler.close()
    assert [future.result(0)[0]["texts"].tolist() for future in futures] == [[number] for number in range(9)]
    with pytest.raises(RuntimeError, match="closed"):
        scheduler.submit(work, Texts(0, [10]))


def test_closing_at_once_computes_no_more_than_has_begun(model: Model, work: ReadyModel) -> None:
    scheduler = Scheduler(World(), workers=1, batch_tokens=100)
    begun = scheduler.submit(work, Texts(0, [60]))
    assert model.begun.acquire(timeout=HANGS)
    waiting = scheduler.submit(work, Texts(1, [60]))
    closing = threading.Thread(target=scheduler.close, kwargs={"now": True})
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(10)
    model.go.set()
    closing.join(10)
    begun.result(0)
    assert model.batches == [[0]]


def test_an_observer_is_told_of_waiting_and_of_batches(model: Model, work: ReadyModel) -> None:
    class Seen(Observer):
        waits: ClassVar[list[float]] = []
        batches: ClassVar[list[tuple[int, int]]] = []

        def record_wait(self, seconds: float) -> None:
            self.waits.append(seconds)

        def record_batch(self, tokens: int, sequences: int, seconds: float) -> None:
            self.batches.append((tokens, sequences))
            assert seconds > 0

    scheduler = Scheduler(World(), workers=1, batch_tokens=600, observer=Seen())
    scheduler.submit(work, Texts(0, [10]))
    assert model.begun.acquire(timeout=HANGS)
    scheduler.submit(work, Texts(1, [600, 600]))
    time.sleep(0.1)
    model.go.set()
    scheduler.close()
    assert Seen.batches == [(10, 1), (600, 1), (600, 1)]
    assert len(Seen.waits) == 2  # one for each request
    assert Seen.waits[0] < Seen.waits[1]
    assert Seen.waits[1] > 0.05
