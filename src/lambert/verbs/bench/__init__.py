"""`lambert bench`: the speed of each kind of work, its share of this device's ceilings, and the speed of its peers.

Read in this order: config, work, batches, then a kind of work, such as training.
"""

import platform
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch

from lambert.core.files import check_replaceable, json_text
from lambert.core.registry import Kind, choose, lookup
from lambert.core.settings import as_dict
from lambert.core.world import World
from lambert.distributed.detection import detect
from lambert.engine.precision import PRECISIONS, resolved
from lambert.runs.result import Say, silent
from lambert.verbs.bench.ceilings import Ceilings
from lambert.verbs.bench.data import loader, tokenizer
from lambert.verbs.bench.memory import peak_mb, peak_of
from lambert.verbs.bench.optimizer import optimizer
from lambert.verbs.bench.profile import costs_table, profile
from lambert.verbs.bench.table import table
from lambert.verbs.bench.training import finetune, pretrain
from lambert.verbs.bench.work import OWN, Work, figures, timed
from lambert.verbs.settings.bench import BenchConfig, BenchPrecision

__all__ = ["WORKS", "BenchConfig", "run"]


def _inference(config: BenchConfig, world: World) -> Work:
    from lambert.verbs.bench.inference import inference

    return inference(config, world)


WORKS: dict[str, Callable[[BenchConfig, World], Work]] = {
    "pretrain": pretrain,
    "finetune": finetune,
    "inference": _inference,
    "loader": loader,
    "tokenizer": tokenizer,
    "optimizer": optimizer,
}
KIND = Kind((BenchConfig, World))


def run(config: BenchConfig, say: Say = silent) -> None:
    """Measures, and prints a table or one JSON object."""
    config = config.resolved()
    if config.profile:
        check_replaceable(config.profile, lambda beginning: b'"traceEvents"' in beginning, "bench")
    if config.threads:
        torch.set_num_threads(config.threads)
    world = detect(config.device)
    config = replace(config, precision=cast(BenchPrecision, resolved(config.precision, world)))
    torch.manual_seed(config.seed)
    if config.work == "run":
        from lambert.verbs.bench import runs

        result = runs.measured(config, world)
        say(json_text(result) if config.json else table(config, result))
        return
    work = lookup(WORKS, config.work, "work", KIND)(config, world)
    if config.only_memory:
        step = choose(work.sides, config.only_memory, "only_memory")()
        step(), step()
        say(str(peak_mb(world.device)))
    elif config.profile:
        costs = profile(config, work, world)
        say(json_text(costs) if config.json else costs_table(costs))
    else:
        result = measured(config, work, world)
        say(json_text(result) if config.json else table(config, result))


def measured(config: BenchConfig, work: Work, world: World) -> dict[str, Any]:
    """Returns everything that is measured, as plain values."""
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
