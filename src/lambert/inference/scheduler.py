"""Computes the sequences of many callers together, in flat batches by tokens, without a timer.

Worker threads share the cores. A worker that is alone takes waiting sequences at once, up to `batch_tokens` tokens,
oldest request first. Beside others a worker starts only if enough tokens wait, because a batch reads all weights from
memory. A request goes to the end of the queue after each 1,024 tokens, so that one text does not wait for all texts of
a large request.
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
from lambert.inference.outputs import Found, HasOutputs, compute_outputs
from lambert.model.pooling import first_tokens

_LEAST_TOKENS = 256
"""Tokens for which a worker starts beside others. Reading the weights then takes about a tenth of the time."""
_CPU_TOKENS = 512
"""Tokens of a batch on a CPU. With BERT-Base, throughput is that of 1,024, and the slowest answers wait at least a
fifth less."""
_GPU_TOKENS = 16_384
"""Tokens of a batch on a GPU."""
_TURN = 1024
"""Tokens of a request that are computed before the next request, or a batch if that is more."""
_NEW_WEIGHT = 0.1
"""Weight of a batch in the moving average of the speed."""


class OverloadedError(MachineError):
    """More work is waiting than is allowed, or than can be computed in time."""

    def __init__(self, waiting: int, seconds: float) -> None:
        super().__init__(f"Too much work is waiting ({waiting:,} tokens): try again in {math.ceil(seconds)} s.")
        self.seconds = seconds
        """Estimated time until the waiting work is computed."""


class Observer:
    """Receives reports of a Scheduler. Its threads call the methods, and wait for them."""

    def record_wait(self, seconds: float) -> None:
        """Records the time that the first sequences of a request waited in the queue."""

    def record_batch(self, tokens: int, sequences: int, seconds: float) -> None:
        """Records a computed batch."""


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A model and the precision in which it computes requests."""

    model: HasOutputs
    precision: Precision


