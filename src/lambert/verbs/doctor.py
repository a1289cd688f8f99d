"""`lambert doctor`: reports what this machine has, what is missing, and what Lambert will use."""

import importlib.util
import json as text
import os
import platform
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from lambert import native
from lambert.core.errors import printable_line
from lambert.core.version import __version__
from lambert.engine import process
from lambert.runs.result import Say, silent

_EXTRA = re.compile(r"""([\w.-]+).*\bextra == ["']([\w-]+)["']""")
"""A requirement of an optional extra, in the metadata of a distribution."""
BUILT_IN = {"backports.zstd": "compression.zstd"}
"""Modules of newer Python versions that replace a distribution."""
SIDE = 768
"""Rows and columns of the matrices that are multiplied for timing."""


@dataclass(frozen=True, slots=True)
class DoctorConfig:
    """The form of the report."""

    json: bool = False
    """Print the findings as JSON instead of a table."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    found: str
    state: Literal["ok", "note", "missing"] = "ok"
    """missing: something does not work until it is corrected; note: something is slow or unavailable."""
    advice: str = ""
    """What to do about it."""


def run(config: DoctorConfig, say: Say = silent) -> list[Finding]:
    """Prints the findings and returns them. Missing parts are not errors: the exit code is 0."""
    findings = list(examine())
    if config.json:
        for line in text.dumps([asdict(finding) for finding in findings], indent=1).split("\n"):
            say(line)
        return findings

    from rich.console import Console
    from rich.table import Table

    marks = {"ok": "[green]ok[/green]", "note": "[yellow]note[/yellow]", "missing": "[red]missing[/red]"}
    table = Table("", "", "found", "what to do", box=None, pad_edge=False)
    for finding in findings:
        table.add_row(marks[finding.state], finding.what, _plain(finding.found), _plain(finding.advice))
    console = Console()
    console.print(table)
    missing = [finding.what for finding in findings if finding.state == "missing"]
    console.print(
        f"\nMissing: {', '.join(missing)}." if missing else "\nNothing that is needed is missing.", highlight=False
    )
    return findings


def examine() -> Iterator[Finding]:
    """Yields all findings. This takes a second or more."""
    with ThreadPoolExecutor(1) as pool:
        compiler = pool.submit(_compiler)  # another process, which runs while torch is imported
        process.import_quickly("torch")
        import torch

        yield Finding("lambert", __version__)
        yield Finding("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
        yield Finding("torch", f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}")
        yield from _devices()
        yield _threads()
        yield from _memory()
        yield _disk()
        yield _bfloat16()
        yield _kernels()
        yield _triton() if torch.cuda.is_available() else compiler.result()
        yield _gloo()
        yield from _extras()


def _devices() -> Iterator[Finding]:
    import torch

    used = "cuda" if torch.cuda.is_available() else "cpu"
    for number in range(torch.cuda.device_count() if used == "cuda" else 0):
        card = torch.cuda.get_device_properties(number)
        yield Finding(
            f"device cuda:{number}", f"{card.name}, {card.total_memory / 1e9:.0f} GB, sm_{card.major}{card.minor}"
        )
    if used == "cpu" and shutil.which("nvidia-smi") is not None:
        yield Finding(
            "GPU",
            f"nvidia-smi is installed, but torch {torch.__version__} finds no GPU",
            "note",
            "install a CUDA build of torch that fits the driver",
        )
    if torch.backends.mps.is_available():
        yield Finding("device mps", "Apple GPU")
    yield Finding("device used", f'{used} (device = "auto")')


def _threads() -> Finding:
    import torch

    usable = process.count_cores()
    threads = torch.get_num_threads()
    found = f"torch uses {threads} of {usable} usable cores, {torch.backends.cpu.get_cpu_capability()}"
    if threads < usable:
        return Finding("threads", found, "note", f"OMP_NUM_THREADS={usable} would use all cores")
    return Finding("threads", found)


def _memory() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    yield Finding("memory", f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = Path(path).read_text(encoding="ascii").strip() if Path(path).is_file() else "max"
        if limit.isdecimal() and int(limit) < memory.total:
            yield Finding("memory limit", f"{int(limit) / 1e9:.1f} GB for this container", "note")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    found = f"{free / 1e9:.1f} GB free in {Path.cwd()}"
    if free < 5e9:
        from lambert.model.config import SIZES, EncoderConfig
        from lambert.planning.memory import checkpoint_state, weight_count

        shapes = (EncoderConfig(**SIZES[size], vocabulary=30_522) for size in ("base", "large"))
        base, large = (f"{checkpoint_state(weight_count(shape)) / 1e9:.2g} GB" for shape in shapes)
        return Finding("disk", found, "note", f"a checkpoint of BERT-Base takes {base}, of BERT-Large {large}")
    return Finding("disk", found)


def _bfloat16() -> Finding:
    """Times a matrix product in both precisions, because bfloat16 may be slower than float32 on a CPU that supports
    it."""
    import torch

    from lambert.engine.ceiling import seconds_of
    from lambert.engine.precision import has_bfloat16

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not has_bfloat16(device):
        return Finding("bfloat16", "the device has no instructions for it: precision auto means float32")
    rates = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(SIDE, SIDE, dtype=dtype, device=device)
        best = min(seconds_of(partial(torch.matmul, matrix, matrix), device) for _ in range(4))
        rates[dtype] = 2 * SIDE**3 / best / 1e9
    ratio = rates[torch.bfloat16] / rates[torch.float32]
    found = f"{rates[torch.bfloat16]:,.0f} GFLOP/s, {ratio:.1f}x float32"
    if ratio < 1:
        return Finding("bfloat16", found, "note", 'precision = "float32" is faster here')
    return Finding("bfloat16", found)


def _kernels() -> Finding:
    if instructions := native.instructions():
        return Finding("kernels", f"compiled ({instructions})")
    return Finding("kernels", f"torch's own: {native.reason()}", "note" if native.advice() else "ok", native.advice())


def _triton() -> Finding:
    """Looks for Triton, which torch.compile needs on a GPU."""
    version = _version("triton")
    if version is None:
        return Finding("torch.compile", "no triton", "note", "pip install triton; torch.compile needs it")
    return Finding("torch.compile", f"triton {version}")


def _compiler() -> Finding:
    """Compiles a probe with the C++ compiler that torch.compile needs on a CPU. Does not import torch."""
    names = (os.environ.get("CXX", ""), "g++", "clang++")
    compiler = next((path for name in names if (path := shutil.which(name)) is not None), None)
    if compiler is None:
        return Finding("torch.compile", "no C++ compiler", "note", "apt-get install g++; torch.compile needs it")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text("#include <Python.h>\n#include <cmath>\nint probe() { return int(std::sqrt(4.0)); }\n")
        command = [compiler, "-shared", "-fPIC", "-fopenmp", f"-I{sysconfig.get_path('include')}"]
        done = subprocess.run(
            [*command, str(source), "-o", str(source.with_suffix(".so"))], capture_output=True, text=True, check=False
        )
    if done.returncode:
        advice = "apt-get install g++ python3-dev; torch.compile needs them"
        return Finding("torch.compile", _first_line(done.stderr), "note", advice)
    return Finding("torch.compile", f"{compiler} works")


def _gloo() -> Finding:
    """Sums over a group of this one process, which checks that gloo finds a network interface and the host name."""
    import torch
    from torch import distributed

    if not distributed.is_available():
        return Finding("torch.distributed", "not built in", "missing", "install a torch with distributed support")
    backends = "gloo, nccl" if distributed.is_nccl_available() else "gloo"
    if distributed.is_initialized():
        return Finding("torch.distributed", f"{backends}; in use by this process")
    try:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        try:
            distributed.all_reduce(torch.ones(1))
        finally:
            distributed.destroy_process_group()
    except (RuntimeError, OSError) as error:
        advice = "set GLOO_SOCKET_IFNAME to a network interface, such as lo"
        return Finding("torch.distributed", _first_line(str(error)), "missing", advice)
    return Finding("torch.distributed", f"{backends}; a sum by gloo works")


def _extras() -> Iterator[Finding]:
    for extra, packages in list_extras().items():
        versions = {package: _version(package) for package in packages}
        if all(versions.values()):
            yield Finding(f"extra {extra}", ", ".join(f"{name} {version}" for name, version in versions.items()))
        else:
            lacking = ", ".join(name for name, version in versions.items() if version is None)
            yield Finding(f"extra {extra}", f"no {lacking}", "note", f"pip install 'lambert-bert[{extra}]'")


def list_extras() -> dict[str, list[str]]:
    """Returns the distributions of each optional extra of Lambert; empty if Lambert itself is not installed."""
    extras: dict[str, list[str]] = {}
    with suppress(metadata.PackageNotFoundError):
        for found in map(_EXTRA.match, metadata.requires("lambert-bert") or ()):
            if found and found[1] != "lambert-bert" and found[2] not in ("test", "dev"):
                extras.setdefault(found[2], []).append(found[1])
    return extras


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        module = BUILT_IN.get(package, "")
        parent = module.partition(".")[0]
        built_in = module and importlib.util.find_spec(parent) and importlib.util.find_spec(module)
        return "in Python" if built_in else None


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "it failed without a message")[:200]


def _plain(words: str) -> str:
    """Returns the text escaped for rich, for which `[report]` would be a style."""
    return printable_line(words).replace("[", r"\[")
