"""Peak memory of a side: on a GPU by its allocator; elsewhere in a process of its own, since the one that measures
holds all sides."""

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
from lambert.verbs.bench.config import BenchConfig


def peak_of(config: BenchConfig, side: str) -> int:
    """Peak memory of building a side and two of its rounds, in MB. Raises MachineError where the process fails."""
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
    """Bytes that are in use on a GPU, and from which `risen` counts; 0 on other devices."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def risen(device: torch.device, before: int) -> int:
    """By how many MB the use of a GPU's memory rose at most above what `allocated` gave; 0 on other devices."""
    return (torch.cuda.max_memory_allocated(device) - before) // 2**20 if device.type == "cuda" else 0


def peak_mb(device: torch.device) -> int:
    """Peak memory of this process on the device, in MB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would begin with the peak of the process that started this one
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) // 1024  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "linux" else 2**20)
