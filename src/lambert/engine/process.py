"""The process of a command: its standard streams; and for one that runs a model, the variables and limits that
libraries read when they are loaded, and their import.

Memory that a tensor frees is kept for the next tensor. By default glibc returns blocks larger than 32 MB to the system
at once, and the next tensor of that size waits while the kernel clears its pages again. Also, the kernel uses pages of
4 kB unless it is asked for large ones. Together this costs some 5% of a step of BERT-Base on a CPU (docs/design/0004).

By default, an idle OpenMP thread spins for some milliseconds before it sleeps. On a computer that also runs other
programs, it then takes the processor time that the thread it waits for needs, and the run becomes several times slower
(docs/pretrain.md). So the threads of Lambert spin briefly.
"""

import codecs
import gc
import importlib
import io
import os
import resource
import sys
from contextlib import suppress
from types import ModuleType

from lambert.core.errors import MachineError
from lambert.core.signals import block_signals, unblock_signals

INITIAL_ENVIRONMENT = dict(os.environ)
"""The environment at the start of this process, before Lambert changed it."""
TUNABLES = {
    "glibc.malloc.mmap_threshold": 2**32,  # bytes; larger blocks get a mapping of their own, which `free` returns
    "glibc.malloc.trim_threshold": 2**33,  # bytes; more free memory than this at the heap's end is returned
    "glibc.malloc.hugetlb": 1,  # use transparent huge pages
}
"""Source: https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html"""
SPINS = "1000"
"""Turns of GNU OpenMP's waiting loop before a thread sleeps, about 15 microseconds; the default is 300,000.
Source: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html"""
_WAITS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
"""Variables with which a user chooses how threads wait."""
_ESCAPES = "lambert.escapes"
"""Name of the error handler of `prepare_streams`."""
LEAST_ADDRESS_SPACE = 700_000_000
"""Bytes. Measured: importing torch 2.13 for CPUs takes 606 MB; with less its C++ library aborts the process."""
LEAST_FILES = 16
"""Measured: a run of one process starts with 16 open files allowed, and does not start with 8."""


def prepare_streams() -> None:
    """Opens /dev/null in place of closed standard streams, as of a daemon: a file that is opened later would otherwise
    get the descriptor of one. Makes standard output escape what its encoding lacks, as in JSON (\\u00e9)."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, "w" if number else "r")  # noqa: SIM115 - gets the lowest free descriptor, `number`
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    codecs.register_error(_ESCAPES, _escape)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        with suppress(OSError):  # of a fork whose standard output was a file, and is a pipe
            sys.stdout.reconfigure(errors=_ESCAPES)


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    import json  # here, because the process is seldom in need of it

    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def allocator_variables() -> dict[str, str]:
    """Returns the environment variable that sets TUNABLES in a new process; empty without glibc, or if the user has set
    GLIBC_TUNABLES, a MALLOC_ variable or LD_PRELOAD."""
    chosen = [name for name in os.environ if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")]
    if chosen or not _has_glibc():
        return {}
    return {"GLIBC_TUNABLES": ":".join(f"{name}={value}" for name, value in TUNABLES.items())}


def thread_variables() -> dict[str, str]:
    """Returns the environment variable that sets SPINS in a new process; empty if the user has chosen, on other systems
    than Linux, or if there is one thread."""
    if not sys.platform.startswith("linux") or os.environ.get("OMP_NUM_THREADS") == "1":
        return {}
    return {} if any(name in os.environ for name in _WAITS) else {"GOMP_SPINCOUNT": SPINS}


def variables() -> dict[str, str]:
    """Returns the environment variables that a process which runs a model should have and this one lacks."""
    return allocator_variables() | thread_variables()


def count_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def replace() -> None:
    """Replaces this process by the same command with `variables`, under the same process id: glibc and OpenMP read them
    only at the start of a process.

    Does nothing if `variables` is empty, so it never happens twice.
    """
    if not (lacking := variables()):
        return
    os.environ |= lacking
    sys.stdout.flush()
    block_signals()  # a signal that arrives now is delivered to the new program
    with suppress(OSError):  # the command then runs without them, and slower
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    unblock_signals()


def check_limits() -> None:
    """Raises MachineError under resource limits that would make torch's import or the first open file fail."""
    space, files = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE))
    if 0 <= space < LEAST_ADDRESS_SPACE:
        raise MachineError(
            f"An address space of {space / 1e6:,.0f} MB is too small: torch alone takes about "
            f"{LEAST_ADDRESS_SPACE / 1e6:,.0f} MB. Raise the limit with ulimit -v."
        )
    if 0 <= files < LEAST_FILES:
        raise MachineError(f"{files} open files are too few: at least {LEAST_FILES} are needed. Raise ulimit -n.")


def import_quickly(name: str) -> ModuleType:
    """Returns the module `name`, imported while Python does not collect garbage.

    torch alone creates half a million objects that live as long as the process. Searching them for garbage, again and
    again while they are created and once more when the process ends, takes about 0.6 seconds. Afterwards all objects of
    the process are exempt from searches (`gc.freeze`).
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


def _has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):
        return False
