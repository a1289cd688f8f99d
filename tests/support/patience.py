"""How long tests wait on a machine that does other things too."""

import os

HANGS = 300.0
"""Seconds after which what a test waits for will not come. It only ends a test that fails."""


def patient(seconds: float) -> float:
    """What is promised to last this long may last here and now: the longer the more processes wait for each core.

    The load is the last minute's: to be asked when the time is over. A load of one a core leaves the promise as it is.
    """
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
