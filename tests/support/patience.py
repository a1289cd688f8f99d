"""How long tests wait on a machine that does other things too."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

HANGS = 300.0
"""Seconds after which what a test waits for will not come. It only ends a test that fails."""


def patient(seconds: float) -> float:
    """What is promised to last this long may last here and now: the longer the more processes wait for each core.

    The load is the last minute's: to be asked when the time is over. A load of one a core leaves the promise as it is.
    """
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@contextmanager
def limited(seconds: float = 60.0) -> Iterator[None]:
    """Fails where the block, in the main thread, takes longer, by the processor's time of this process."""

    def fail(number: int, frame: object) -> NoReturn:
        raise TimeoutError(f"not done in {seconds} seconds")

    before = signal.signal(signal.SIGPROF, fail)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