@dataclass(eq=False, slots=True)
class _Job:
    """A request: the sequences of a Source that one caller waits for."""

    ready: ReadyModel
    source: Source
    lengths: list[int]
    begin: float = field(default_factory=time.monotonic)
    future: "Future[list[Found]]" = field(default_factory=Future)
    taken: int = 0
    """Number of sequences that workers have taken, in order."""
    left: int = 0
    """Tokens of the sequences that are not taken."""
    turn: int = 0
    """Tokens taken since the request was at the end of the queue."""
    found: dict[int, Found] = field(default_factory=dict)
    """Outputs by the number of their first sequence."""
    done: int = 0
    dropped: bool = False
    """Whether it was cancelled or failed. It leaves the queue when its turn comes."""


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
        workers: Number of threads; 0: as many as torch has on a CPU, one on a GPU.
        batch_tokens: Maximum tokens of a batch, unless one sequence is longer; 0: the fastest for the device.
        most_tokens: Maximum tokens that wait, except for a first request (`check`).
        most_seconds: Maximum estimated time that a request waits for others (`check`).
        observer: Receives reports.
    """

    def __init__(
        self, world: World, *, workers: int = 0, batch_tokens: int = 0, most_tokens: int = 1_000_000,
        most_seconds: float = math.inf, observer: Observer | None = None,
    ) -> None:  # fmt: skip
        self._observer = observer or Observer()
        on_cpu = world.device.type == "cpu"
        self._world = world
        self.workers = workers or (torch.get_num_threads() if on_cpu else 1)
        """Number of threads."""
        self._threads = torch.get_num_threads()
        self._batch_tokens = batch_tokens or (_CPU_TOKENS if on_cpu else _GPU_TOKENS)
        self.most_tokens, self._most_seconds = most_tokens, most_seconds
        self._turn = max(_TURN, self._batch_tokens)
        self._speed = 0.0
        """Average tokens per second of all cores in the last batches that were not small; 0 before the first one."""
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._active, self._closing = 0, False
        self._tokens, self._computed, self._busy = 0, 0, 0.0
        self._next_turns = 0
        """Waiting tokens that the next turn of each request computes."""
        self._pool: list[threading.Thread] = []

    @property
    def waiting_tokens(self) -> int:
        """Tokens of sequences that no worker has taken yet."""
        return self._tokens

    @property
    def tokens_per_second(self) -> float:
        """Tokens computed per second of all cores so far; 0 before the first batch."""
        return self._computed / self._busy if self._busy else 0.0

    def submit(self, ready: ReadyModel, source: Source) -> "Future[list[Found]]":
        """Adds all sequences of a Source, and returns the Future of their outputs, in order. Cancelling it removes the
        sequences that no worker has taken. Raises RuntimeError if the scheduler is closed."""
        indices_S = np.arange(source.size(0))
        lengths = source.lengths(np.zeros_like(indices_S), indices_S).tolist()
        job = _Job(ready, source, lengths)
        if not lengths:
            job.future.set_result([])
            return job.future
        with self._changed:
            if self._closing:
                raise RuntimeError("the scheduler is closed")
            if not self._pool:
                names = (f"lambert-inference-{number}" for number in range(self.workers))
                self._pool = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
                for thread in self._pool:
                    thread.start()
            self._jobs.append(job)
            self._wait_for(job, sum(lengths))
            self._changed.notify()
        job.future.add_done_callback(lambda future: self._remove(job) if future.cancelled() else None)
        return job.future

    def check(self, tokens: int, *, coming: int = 0, seconds: float = 0.0) -> None:
        """Raises OverloadedError if a request of this many tokens would exceed the limit, or would wait too long for
        the waiting ones, each of which has at most as many turns as this request needs.

        Args:
            coming: Tokens of accepted requests that are not submitted yet.
            seconds: Time that the request waits for them before it is submitted.
        """
        waiting, speed = self._tokens + coming, self._speed or self.tokens_per_second
        if waiting and waiting + tokens > self.most_tokens:
            raise OverloadedError(waiting, waiting / (speed or 1000.0))
        if speed:
            turns = math.ceil(tokens / self._turn)
            seconds += (min(self._tokens, turns * self._next_turns) + coming) / speed
        if seconds > self._most_seconds:
            raise OverloadedError(waiting, seconds)

    def _wait_for(self, job: _Job, left: int) -> None:
        """Sets the number of waiting tokens of a job."""
        self._tokens += left - job.left
        self._next_turns += min(left, self._turn) - min(job.left, self._turn)
        job.left = left

    def close(self, *, now: bool = False) -> None:
        """Ends the threads when all submitted work is computed; `now`: after the current batches. A closed scheduler
        accepts nothing."""
        with self._changed:
            self._closing = True
            for job in list(self._jobs) if now else ():
                job.future.cancel()
            self._changed.notify_all()
        for thread in self._pool:
            thread.join()

    def _work(self) -> None:
        while parts := self._take():
            active = self._active
            threads = max(1, self._threads // active)  # a batch that is alone has all cores
            torch.set_num_threads(threads)
            begin = time.perf_counter()
            done = self._compute(parts)
            seconds = time.perf_counter() - begin
            busy = seconds * min(threads / self._threads, 1 / active)
            tokens = sum(sum(part.job.lengths[part.low : part.high]) for part in parts)
            with self._changed:
                self._active -= 1
                self._busy += busy
                self._computed += tokens
                if tokens >= min(_LEAST_TOKENS, self._batch_tokens):  # small batches do not show the speed
                    self._speed += (_NEW_WEIGHT if self._speed else 1.0) * (tokens / busy - self._speed)
            self._observer.record_batch(tokens, sum(part.high - part.low for part in parts), seconds)
            for job in done:
                with suppress(InvalidStateError):  # its caller has cancelled it
                    job.future.set_result([job.found[low] for low in sorted(job.found)])

    def _take(self) -> list[_Part]:
        """Waits for sequences, and returns a batch of them; empty when the scheduler ends."""
        with self._changed:
            while not (parts := self._batch()):
                if self._closing and not self._tokens:
                    self._changed.notify_all()
                    return []
                self._changed.wait()
            self._active += 1
            if self._jobs:
                self._changed.notify()
            return parts

    def _batch(self) -> list[_Part]:
        """Takes a batch of the waiting jobs of one model: at least one sequence if one waits, unless other workers are
        at work and few tokens wait."""
        if self._active and self._tokens < _LEAST_TOKENS:
            return []
        goal = min(self._batch_tokens, max(_LEAST_TOKENS, math.ceil(self._tokens / (self.workers - self._active))))
        total, full = 0, False
        parts: list[_Part] = []
        others: list[_Job] = []
        ready: ReadyModel | None = None
        while self._jobs and not full:
            job = self._jobs.popleft()
            if job.dropped:
                continue
            ready = ready or job.ready
            if job.ready != ready:
                others.append(job)
                continue
            low, before = job.taken, total
            while job.taken < len(job.lengths) and not full:
                length = job.lengths[job.taken]
                full = total > 0 and total + length > goal
                if not full:
                    job.taken, total = job.taken + 1, total + length
                    full = total >= goal
            job.turn += total - before
            self._wait_for(job, job.left - (total - before))
            if low < job.taken:
                parts.append(_Part(job, low, job.taken))
                if not low:
                    self._observer.record_wait(time.monotonic() - job.begin)
            if job.taken < len(job.lengths):
                ended = job.turn >= self._turn
                job.turn = 0 if ended else job.turn
                (self._jobs if ended else others).append(job)
        self._jobs.extendleft(reversed(others))
        return parts

    def _remove(self, job: _Job) -> None:
        with self._changed:
            if not job.dropped:
                job.dropped = True
                self._wait_for(job, 0)

    def _fail(self, job: _Job, error: BaseException) -> None:
        self._remove(job)
        with suppress(InvalidStateError):  # its caller has cancelled it
            job.future.set_exception(error)

    def _compute(self, parts: Sequence[_Part]) -> list[_Job]:
        """Computes parts of jobs together, and returns the completed jobs. If that fails, computes each part alone, so
        that an error of one request fails only that one."""
        ready = parts[0].job.ready
        try:
            batches = [part.collate() for part in parts]
            together = compute_outputs(ready.model, ready.precision, self._world, join_batches(batches), constant=True)
            found = list(zip(parts, divide_outputs(together, batches), strict=True))
        except BaseException as error:  # any error goes to the caller, and this thread must go on
            if len(parts) > 1:
                return [job for part in parts for job in self._compute([part])]
            with self._changed:
                self._fail(parts[0].job, error)
            return []
        complete = []
        for part, own in found:
            with self._changed:
                job = part.job
                job.found[part.low] = own
                job.done += part.high - part.low
                if job.done == len(job.lengths):
                    complete.append(job)
        return complete


def join_batches(batches: Sequence[Batch]) -> Batch:
    """Returns the sequences of several batches as one batch. Targets must list tokens, as in masked LM."""
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
    found = flat_batch(ids_T, types_T, lengths_S, targets)
    starts = [batch.pooled_from_S for batch in batches]
    if any(start_S is not None for start_S in starts):
        begins = np.cumsum([0, *(batch.tokens for batch in batches)]).tolist()
        shifted = [first_tokens(batch) + begin for batch, begin in zip(batches, begins, strict=False)]
        found = replace(found, pooled_from_S=torch.cat(shifted))
    return found


def divide_outputs(found: Mapping[str, Tensor], batches: Sequence[Batch]) -> Iterator[Found]:
    """Yields the outputs of each batch, from those of all batches together: rows of targets [N], of tokens [T] or of
    sequences [S]. A sequence has at least two tokens, so T and S differ."""
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
