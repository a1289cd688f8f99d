"""Device memory: how much is free, whether an error is an out-of-memory error, and how to free memory after one."""

import gc
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path, PurePosixPath

import torch

_NO_LIMIT = 2**62
_TEXTS = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""Texts by which out-of-memory errors of torch's allocators are recognised if they are plain RuntimeErrors."""


def free_memory(device: torch.device) -> int:
    """Returns the bytes that this process can still allocate on a GPU; on other devices the minimum of what the host's
    memory, the control groups of this process and the limit of its address space leave. Other processes may allocate
    the same bytes."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return min(_host_bytes(), _group_bytes(), _address_bytes())


def ran_out(error: BaseException) -> bool:
    """Returns whether `error` is an out-of-memory error."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)
    )


def release(device: torch.device) -> None:
    """Frees the memory of an aborted update: reference cycles of its traceback hold tensors, and a GPU's caching
    allocator holds blocks."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def peak_megabytes(device: torch.device) -> int:
    """Returns the peak of this process's memory so far, in MB: on a GPU that of tensors, elsewhere of host memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 1_000_000
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 1_000_000


def _host_bytes() -> int:
    """Returns the bytes available without swapping; half of the machine's memory if the system does not report them."""
    try:
        return _fields(Path("/proc/meminfo"))["MemAvailable:"] * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _group_bytes(mount: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Returns the bytes that the limits of this process's control groups (Linux, versions 1 and 2) leave. Inactive
    cached files count as free, because the kernel drops them first."""
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return _NO_LIMIT
    free = _NO_LIMIT
    for _, controllers, path in lines:
        if controllers and "memory" not in controllers.split(","):
            continue
        root, limit, used, cached = (
            (mount / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if controllers
            else (mount, "memory.max", "memory.current", "inactive_file")
        )
        folder = PurePosixPath(path.lstrip("/"))
        # Inside a container the path is often the host's: the loop reads those of its parents that exist.
        for group in (root / folder, *(root / parent for parent in folder.parents)):
            with suppress(OSError, ValueError, KeyError):
                held = int((group / used).read_text()) - _fields(group / "memory.stat")[cached]
                free = min(free, int((group / limit).read_text()) - held)  # ValueError for "max": no limit
    return max(0, free)


def _address_bytes() -> int:
    """Returns the bytes that `ulimit -v` leaves."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return _NO_LIMIT
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    return max(0, limit - pages * os.sysconf("SC_PAGE_SIZE"))


def _fields(path: Path) -> dict[str, int]:
    """Returns the numbers of a file whose lines are a name and a number, by name."""
    words = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {word[0]: int(word[1]) for word in words if len(word) > 1}
