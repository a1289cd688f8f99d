"""Runs encoders in this process or in worker processes, with the same results in the same order.

Worker processes are started as `python -m lambert.corpus.workers` and communicate over pipes. A caller's script
therefore needs no `if __name__ == "__main__"`, and the workers inherit no state that a fork would break.
"""

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from lambert.core.errors import MachineError
from lambert.corpus.encoding import Encoded, Encoder

Item = TypeVar("Item")
Batch = TypeVar("Batch", bound=tuple[list[str], Any])

LEXICON_BYTES = 192 << 20  # divided among the processes, which keeps their total memory below 1 GB


class _Process:
    """An `Encoder` in a worker process."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        import lambert

        root = str(Path(lambert.__file__).parents[1])
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        environment["OPENBLAS_NUM_THREADS"] = "1"  # OpenBLAS buffers take tens of MB per thread
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lambert.corpus.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # the parent process handles interrupts
        )
        self._send(arguments)

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin, protocol=5)
        self._process.stdin.flush()

    def __call__(self, texts: list[str]) -> Encoded:
        assert self._process.stdout is not None
        try:
            self._send(texts)
            encoded: Encoded = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise MachineError(
                "A process that encodes text ended before its work (out of memory?). Try workers = 1."
            ) from error
        return encoded

    def close(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        self._process.wait()


def encode(batches: Iterable[Batch], workers: int, arguments: tuple[str, str, str]) -> Iterator[tuple[Batch, Encoded]]:
    """Yields each batch, in order, with the result of an `Encoder(*arguments)` for the texts in `batch[0]`.

    With `workers` = 1 this process encodes; otherwise `workers` worker processes do. At most `workers` + 2 batches are
    in memory.
    """
    local = threading.local()
    started: list[_Process] = []
    memory = LEXICON_BYTES // workers

    def run(texts: list[str]) -> Encoded:
        if not hasattr(local, "encoder"):
            if workers == 1:
                local.encoder = Encoder(*arguments, memory=memory)
            else:
                local.encoder = _Process((*arguments, memory))
                started.append(local.encoder)
        encoded: Encoded = local.encoder(texts)
        return encoded

    pending: deque[tuple[Batch, Future[Encoded]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="encode")
    try:
        for batch in batches:
            pending.append((batch, pool.submit(run, batch[0])))
            if len(pending) >= workers + 2:
                first, future = pending.popleft()
                yield first, future.result()
        while pending:
            first, future = pending.popleft()
            yield first, future.result()
    finally:
        for _, future in pending:
            future.cancel()
        pool.shutdown(wait=True)
        for process in started:
            process.close()


def ahead(make: Callable[[], Iterator[Item]], depth: int = 2) -> Iterator[Item]:
    """Yields the items of `make()`, which runs in a thread at most `depth` items ahead. Its exceptions are raised
    here."""
    items: queue.Queue[tuple[str, Any]] = queue.Queue(depth)
    stop = threading.Event()

    def put(kind: str, item: Any) -> bool:
        while not stop.is_set():
            with suppress(queue.Full):
                items.put((kind, item), timeout=0.1)
                return True
        return False

    def run() -> None:
        try:
            for item in make():
                if not put("item", item):
                    return
        except BaseException as error:
            put("error", error)
        else:
            put("end", None)

    thread = threading.Thread(target=run, name="read", daemon=True)
    thread.start()
    try:
        while True:
            kind, item = items.get()
            if kind == "end":
                return
            if kind == "error":
                raise item
            yield item
    finally:
        stop.set()
        thread.join()


def _serve() -> None:
    inward, outward = sys.stdin.buffer, sys.stdout.buffer
    encoder = Encoder(*pickle.load(inward))
    while True:
        try:
            texts = pickle.load(inward)
        except EOFError:
            return
        pickle.dump(encoder(texts), outward, protocol=5)
        outward.flush()


if __name__ == "__main__":
    _serve()
