"""Configures the C library's allocator for training: memory that a tensor frees is kept for the next tensor.

By default glibc returns blocks larger than 32 MB to the system at once, and the next tensor of that size waits while
the kernel clears its pages again. Also, the kernel uses pages of 4 kB unless it is asked for large ones. Together this
costs some 5% of a step of BERT-Base on a CPU (docs/design/0004).
"""

import os

TUNABLES = {
    "glibc.malloc.mmap_threshold": 2**32,  # bytes; larger blocks get a mapping of their own, which `free` returns
    "glibc.malloc.trim_threshold": 2**33,  # bytes; more free memory than this at the heap's end is returned
    "glibc.malloc.hugetlb": 1,  # use transparent huge pages
}
"""Source: https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html"""


def settings() -> dict[str, str]:
    """Returns the environment variable that sets TUNABLES in a new process; empty without glibc, or if the user has set
    GLIBC_TUNABLES, a MALLOC_ variable or LD_PRELOAD."""
    chosen = [name for name in os.environ if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")]
    if chosen or not _has_glibc():
        return {}
    return {"GLIBC_TUNABLES": ":".join(f"{name}={value}" for name, value in TUNABLES.items())}


def _has_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):
        return False
