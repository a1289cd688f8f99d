"""Peak memory of a side: from the allocator of a GPU; elsewhere measured in a separate process, because the measuring
process holds all sides."""

import re
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from lambert.core.errors import MachineError
from lambert.core.settings import text
from lambert.verbs.settings.bench import BenchConfig


def peak_of(config: BenchConfig, side: str) -> int:
    """Returns the peak memory in MB of building a side and two of its rounds. Raises MachineError if this fails."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "bench.toml"
        recipe.write_text(text(replace(config, only_memory=side)), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "lambert", "bench", str(recipe)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["killed, perhaps for memory"])[-1]
        raise MachineError(f"The memory of {side} could not be measured: {last}. Lower --sequences or --length.")
    return int(done.stdout.split()[-1])


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
