"""Describes the environment of a run: versions, devices, the source's commit, the command line."""

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import lambert
from lambert.core.urls import public_word
from lambert.core.version import __version__
from lambert.core.world import World

_PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "sentencex", "transformers", "pyarrow", "tensorboard")
_VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "GLIBC_TUNABLES",
)


def describe(world: World) -> dict[str, Any]:
    """Returns the plain values of environment.json: what is needed to repeat the run and to judge its speed."""
    return {
        "lambert": __version__,
        "commit": commit(),
        "command": [public_word(word) for word in sys.argv],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1_000_000,
        "device": str(world.device),
        **machine(world),
        "cuda": torch.version.cuda,
        "processes": world.size,
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def machine(world: World) -> dict[str, Any]:
    """Returns the entries of `describe` that determine the highest speed of this process."""
    name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else _processor()
    return {"device_name": name, "threads": torch.get_num_threads()}


def commit() -> str | None:
    """Returns the commit of the source tree that this package runs from, followed by "+changes" if tracked files
    differ; None if the package is not in a git repository."""
    root = Path(lambert.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        name = _git(root, "rev-parse", "HEAD")
        return f"{name}+changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else name
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
