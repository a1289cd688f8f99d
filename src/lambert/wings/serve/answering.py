"""Computes the answers to the texts of a request, which are tokenized in threads and computed together with those of
other requests.

Small work is done in the event loop, because passing it to a thread and back takes 0.1 ms of a core, longer than the
work.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from lambert.inference.scheduler import Scheduler
from lambert.inference.text_model import Request, Text, TextModel
from lambert.tasks import Row
from lambert.wings.serve.admission import CURRENT

R = TypeVar("R")
_SMALL = 1024
"""Maximum number of characters, bytes or numbers that are tokenized, parsed or encoded in the event loop, in about 0.3
ms."""
_TEXT = 256
"""Fixed cost of a text, as the number of characters that take as long."""
_RELEASED = 16
"""Number of requests that are finished before the event loop serves others."""


class Answering:
    """Answers requests about any of the models of a service.

    Args:
        scheduler: Computes the sequences.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        threads = max(2, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, "lambert-texts")
        self.turns = threads + 1
        """Number of requests that are parsed and tokenized at the same time, enough that no thread waits for the event
        loop."""
        self._arrivals = _Arrivals()

    async def call(self, function: Callable[[], R], size: int) -> R:
        """Calls a function, in a thread if `size`, the characters, bytes or numbers that it reads, is not small. A
        function for a thread is not called if the caller is cancelled first."""
        if size <= _SMALL:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def answer(self, make: Callable[[], Request[R]], size: int) -> tuple[R, int]:
        """Returns the result of a request and the number of its tokens. If the caller is cancelled, its waiting
        sequences are not computed.

        Args:
            make: Makes the request from texts.
            size: Number of their characters.

        Raises what `make` raises.
        """
        request, tokens = await self._in_turn(lambda: add_token_count(make()), size)
        return await self._compute(request, size, tokens), tokens

    async def predictions(self, model: TextModel, texts: Sequence[Text], top: int = 0) -> list[Row]:
        """Returns the prediction for each text, or {"error": ...} for one that the task cannot read."""
        places, size = [f"inputs[{number}]" for number in range(len(texts))], count_characters(texts)
        good, request, errors = await self._in_turn(lambda: model.readable(texts, places, top), size)
        answers: dict[int, Row] = {number: {"error": str(error)} for number, error in errors.items()}
        if request is not None:
            found = await self._compute(request, size, add_token_count(request)[1])
            answers |= dict(zip(good, found, strict=True))
        return [answers[number] for number in range(len(texts))]

    async def _in_turn(self, function: Callable[[], R], size: int) -> R:
        """As `call`, in the turn of the request that is being answered."""
        accepted = CURRENT.get()
        if accepted is not None:
            await accepted.wait_for_turn()
        return await self.call(function, size)

    async def _compute(self, request: Request[R], size: int, tokens: int) -> R:
        future = self.scheduler.submit(request.ready, request.source)
        accepted = CURRENT.get()
        if accepted is not None:
            accepted.give_back_turn(tokens)
        await self._arrivals.wait(future)
        if future.cancelled():  # the scheduler was closed
            raise asyncio.CancelledError
        outputs = future.result()
        return await self.call(lambda: request.finish(outputs), size)

    def close(self, *, now: bool = False) -> None:
        """Computes the accepted requests, or with `now` only the present batches, and ends. Does not wait for texts
        that are tokenized for clients that have left."""
        self.scheduler.close(now=now)
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Arrivals:
    """Reports to the event loop which Futures of threads are done. The Futures of one batch wake it once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: list[asyncio.Future[None]] = []

    async def wait(self, future: "Future[Any]") -> None:
        """Waits until the Future is done. Cancels it if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(lambda _: self._add(loop, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            future.cancel()
            raise

    def _add(self, loop: asyncio.AbstractEventLoop, waiter: "asyncio.Future[None]") -> None:
        with self._lock:
            wake = not self._arrived
            self._arrived.append(waiter)
        if wake:
            try:
                loop.call_soon_threadsafe(self._release, loop)
            except RuntimeError:  # the loop has ended, and no caller waits
                with self._lock:
                    self._arrived.clear()

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived[:_RELEASED], self._arrived[_RELEASED:]
            more = bool(self._arrived)
        for waiter in arrived:
            if not waiter.done():
                waiter.set_result(None)
        if more:
            loop.call_soon(self._release, loop)


def count_characters(texts: Sequence[Text]) -> int:
    """Returns the number of characters of texts and rows, plus the fixed cost of each text."""
    return _TEXT * len(texts) + sum(
        sum(len(str(value)) for value in text.values()) if isinstance(text, Mapping) else len(text) for text in texts
    )


def add_token_count(request: Request[R]) -> tuple[Request[R], int]:
    indices_S = np.arange(request.source.size(0))
    return request, int(request.source.lengths(np.zeros_like(indices_S), indices_S).sum()) if len(indices_S) else 0
