"""Computes the sequences of many callers together, in flat batches by tokens, without a waiting time.

Worker threads share the cores. An idle worker takes what is waiting at once, up to `batch_tokens` tokens, in turns of
the callers, so that a request of one text does not wait for all texts of a large request.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from lambert.core.batch import Batch, Source, Target, flat_batch
from lambert.core.errors import MachineError
from lambert.core.world import World
from lambert.engine.precision import Precision
from lambert.inference.outputs import FAST_TOKENS, Found, HasOutputs, computed

_TURN = 256
"""Tokens that a caller gets at most before the next one's turn, unless nobody else waits."""
_GPU_TOKENS = 16_384
"""Tokens of a batch on a GPU."""


class OverloadedError(MachineError):
    """The queue is full."""

    def __init__(self, waiting: int, most: int, seconds: float) -> None:
        super().__init__(
            f"{waiting:,} tokens are waiting, and {most:,} is the most: try again in {math.ceil(seconds)} s."
        )
        self.seconds = seconds
        """Estimate of the time until the queue is empty."""


class ExpiredError(MachineError):
    """The time of a request was over before all its sequences were computed."""


class Observer:
    """What a Scheduler reports. Its threads call the methods, and computing waits for them."""

    def taken(self, seconds: float) -> None:
        """The first sequences of a request are computed after this time in the queue."""

    def computed(self, tokens: int, sequences: int, seconds: float) -> None:
        """A batch was computed."""


@dataclass(frozen=True, slots=True)
class Work:
    """What computes a request: a model, in its precision."""

    model: HasOutputs
    precision: Precision


