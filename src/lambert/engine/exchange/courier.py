"""A thread that does one thing after another, while its owner goes on."""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

_LEAVING_SECONDS = 2.0
"""How long to wait for the thread at the end: it may hang in a collective that nobody else will come to."""


class Courier:
    """A thread that does one thing after another. On a GPU, on a stream of its own, each behind what the device had to
    do when it was handed over."""

    def __init__(self, device: torch.device) -> None:
        self.busy = 0.0
        """Seconds of work between the last two calls of `wait`."""
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._work: SimpleQueue[tuple[Callable[[], None], Any] | None] = SimpleQueue()
        self._idle, self._stop = threading.Event(), False
        self._error: BaseException | None = None
        self._spent = 0.0
        self._thread = threading.Thread(target=self._run, name="lambert-exchange", daemon=True)
        self._thread.start()

    def take(self, task: Callable[[], None]) -> None:
        event = None
        if self._stream is not None:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
        self._work.put((task, event))

    def wait(self) -> None:
        """Until everything is done; raises what a task raised, after which the others were left out."""
        self._idle.clear()
        self._work.put(None)
        self._idle.wait()
        self.busy, self._spent = self._spent, 0.0
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        self._stop = True
        self._work.put(None)
        self._thread.join(_LEAVING_SECONDS)

    def _run(self) -> None:
        if self._stream is not None:
            torch.cuda.set_device(self._device)
            torch.cuda.set_stream(self._stream)
        while True:
            entry = self._work.get()
            if entry is None:
                self._idle.set()
                if self._stop:
                    return
                continue
            if self._error is not None:
                continue
            task, event = entry
            began = time.perf_counter()
            try:
                if self._stream is not None:
                    self._stream.wait_event(event)
                task()
            except BaseException as error:
                self._error = error
            self._spent += time.perf_counter() - began
