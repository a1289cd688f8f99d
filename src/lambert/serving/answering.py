"""From the texts of a request to its answers: tokenized in threads, computed with those of other requests."""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from lambert.core.errors import DataError, LambertError, UsageError
from lambert.inference.scheduler import Scheduler
from lambert.inference.text_model import Request, Text, TextModel
from lambert.tasks import Row

R = TypeVar("R")


class Answering:
    """Answers requests about any of the models of a service.

    Args:
        scheduler: Computes the sequences.
        seconds: Longest time of a request.
    """

    def __init__(self, scheduler: Scheduler, seconds: float) -> None:
        self.scheduler, self._seconds = scheduler, seconds
        self._pool = ThreadPoolExecutor(max(2, os.cpu_count() or 1), "lambert-texts")

    async def answer(self, make: Callable[[], Request[R]]) -> R:
        """Returns the result of a request. If the caller is cancelled, sequences that wait are not computed.

        Raises what `make` raises, OverloadedError or ExpiredError.
        """
        loop = asyncio.get_running_loop()
        begin = loop.time()
        request = await loop.run_in_executor(self._pool, make)
        left = self._seconds - (loop.time() - begin)
        outputs = await asyncio.wrap_future(self.scheduler.submit(request.work, request.source, left))
        return await loop.run_in_executor(self._pool, request.finish, outputs)

    async def predictions(self, model: TextModel, texts: Sequence[Text]) -> list[Row]:
        """Returns the prediction for each text, or {"error": ...} for one that the task cannot read."""
        places = [f"inputs[{number}]" for number in range(len(texts))]
        try:
            return await self.answer(lambda: model.request(texts, places))
        except (DataError, UsageError):
            loop = asyncio.get_running_loop()
            errors = await loop.run_in_executor(self._pool, _errors, model, texts, places)
        good = [number for number in range(len(texts)) if number not in errors]
        answers: dict[int, Row] = {number: {"error": str(error)} for number, error in errors.items()}
        if good:
            kept = [texts[number] for number in good]
            found = await self.answer(lambda: model.request(kept, [places[number] for number in good]))
            answers |= dict(zip(good, found, strict=True))
        return [answers[number] for number in range(len(texts))]

    def close(self) -> None:
        """Finishes what was accepted."""
        self.scheduler.close()
        self._pool.shutdown()


def _errors(model: TextModel, texts: Sequence[Any], places: Sequence[str]) -> dict[int, LambertError]:
    """Returns the error of each text that the task cannot read, by its number."""
    found: dict[int, LambertError] = {}
    for number, (text, place) in enumerate(zip(texts, places, strict=True)):
        try:
            model.request([text], [place])
        except (DataError, UsageError) as error:
            found[number] = error
    return found