@dataclass(eq=False, slots=True)
class _Job:
    """The sequences of a Source that one caller waits for."""

    work: Work
    source: Source
    lengths: list[int]
    deadline: float
    begin: float = field(default_factory=time.monotonic)
    future: "Future[list[Found]]" = field(default_factory=Future)
    taken: int = 0
    """Number of sequences that workers have taken; they are taken in order."""
    found: dict[int, Found] = field(default_factory=dict)
    """Outputs by the number of their first sequence."""
    done: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive sequences of a job."""

    job: _Job
    low: int
    high: int

    def collate(self) -> Batch:
        indices_S = np.arange(self.low, self.high)
        return self.job.source.collate(np.zeros_like(indices_S), indices_S)


class Scheduler:
    """A queue of sequences and the threads that compute them, for any number of models on one device.

    Args:
        world: The device.
        workers: Number of threads; 0: one for each of torch's threads on a CPU, one on a GPU.
        batch_tokens: Most tokens of a batch, except for a single longer sequence; 0: the fastest for the device.
        most_tokens: Most tokens that wait, except for a first request.
        observer: Is told what is computed.
    """

    def __init__(
        self, world: World, *, workers: int = 0, batch_tokens: int = 0, most_tokens: int = 1_000_000,
        observer: Observer | None = None,
    ) -> None:  # fmt: skip
        self._observer = observer or Observer()
        on_cpu = world.device.type == "cpu"
        self._world = world
        self._workers = workers or (torch.get_num_threads() if on_cpu else 1)
        self._threads = torch.get_num_threads()
        self._batch_tokens = batch_tokens or (FAST_TOKENS if on_cpu else _GPU_TOKENS)
        self._most_tokens = most_tokens
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._idle, self._closing = 0, False
        self._tokens, self._computed, self._busy = 0, 0, 0.0
        self._pool: list[threading.Thread] = []

    @property
    def workers(self) -> int:
        """Number of threads."""
        return self._workers

    @property
    def waiting_tokens(self) -> int:
        """Tokens of sequences that no worker has taken yet."""
        return self._tokens

    @property
    def most_tokens(self) -> int:
        """Most tokens that may wait."""
        return self._most_tokens

    @property
    def tokens_per_second(self) -> float:
        """Tokens computed per second of all workers so far; 0 before the first batch."""
        return self._computed / self._busy * self._workers if self._busy else 0.0

    def submit(self, work: Work, source: Source, seconds: float = math.inf) -> "Future[list[Found]]":
        """Adds all sequences of a Source, and returns the Future of their outputs, in order. Cancelling the Future
        removes the sequences that no worker has taken.

        Args:
            work: The model.
            source: The sequences.
            seconds: Time after which sequences that still wait are not computed any more.

        Raises:
            OverloadedError: Too many tokens are waiting already.
            ExpiredError: (of the Future) the time is over.
            RuntimeError: The scheduler is closed.
        """
        indices_S = np.arange(source.size(0))
        lengths = source.lengths(np.zeros_like(indices_S), indices_S).tolist()
        job = _Job(work, source, lengths, time.monotonic() + seconds)
        if not lengths:
            job.future.set_result([])
            return job.future
        with self._changed:
            if self._closing:
                raise RuntimeError("the scheduler is closed")
            if self._tokens and self._tokens + sum(lengths) > self._most_tokens:
                rate = self.tokens_per_second or 1000.0
                raise OverloadedError(self._tokens, self._most_tokens, self._tokens / rate)
            if not self._pool:
                self._start()
            self._jobs.append(job)
            self._tokens += sum(lengths)
            self._changed.notify()
        job.future.add_done_callback(lambda future: self._remove(job) if future.cancelled() else None)
        return job.future

    def close(self, *, now: bool = False) -> None:
        """Ends the threads after they have computed what was accepted; `now`: after their present batches. A closed
        scheduler accepts nothing."""
        with self._changed:
            self._closing = True
            for job in list(self._jobs) if now else ():
                job.future.cancel()
            self._changed.notify_all()
        for thread in self._pool:
            thread.join()

    def _start(self) -> None:
        self._pool = [
            threading.Thread(target=self._work, name=f"lambert-inference-{number}", daemon=True)
            for number in range(self._workers)
        ]
        for thread in self._pool:
            thread.start()

    def _work(self) -> None:
        while parts := self._take():
            # A batch that is alone has all cores.
            torch.set_num_threads(max(1, self._threads // min(self._workers, self._running)))
            begin = time.perf_counter()
            tokens = sum(sum(part.job.lengths[part.low : part.high]) for part in parts)
            try:
                self._compute(parts)
            except Exception as error:  # whatever it is, the callers must learn it, and this thread must live
                with self._changed:
                    for part in parts:
                        self._fail(part.job, error)
            seconds = time.perf_counter() - begin
            with self._changed:
                self._busy += seconds
                self._computed += tokens
            self._observer.computed(tokens, sum(part.high - part.low for part in parts), seconds)

    def _take(self) -> list[_Part]:
        """Waits for sequences, and returns a batch of them; empty at the end."""
        with self._changed:
            while True:
                self._drop()
                if self._jobs:
                    break
                if self._closing:
                    return []
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            goal = min(self._batch_tokens, max(_TURN, math.ceil(self._tokens / (1 + self._idle))))
            parts = self._turns(goal)
            if self._jobs:
                self._changed.notify()
            return parts

    def _drop(self) -> None:
        """Removes jobs whose time is over."""
        now = time.monotonic()
        for job in [job for job in self._jobs if job.deadline < now]:
            self._fail(job, ExpiredError("The request waited too long and was not computed: try again later."))

    def _remove(self, job: _Job) -> None:
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
                self._tokens -= sum(job.lengths[job.taken :])

    def _fail(self, job: _Job, error: Exception) -> None:
        self._remove(job)
        with suppress(InvalidStateError):  # its caller has cancelled it
            job.future.set_exception(error)

    def _turns(self, goal: int) -> list[_Part]:
        """Takes up to `goal` tokens of the waiting jobs of one model in turn; at least one sequence."""
        work, total = self._jobs[0].work, 0
        taken: dict[_Job, int] = {}
        waiting = deque(job for job in self._jobs if job.work == work)
        while waiting and total < goal:
            job = waiting.popleft()
            low, tokens = job.taken, 0
            taken.setdefault(job, low)
            while job.taken < len(job.lengths) and tokens < _TURN:
                length = job.lengths[job.taken]
                if total and total + length > goal:
                    goal = 0
                    break
                job.taken, tokens, total = job.taken + 1, tokens + length, total + length
            if job.taken < len(job.lengths):
                waiting.append(job)
        self._tokens -= total
        parts = [_Part(job, low, job.taken) for job, low in taken.items() if low < job.taken]
        now = time.monotonic()
        for part in parts:  # those that were served go to the end of the queue, or leave it
            if part.low == 0:
                self._observer.taken(now - part.job.begin)
            self._jobs.remove(part.job)
            if part.job.taken < len(part.job.lengths):
                self._jobs.append(part.job)
        return parts

    def _compute(self, parts: Sequence[_Part]) -> None:
        batches = [part.collate() for part in parts]
        work = parts[0].job.work
        found = computed(work.model, work.precision, self._world, joined(batches))
        divided_found = list(divided(found, batches))
        with self._changed:
            for part, own in zip(parts, divided_found, strict=True):
                job = part.job
                job.found[part.low] = own
                job.done += part.high - part.low
                if job.done == len(job.lengths):
                    with suppress(InvalidStateError):
                        job.future.set_result([job.found[low] for low in sorted(job.found)])


def joined(batches: Sequence[Batch]) -> Batch:
    """Returns the sequences of several batches as one batch. Targets must list tokens, as those of masked LM do."""
    if len(batches) == 1:
        return batches[0]
    lengths_S = np.concatenate([np.diff(batch.bounds_S1.numpy()) for batch in batches]).astype(np.int64)
    ids_T = torch.cat([batch.ids_T for batch in batches]).numpy()
    types_T = torch.cat([batch.types_T for batch in batches]).numpy()
    targets: dict[str, Target] = {}
    for name in batches[0].targets:
        begin, places = 0, []
        for batch in batches:
            places.append(batch.targets[name].at_N + begin)
            begin += batch.tokens
        labels_N = torch.cat([batch.targets[name].labels_N for batch in batches])
        targets[name] = replace(batches[0].targets[name], at_N=torch.cat(places), labels_N=labels_N)
    return flat_batch(ids_T, types_T, lengths_S, targets)


def divided(found: Mapping[str, Tensor], batches: Sequence[Batch]) -> Iterator[Found]:
    """Yields the outputs for each of the batches from those for all of them together: rows of targets [N], of tokens
    [T] or of sequences [S]. A sequence has at least two tokens, so T and S differ."""
    tokens = sum(batch.tokens for batch in batches)
    ends: dict[str, int] = dict.fromkeys(found, 0)
    for batch in batches:
        own = {}
        for name, rows in found.items():
            if name in batch.targets:
                count = batch.targets[name].at_N.shape[0]
            else:
                count = batch.tokens if rows.shape[0] == tokens else batch.sequences
            own[name] = rows[ends[name] : ends[name] + count]
            ends[name] += count
        yield own
