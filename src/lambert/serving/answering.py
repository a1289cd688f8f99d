"""From the texts of a request to its answers: tokenized in threads, computed with those of other requests."""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from lambert.inference.scheduler import Scheduler
from lambert.inference.text_model import Request, Text, TextModel
from lambert.tasks import Row

R = TypeVar("R")


class Answering:
    """Answers requests about any of the models of a service.

    Args:
        scheduler: Computes the sequences.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._pool = ThreadPoolExecutor(max(2, os.cpu_count() or 1), "lambert-texts")

    async def in_thread(self, function: Callable[[], R]) -> R:
        """Calls a function in a thread. It is not called if the caller is cancelled before."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def answer(self, make: Callable[[], Request[R]]) -> tuple[R, int]:
        """Returns the result of a request and the number of its tokens. If the caller is cancelled, sequences that wait
        are not computed.

        Raises what `make` raises, or OverloadedError.
        """
        request, tokens = await self.in_thread(lambda: _with_tokens(make()))
        return await self._computed(request), tokens

    async def predictions(self, model: TextModel, texts: Sequence[Text], top: int = 0) -> list[Row]:
        """Returns the prediction for each text, or {"error": ...} for one that the task cannot read."""
        places = [f"inputs[{number}]" for number in range(len(texts))]
        good, request, errors = await self.in_thread(lambda: model.readable(texts, places, top))
        answers: dict[int, Row] = {number: {"error": str(error)} for number, error in errors.items()}
        if request is not None:
            found = await self._computed(request)
            answers |= dict(zip(good, found, strict=True))
        return [answers[number] for number in range(len(texts))]

    async def _computed(self, request: Request[R]) -> R:
        outputs = await asyncio.wrap_future(self.scheduler.submit(request.work, request.source))
        return await self.in_thread(lambda: request.finish(outputs))

    def close(self, *, now: bool = False) -> None:
        """Computes what was accepted; `now`: ends after the present batches. Texts that are being tokenized for nobody
        are not waited for."""
        self.scheduler.close(now=now)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _with_tokens(request: Request[R]) -> tuple[Request[R], int]:
    indices_S = np.arange(request.source.size(0))
    return request, int(request.source.lengths(np.zeros_like(indices_S), indices_S).sum()) if len(indices_S) else 0
