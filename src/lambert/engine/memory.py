"""The memory of a device: how much is free, whether an error says that it ran out, and freeing it then."""

import gc
import os
import resource
from contextlib import suppress
from pathlib import Path, PurePosixPath

import torch

_NO_LIMIT = 2**62
_TEXTS = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""How torch's allocators put it in errors of no class of their own."""


def free_memory(device: torch.device) -> int:
    """Bytes that this process may still take: of a GPU, or of the host's memory and of the control groups around this
    process, less what its address space is limited to. Other processes may take them too."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return min(_host_bytes(), _group_bytes(), _address_bytes())


def ran_out(error: BaseException) -> bool:
    """Whether this error says that memory ran out."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)
    )


def release(device: torch.device) -> None:
    """Frees what an abandoned update held: its traceback keeps tensors in cycles, a GPU's allocator keeps blocks."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _host_bytes() -> int:
    """Memory that can be had without swapping; where the system does not say, half of what the machine has."""
    try:
        return _fields(Path("/proc/meminfo"))["MemAvailable:"] * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _group_bytes(mount: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """What the limits of the control groups (Linux, versions 1 and 2) around this process leave. Cached files that are
    not in use count as free, as the kernel drops them first."""
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
        # Inside a container the path is often that of the host: what exists of it is looked at, up to the root.
        for group in (root / folder, *(root / parent for parent in folder.parents)):
            with suppress(OSError, ValueError, KeyError):
                held = int((group / used).read_text()) - _fields(group / "memory.stat")[cached]
                free = min(free, int((group / limit).read_text()) - held)  # "max" is no number: no limit here
    return max(0, free)


def _address_bytes() -> int:
    """What `ulimit -v` leaves."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return _NO_LIMIT
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    return max(0, limit - pages * os.sysconf("SC_PAGE_SIZE"))


def _fields(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    words = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {word[0]: int(word[1]) for word in words if len(word) > 1}
