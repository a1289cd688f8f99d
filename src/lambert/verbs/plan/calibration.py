"""This machine's device, with measured speeds."""

import time
from types import MappingProxyType

import torch

from lambert.core.world import World
from lambert.distributed.detection import detect
from lambert.engine.device_memory import free_memory
from lambert.engine.precision import has_bfloat16
from lambert.model.families import family_of
from lambert.planning.devices import GPU_CORES, Device, recognised
from lambert.planning.work import Work
from lambert.verbs.bench.ceilings import Ceilings

_LEAST = 3
"""Measurements of each ceiling; the best counts, because other programs can only lower one."""


def this_device(work: Work, seconds: float) -> Device:
    """Returns the device that a run would take here, with the rate of its best matrix product in float32 and, where it
    has instructions for it, in bfloat16, and of its memory copies, as `lambert bench` measures them.

    Args:
        work: The shapes of whose products are measured.
        seconds: Longest time of the measurements.
    """
    with detect("auto", 120.0) as world:
        return _measured(world, work, seconds)


def _measured(world: World, work: Work, seconds: float) -> Device:
    device = world.device
    kinds = {"float32": torch.float32} | ({"bfloat16": torch.bfloat16} if has_bfloat16(device) else {})
    rows = int(min(2048, work.batch_size * work.mean))
    shapes = tuple((rows, inner, outer) for inner, outer in family_of(work.config).costs.matrices(work.config))
    peak, copy = {}, 0.0
    for name, dtype in kinds.items():
        ceilings, end = Ceilings(device, dtype, shapes, products=True), time.perf_counter() + seconds / len(kinds)
        for _ in range(_LEAST):
            ceilings.measure()
            if time.perf_counter() > end:
                break
        peak[name], copy = ceilings.product, max(copy, ceilings.copy)
    if "bfloat16" in peak:
        peak["float16"] = peak["bfloat16"]
    threads = f"CPU with {torch.get_num_threads()} threads"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else threads
    known, gpu = recognised(name), device.type == "cuda"
    return Device(
        name, MappingProxyType(peak), copy, float(free_memory(device)), known.watts if known else 0.0,
        "measured on this machine", "cuda" if gpu else "cpu", gpu, known.link if known else "memory",
        max(1, torch.cuda.device_count()), cores=GPU_CORES if gpu else torch.get_num_threads(), measured=True,
    )  # fmt: skip
