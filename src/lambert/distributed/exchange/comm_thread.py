"""The communication thread: runs tasks in order while the thread that queued them continues."""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

_LEAVING_SECONDS = 2.0
"""How long `close` waits for the thread, which may hang in a collective that no other rank will enter."""


class CommThread:
    """A thread that runs tasks in order. On a GPU it uses a stream of its own, and each task starts after the work that
    was queued on the device when `take` was called."""

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
        """Queues `task` and returns at once."""
        event = None
        if self._stream is not None:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
        self._work.put((task, event))

    def wait(self) -> None:
        """Waits until all tasks are done. If a task raised an exception, the later tasks are dropped and the exception
        is raised here."""
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
        """Ends the thread after the tasks that are queued."""
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
