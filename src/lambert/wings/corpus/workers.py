"""Processes items in this process or in worker processes, with the same results in the same order.

Worker processes are started as `python -m lambert.wings.corpus.workers` and communicate over pipes. A caller's script
therefore needs no `if __name__ == "__main__"`, and the workers inherit no state that a fork would break.
"""

import os
import pickle
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from lambert.core.errors import LambertError, MachineError
from lambert.text.tokenizers.encoding import Encoded, Encoder
from lambert.wings.corpus.reading.pieces import Piece

Item = TypeVar("Item")
Batch = TypeVar("Batch", bound=tuple[list[str], Any])
Target = Callable[..., Callable[[Any], Any]]
"""A class of this package whose objects are called with one item at a time."""

TELL_SECONDS = 0.5
"""Seconds between two calls of `tell`."""
AHEAD = 3  # items
LEXICON_BYTES = 192 << 20  # divided among the processes, which keeps their total memory below 1 GB


class _Process:
    """A worker process that holds an object `target(*arguments)` of the last target it was given."""

    def __init__(self) -> None:
        import lambert

        root = str(Path(lambert.__file__).parents[1])
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        environment["OPENBLAS_NUM_THREADS"] = "1"  # OpenBLAS buffers take tens of MB per thread
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lambert.wings.corpus.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # the parent process handles interrupts
        )
        self.tell: Callable[[float], None] = ignore_progress
        self._target: tuple[Any, ...] | None = None

    def use(self, target: Target, arguments: tuple[Any, ...]) -> None:
        """Makes a new object `target(*arguments)` for the next items."""
        self._target = (target.__module__, target.__name__, arguments)

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin, protocol=5)
        self._process.stdin.flush()

    def __call__(self, item: Any) -> Any:
        assert self._process.stdout is not None
        try:
            self._send((self._target, item))
            self._target = None
            while isinstance(answer := pickle.load(self._process.stdout), float):
                self.tell(answer)
            result, error = answer
        except (EOFError, OSError, pickle.UnpicklingError) as problem:
            raise MachineError(
                "A process that prepares text ended early (out of memory?). Try workers = 1."
            ) from problem
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        self._process.wait()


_idle: ContextVar[list[_Process] | None] = ContextVar("_idle", default=None)


@contextmanager
def share_processes() -> Iterator[None]:
    """A context in which the calls of `run` share worker processes, which end with it. Starting a process takes 0.6 s
    of processor time."""
    idle: list[_Process] = []
    token = _idle.set(idle)
    try:
        yield
    finally:
        _idle.reset(token)
        for process in idle:
            process.close()


def _process(idle: list[_Process] | None) -> _Process:
    with suppress(IndexError):  # another thread may take the last one
        return (idle or []).pop()
    return _Process()


def encode(batches: Iterable[Batch], workers: int, arguments: tuple[str, str, str]) -> Iterator[tuple[Batch, Encoded]]:
    """Yields each batch, in order, with the result of an `Encoder(*arguments)` for the texts in `batch[0]`."""
    yield from run(batches, workers, Encoder, (*arguments, LEXICON_BYTES // workers), lambda batch: batch[0])


def run(
    items: Iterable[Item], workers: int, target: Target, arguments: tuple[Any, ...],
    message: Callable[[Item], Any] = lambda item: item, waiting: int = 2,
    told: Callable[[Item, float], None] | None = None,
) -> Iterator[tuple[Item, Any]]:  # fmt: skip
    """Yields each item, in order, with the result of `target(*arguments)(message(item))`.

    With `workers` = 1 this process computes the results; otherwise `workers` worker processes do, each with an object
    of its own. At most `workers` + `waiting` items are in memory. A LambertError of a worker is raised here.

    With `told`, the objects have a function `tell`, which they call with the share of the current item that is done;
    `told` is then called, in several threads, with the item and this share.
    """
    local = threading.local()
    started: list[_Process] = []
    idle = _idle.get()
    finished = False

    def compute(item: Item, given: Any) -> Any:
        if not hasattr(local, "target"):
            if workers == 1:
                local.target = target(*arguments)
            else:
                local.target = _process(idle)
                started.append(local.target)
                local.target.use(target, arguments)
        if told is not None:
            local.target.tell = partial(told, item)
        return local.target(given)

    pending: deque[tuple[Item, Future[Any]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="prepare")
    try:
        for item in items:
            pending.append((item, pool.submit(compute, item, message(item))))
            if len(pending) >= workers + waiting:
                first, future = pending.popleft()
                yield first, future.result()
        while pending:
            first, future = pending.popleft()
            yield first, future.result()
        finished = True
    finally:
        for _, future in pending:
            future.cancel()
        if idle is not None and finished:
            idle += started
        else:
            for process in started:
                process.close()
        pool.shutdown(wait=True)


def ignore_progress(share: float) -> None:
    """The `tell` of an object until `run` sets another one."""


def report_progress(pieces: Iterator[Piece], expected: float, tell: Callable[[float], None]) -> Iterator[Piece]:
    """Yields the pieces, and reports at intervals how much of the expected number of characters is done."""
    done, spoke = 0, time.monotonic()
    for piece in pieces:
        yield piece
        done += len(piece.text)
        if (now := time.monotonic()) - spoke >= TELL_SECONDS:
            spoke = now
            tell(min(done / max(expected, 1.0), 0.99))


def read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yields the items of an iterator, which a thread computes at most `AHEAD` items ahead."""
    end: Any = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="read")
    pending = deque(pool.submit(next, items, end) for _ in range(AHEAD))
    try:
        while (item := pending.popleft().result()) is not end:
            pending.append(pool.submit(next, items, end))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with(parent: int) -> None:
    """Ends this process when its parent has ended, however it ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _serve() -> None:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    inward, outward = sys.stdin.buffer, sys.stdout.buffer
    target: Any = None

    def tell(share: float) -> None:
        pickle.dump(float(share), outward, protocol=5)
        outward.flush()

    while True:
        try:
            new, item = pickle.load(inward)
        except (EOFError, pickle.UnpicklingError):
            return
        answer: tuple[Any, LambertError | None]
        try:
            if new:
                target = None  # frees its memory first
                module, name, arguments = new
                target = getattr(import_module(module), name)(*arguments)
                if hasattr(target, "tell"):
                    target.tell = tell
            answer = target(item), None
        except LambertError as error:
            answer = None, error
        try:
            pickle.dump(answer, outward, protocol=5)
            outward.flush()
        except BrokenPipeError:  # the parent has ended; Python would write the rest to the pipe again at its exit
            os._exit(1)


if __name__ == "__main__":
    _serve()
