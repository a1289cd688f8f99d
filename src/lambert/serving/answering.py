"""From the texts of a request to its answers: tokenized in threads, computed with those of other requests."""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from lambert.core.errors import DataError, LambertError, UsageError
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
        outputs = await asyncio.wrap_future(self.scheduler.submit(request.work, request.source))
        return await self.in_thread(lambda: request.finish(outputs)), tokens

    async def predictions(self, model: TextModel, texts: Sequence[Text]) -> list[Row]:
        """Returns the prediction for each text, or {"error": ...} for one that the task cannot read."""
        places = [f"inputs[{number}]" for number in range(len(texts))]
        try:
            return (await self.answer(lambda: model.request(texts, places)))[0]
        except (DataError, UsageError):
            errors = await self.in_thread(lambda: _errors(model, texts, places))
        good = [number for number in range(len(texts)) if number not in errors]
        answers: dict[int, Row] = {number: {"error": str(error)} for number, error in errors.items()}
        if good:
            kept = [texts[number] for number in good]
            found, _ = await self.answer(lambda: model.request(kept, [places[number] for number in good]))
            answers |= dict(zip(good, found, strict=True))
        return [answers[number] for number in range(len(texts))]

    def close(self, *, now: bool = False) -> None:
        """Computes what was accepted; `now`: ends after the present batches. Texts that are being tokenized for nobody
        are not waited for."""
        self.scheduler.close(now=now)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _with_tokens(request: Request[R]) -> tuple[Request[R], int]:
    indices_S = np.arange(request.source.size(0))
    return request, int(request.source.lengths(np.zeros_like(indices_S), indices_S).sum()) if len(indices_S) else 0


def _errors(model: TextModel, texts: Sequence[Any], places: Sequence[str]) -> dict[int, LambertError]:
    """Returns the error of each text that the task cannot read, by its number."""
    found: dict[int, LambertError] = {}
    for number, (text, place) in enumerate(zip(texts, places, strict=True)):
        try:
            model.request([text], [place])
        except (DataError, UsageError) as error:
            found[number] = error
    return found
