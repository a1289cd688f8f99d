"""The C library's allocator, set for training: memory that a tensor gives back is kept for the next tensor.

By default glibc returns blocks beyond 32 MB to the system at once, and the next tensor of that size waits for the
kernel to clear its pages again; and the kernel deals in pages of 4 kB unless it is asked for large ones. Together some
5% of a step of BERT-Base on a CPU (docs/design/0004).
"""

import os
import sys
from contextlib import suppress

TUNABLES = {
    "glibc.malloc.mmap_threshold": 2**32,  # bytes from which a block is a mapping of its own, returned when it is freed
    "glibc.malloc.trim_threshold": 2**33,  # bytes at the heap's end beyond which they are returned
    "glibc.malloc.hugetlb": 1,  # large pages, where the kernel has them at hand
}
"""https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html"""


def keep_memory() -> None:
    """Starts this very command again with TUNABLES set, as the process id it has: glibc reads them at no other time.

    Does nothing where `settings` is empty; so never twice.
    """
    if not (tunables := settings()):
        return
    os.environ |= tunables
    sys.stdout.flush()
    with suppress(OSError):  # then it is slower
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def settings() -> dict[str, str]:
    """The variable that sets TUNABLES in a process to be started; nothing without glibc, or where GLIBC_TUNABLES, a
    MALLOC_ variable or LD_PRELOAD says what the user wants."""
    chosen = [name for name in os.environ if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")]
    if chosen or not _has_glibc():
        return {}
    return {"GLIBC_TUNABLES": ":".join(f"{name}={value}" for name, value in TUNABLES.items())}


def _has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):
        return False
