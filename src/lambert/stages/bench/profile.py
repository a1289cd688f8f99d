"""Where the time of Lambert's side goes: a trace, and its largest costs by kind."""

from typing import Any

import torch

from lambert.core.errors import MachineError
from lambert.engine.dist import World
from lambert.stages.bench.config import BenchConfig
from lambert.stages.bench.work import OWN, Work

ROUNDS = 3
SHOWN = 12
KINDS = {
    "optimizer": ("Optimizer.step", "_fused_adam", "_foreach_"),
    "attention": ("_Products", "scaled_dot_product", "varlen_attn", "flash_attn", "_softmax", "aten::bmm", "baddbmm"),
    "layer norm": ("layer_norm",),
    "gelu": ("gelu",),
    "cross entropy": ("CrossEntropy", "log_softmax", "nll_loss"),
    "embeddings": ("embedding",),
    "dropout": ("dropout", "bernoulli"),
    "matrix products": ("aten::addmm", "aten::mm", "aten::linear", "aten::matmul", "mkldnn"),
}
"""Kinds of cost by parts of the names of operations. The kind of an operation is that of the outermost one around it
that has any."""


def profile(config: BenchConfig, work: Work, world: World) -> str:
    """Runs three rounds under torch's profiler, writes a Chrome trace to `config.profile` and gives the table of
    costs: kinds, then the largest operations. Raises MachineError where the trace cannot be written."""
    assert config.profile is not None
    step = work.sides[OWN]()
    step()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(ROUNDS):
            step()
    try:
        config.profile.parent.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(config.profile))
    except OSError as error:
        raise MachineError(f"{config.profile} cannot be written: {error.strerror or error}.") from error
    costs = grouped(found.events(), world.device.type == "cuda")
    return _table(config, costs)


def kind_of(names: list[str]) -> str:
    """The kind of an operation, from its name and those around it, outermost first; "other" where none tells."""
    for name in names:
        for kind, parts in KINDS.items():
            if any(part in name for part in parts):
                return kind
    return "other"


def grouped(events: Any, cuda: bool) -> dict[tuple[str, str], tuple[float, int]]:
    """Microseconds without those of inner operations, and calls, by (kind, operation), the largest first."""
    costs: dict[tuple[str, str], tuple[float, int]] = {}
    for event in events:
        if event.device_type.name != "CPU":
            continue  # a kernel's time is also that of the operation which started it
        names, around = [event.name], event.cpu_parent
        while around is not None:
            names.append(around.name)
            around = around.cpu_parent
        key = (kind_of(names[::-1]), event.name)
        micros, calls = costs.get(key, (0.0, 0))
        costs[key] = (micros + (event.self_device_time_total if cuda else event.self_cpu_time_total), calls + 1)
    return dict(sorted(costs.items(), key=lambda cost: -cost[1][0]))


def _table(config: BenchConfig, costs: dict[tuple[str, str], tuple[float, int]]) -> str:
    whole = sum(micros for micros, _ in costs.values()) or 1.0
    kinds: dict[str, float] = {}
    for (kind, _), (micros, _) in costs.items():
        kinds[kind] = kinds.get(kind, 0.0) + micros
    shares = ", ".join(f"{kind} {kinds[kind] / whole:.0%}" for kind in sorted(kinds, key=lambda kind: -kinds[kind]))
    lines = [f"{ROUNDS} rounds of {config.work}, {whole / ROUNDS / 1000:,.1f} ms each", shares, ""]
    lines.append(f"{'kind':18}{'operation':52}{'share':>8}{'calls':>8}")
    for (kind, name), (micros, calls) in list(costs.items())[:SHOWN]:
        lines.append(f"{kind:18}{name[:50]:52}{micros / whole:8.1%}{calls:8,}")
    return "\n".join([*lines, f"trace: {config.profile} (chrome://tracing or ui.perfetto.dev)"])
