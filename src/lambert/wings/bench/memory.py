"""Peak memory of this process: from the allocator of a GPU, or from the system."""

import re
import resource
import sys
from pathlib import Path

import torch


def allocated(device: torch.device) -> int:
    """Returns the bytes in use on a GPU and resets its peak, for `risen`; 0 on other devices."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def risen(device: torch.device, before: int) -> int:
    """Returns the rise of a GPU's peak memory above `before`, in MB; 0 on other devices."""
    return (torch.cuda.max_memory_allocated(device) - before) // 2**20 if device.type == "cuda" else 0


def peak_mb(device: torch.device) -> int:
    """Returns the peak memory of this process on the device, in MB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss starts at the peak of the parent process
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) // 1024  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "linux" else 2**20)
