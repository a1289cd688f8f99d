"""Measures the speeds of this machine's device."""

import time
from dataclasses import replace
from math import inf, prod
from types import MappingProxyType

import numpy as np
import torch

from lambert.core.world import World
from lambert.distributed.detection import detect
from lambert.engine.device import free_memory
from lambert.engine.precision import has_bfloat16
from lambert.measure.batches import counts, draw_batch
from lambert.measure.ceilings import Ceilings
from lambert.measure.training import Pass, own_step
from lambert.model.families import family_of
from lambert.native import library
from lambert.wings.plan.costs.choices import resolve_precision
from lambert.wings.plan.costs.devices import GPU_CORES, Device, cluster, recognise
from lambert.wings.plan.costs.steps import predict, predict_micro_batch
from lambert.wings.plan.costs.work import Workload, shapes_of

_LEAST = 3
"""Number of measurements of each ceiling. The best counts, because other programs can only lower a measurement."""


_HEADS = ("mlm", "nsp", "span")
"""Heads whose targets `lambert bench` draws. The heads of other tasks take as little time as that of spans."""
_UPDATES = 3
"""Number of measurements of a micro-batch after a first one; again the best counts."""
_ENOUGH = 512
"""Tokens of the measured micro-batch, unless an update has fewer. With fewer, the first use of memory and the start of
kernels would count more than in a run (our choice)."""


def measure_device(work: Workload, seconds: float) -> Device:
    """Returns the device that a run would use here, with the rates of its best matrix product in float32 and, if it has
    the instructions, in bfloat16, and of its memory copies, as `lambert bench` measures them. It is fitted to the time
    of a micro-batch of the work, if the remaining time suffices for one.

    Args:
        work: The work whose products are measured.
        seconds: Longest time of the measurements.
    """
    with detect("auto", 120.0) as world:
        found = _measure(world, work, seconds / 2)
        return replace(found, fitted=_fit(world, resolve_precision(work, found), found, seconds / 2))


def _measure(world: World, work: Workload, seconds: float) -> Device:
    device = world.device
    kinds = {"float32": torch.float32} | ({"bfloat16": torch.bfloat16} if has_bfloat16(device) else {})
    rows = int(min(2048, work.batch_size * work.mean))
    shapes = tuple((rows, inner, outer) for inner, outer in family_of(work.config).costs.matrices(work.config))
    peak, copy = {}, 0.0
    for name, dtype in kinds.items():
        ceilings, end = Ceilings(device, dtype, shapes, products=True), time.perf_counter() + seconds / len(kinds)
        for _ in range(_LEAST):
            rates = ceilings.measure()
            if time.perf_counter() > end:
                break
        peak[name], copy = rates.product, max(copy, rates.copy)
    if "bfloat16" in peak:
        peak["float16"] = peak["bfloat16"]
    threads = f"CPU with {torch.get_num_threads()} threads"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else threads
    known, gpu = recognise(name), device.type == "cuda"
    return Device(
        name, MappingProxyType(peak), copy, float(free_memory(device)), known.watts if known else 0.0,
        "measured on this machine", "cuda" if gpu else "cpu", gpu, known.link if known else "memory",
        max(1, torch.cuda.device_count()), cores=GPU_CORES if gpu else torch.get_num_threads(), measured=True,
        native=library() is not None,
    )  # fmt: skip


def _fit(world: World, work: Workload, device: Device, seconds: float) -> float:
    """Returns the measured time of a micro-batch, forward and backward, divided by the predicted time; 1 if it does not
    fit into the memory or into this many seconds."""
    shapes = shapes_of(work.config, work.targets, work.labels)
    weights = sum(map(prod, shapes))
    step = predict(work, cluster(device, 1), shapes)
    whole = min(step.micro_tokens, work.batch_size * work.mean)
    affordable = seconds / (1 + _UPDATES) / sum(predict_micro_batch(work, device, 1.0, weights)[:3])
    sequences = int(min(affordable, max(1.0, whole / work.mean)))
    if step.bytes > device.memory or sequences * work.mean < min(_ENOUGH, whole):
        return 1.0
    lengths_S = np.array(work.lengths)[np.linspace(0, len(work.lengths) - 1, sequences).round().astype(int)]
    heads = tuple(name for name in work.targets if name in _HEADS) or ("span",)
    batch = draw_batch(work.config, lengths_S, 0, heads).to(world.device)
    own = replace(
        work, lengths=lengths_S.tolist(), batch_size=sequences, frozen=0, synchronised=True,
        targets={name: count / sequences for name, count in counts(batch).items()},
    )  # fmt: skip
    best = inf
    with torch.random.fork_rng([world.device] if world.device.type == "cuda" else []):  # dropout draws
        computed = own_step(work.config, batch, world, Pass(work.precision))
        computed()
        for _ in range(_UPDATES):
            began = time.perf_counter()
            computed()
            best = min(best, time.perf_counter() - began)
    return best / sum(predict_micro_batch(own, device, sequences, weights)[:3])
