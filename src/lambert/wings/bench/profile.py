"""A profile of Lambert's side: a trace, and its largest costs by kind."""

import textwrap
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from lambert.core.errors import MachineError, UsageError
from lambert.core.files import not_written
from lambert.core.world import World
from lambert.wings.bench.settings import BenchConfig
from lambert.wings.bench.work import OWN, Work

ROUNDS = 3
SHOWN = 12
KINDS = {
    "optimizer": ("Optimizer.step", "_fused_adam", "_foreach_"),
    "attention": (
        "lambert::attention",
        "_Products",
        "scaled_dot_product",
        "flash_att",
        "efficient_att",
        "softmax_backward",
        "aten::_softmax",
    ),
    "layer norm": ("lambert::add_norm", "layer_norm", "LayerNorm"),
    "gelu": ("gelu", "Gelu"),
    "cross entropy": (
        "lambert::cross_entropy",
        "_Chunked",
        "CrossEntropy",
        "log_softmax",
        "LogSoftmax",
        "nll_loss",
        "NllLoss",
    ),
    "embedding": ("lambert::embed_norm", "lambert::add_rows", "_Rows", "embedding", "Embedding"),
    "dropout": ("dropout", "bernoulli"),
    "matrix product": (
        "lambert::pack",
        "linear",
        "Linear",
        "aten::addmm",
        "aten::mm",
        "aten::bmm",
        "aten::matmul",
        "AddmmBackward",
    ),
    "gradients summed": ("AccumulateGrad",),
    "cast or copy": ("aten::to", "aten::copy_", "ToCopyBackward", "aten::clone", "aten::contiguous", "aten::cat"),
}
"""Kinds of cost, with parts of the names of their operations. An operation has the kind of the outermost enclosing
operation that has one: the cast of a weight within a linear layer is a cost of the matrix product."""

Costs = dict[tuple[str, str], tuple[float, int]]
"""By kind and operation: microseconds without those of nested operations, and calls."""


def profile(config: BenchConfig, work: Work, world: World) -> dict[str, Any]:
    """Runs three rounds under torch's profiler and writes a Chrome trace to `config.profile`. Returns the largest
    operations, and the sums by kind, as shares of the time in torch's operations.

    Raises UsageError for work outside torch, MachineError if the trace cannot be written.
    """
    assert config.profile is not None
    step = work.sides[OWN]()
    step()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as found:
        began = time.perf_counter()
        for _ in range(ROUNDS):
            step()
        seconds = time.perf_counter() - began
    costs = group_costs(found.events() or [], world.device.type == "cuda")
    whole = sum(micros for micros, _ in costs.values())
    if whole < 1e5 * seconds:
        raise UsageError(
            f"work = {config.work} spends {whole / 1e6 / seconds:.0%} of its time in torch's operations: profile it "
            "with `python -m cProfile -m lambert bench ...`."
        )
    _write(found, config.profile)
    kinds: dict[str, float] = {}
    for (kind, _), (micros, _) in costs.items():
        kinds[kind] = kinds.get(kind, 0.0) + micros / whole
    return {
        "work": config.work,
        "trace": str(config.profile),
        "seconds": round(seconds / ROUNDS, 6),
        "kinds": {kind: round(share, 4) for kind, share in sorted(kinds.items(), key=lambda item: -item[1])},
        "costs": [
            {"kind": kind, "operation": name, "share": round(micros / whole, 4), "calls": calls}
            for (kind, name), (micros, calls) in list(costs.items())[:SHOWN]
        ],
    }


def _write(found: torch.profiler.profile, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        found.export_chrome_trace(str(path))
        written = path.stat().st_size
    except OSError as error:
        raise not_written(path, error, "file") from error
    if not written:  # the profiler does not report a full disk
        raise MachineError(f"{path} cannot be written. Free space, or choose another file.")


def kind_of(names: Iterable[str]) -> str:
    """Returns the kind of an operation from the names of its enclosing operations, outermost first, and its own."""
    for name in names:
        for kind, parts in KINDS.items():
            if any(part in name for part in parts):
                return kind
    return "other"


def group_costs(events: Iterable[Any], cuda: bool) -> Costs:
    """Returns the costs of the events of a profile, largest first, in device time on a GPU and else in CPU time."""
    costs: Costs = {}
    for event in events:
        if event.device_type.name != "CPU":
            continue  # the time of a kernel also counts for the operation that launched it
        names, around = [event.name], event.cpu_parent
        while around is not None:
            names.append(around.name)
            around = around.cpu_parent
        key = (kind_of(reversed(names)), event.name)
        micros, calls = costs.get(key, (0.0, 0))
        costs[key] = (micros + (event.self_device_time_total if cuda else event.self_cpu_time_total), calls + 1)
    return dict(sorted(costs.items(), key=lambda cost: -cost[1][0]))


def costs_table(found: dict[str, Any]) -> list[str]:
    """Returns the result of `profile` as the lines of a table."""
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in found["kinds"].items() if share >= 0.005)
    lines = [f"{ROUNDS} rounds of {found['work']}, {1e3 * found['seconds']:,.1f} ms each under the profiler"]
    lines += [*textwrap.wrap(shares, 100), "", f"{'kind':20}{'operation':48}{'share':>8}{'calls':>8}"]
    for cost in found["costs"]:
        lines.append(f"{cost['kind']:20}{cost['operation'][:46]:48}{cost['share']:8.1%}{cost['calls']:8,}")
    return [*lines, f"trace: {found['trace']} (chrome://tracing or ui.perfetto.dev)"]
