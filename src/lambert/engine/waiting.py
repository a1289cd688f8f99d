"""How the threads of a process wait for one another: briefly awake, then asleep.

By default a thread of OpenMP that has nothing to do spins for some milliseconds, to be ready at once. On a computer
that other programs use too, it spins while the thread that it waits for is not running, takes the processor time that
this thread needs, and the run becomes several times slower (docs/pretrain.md).
"""

import os
import sys

SPINS = "1000"
"""Turns of GNU OpenMP's waiting loop before a thread sleeps, about 15 microseconds; the default is 300,000.
Source: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html"""
_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
"""Variables with which a user chooses how threads wait."""


def settings() -> dict[str, str]:
    """Returns the environment variable that sets SPINS in a new process; empty if the user has chosen, on other systems
    than Linux, or if there is one thread."""
    if not sys.platform.startswith("linux") or os.environ.get("OMP_NUM_THREADS") == "1":
        return {}
    return {} if any(name in os.environ for name in _CHOICES) else {"GOMP_SPINCOUNT": SPINS}
