"""`lambert bench`: how fast a kind of work is here, what share of this device's ceilings, and beside its peers.

Read in this order: config, work, batches, then a kind of work, such as training.
"""

import json
import platform
from collections.abc import Callable
from typing import Any

import torch

from lambert.core.config import as_dict
from lambert.core.registry import choose, lookup
from lambert.engine.cluster.dist import World
from lambert.engine.precision import PRECISIONS
from lambert.stages.bench.ceilings import Ceilings
from lambert.stages.bench.config import BenchConfig
from lambert.stages.bench.data import loader, tokenizer
from lambert.stages.bench.memory import peak_mb, peak_of
from lambert.stages.bench.optimizer import optimizer
from lambert.stages.bench.profile import costs_table, profile
from lambert.stages.bench.table import table
from lambert.stages.bench.training import finetune, pretrain
from lambert.stages.bench.work import OWN, Work, figures, timed

__all__ = ["WORKS", "BenchConfig", "run"]


def _inference(config: BenchConfig, world: World) -> Work:
    from lambert.stages.bench.inference import inference

    return inference(config, world)


WORKS: dict[str, Callable[[BenchConfig, World], Work]] = {
    "pretrain": pretrain,
    "finetune": finetune,
    "inference": _inference,
    "loader": loader,
    "tokenizer": tokenizer,
    "optimizer": optimizer,
}


def run(config: BenchConfig) -> None:
    """Prints a table, or one JSON object."""
    config = config.resolved()
    if config.threads:
        torch.set_num_threads(config.threads)
    world = World.detect(config.device)
    torch.manual_seed(config.seed)
    work = lookup(WORKS, config.work, "work")(config, world)
    if config.only_memory:
        step = choose(work.sides, config.only_memory, "only_memory")()
        step(), step()
        print(peak_mb(world.device))
    elif config.profile:
        costs = profile(config, work, world)
        print(json.dumps(costs) if config.json else costs_table(costs))
    else:
        result = measured(config, work, world)
        print(json.dumps(result) if config.json else table(config, result))


def measured(config: BenchConfig, work: Work, world: World) -> dict[str, Any]:
    """Everything that is measured, as plain values."""
    ceilings = Ceilings(
        world.device, PRECISIONS.get(config.precision, torch.bfloat16), work.shapes, products=work.operations > 0
    )
    times = timed(work, config.rounds, between=ceilings.measure, device=world.device)
    found = figures(work, times, ceilings.product, ceilings.shaped)
    for name, side in found.items():
        side["memory_mb"] = times[name].memory_mb or peak_of(config, name)
    return {
        "settings": as_dict(config),
        "unit": work.unit,
        work.unit: work.tokens,
        f"padded_{work.unit}": work.padded or None,
        "sequences": work.sequences or None,
        "gflop": round(work.operations / 1e9, 3) if work.operations else None,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "device": str(world.device),
        "ceiling_gflops": round(ceilings.product / 1e9, 1) if ceilings.product else None,
        "shaped_ceiling_gflops": round(ceilings.shaped / 1e9, 1) if ceilings.shaped else None,
        "copy_gb_per_second": round(ceilings.copy / 1e9, 1),
        "sides": {OWN: found.pop(OWN), **found},
    }
