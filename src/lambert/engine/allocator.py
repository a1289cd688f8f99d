"""The C library's allocator, set for training: memory that a tensor gives back is kept for the next tensor.

By default glibc returns every large block to the system at once, and the next tensor waits for the kernel to clear its
pages again: a fifth to a third of a step of a small model on a CPU (benchmarks/cpu-2-cores). Must run before torch
allocates its first tensor.
"""

import ctypes
import os
import sys

_MOST = 2**31 - 1
_SETTINGS = {-1: _MOST, -4: 0, -8: 1}
"""mallopt's numbers of M_TRIM_THRESHOLD (free memory that is given back), M_MMAP_MAX (blocks with a mapping of their
own), M_ARENA_MAX: from malloc.h of glibc."""


def keep_memory() -> bool:
    """Whether it could be set: with glibc on Linux, unless GLIBC_TUNABLES or MALLOC_ variables say what the user wants.

    torch is asked for huge pages (THP_MEM_ALLOC_ENABLE) at the same time.
    """
    chosen = [name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]
    if sys.platform != "linux" or chosen:
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    return all([mallopt(setting, value) == 1 for setting, value in _SETTINGS.items()])
