"""Runs of several ranks that exchange gradients: the same updates for every number of ranks."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from patience import HANGS
from ranks import ranks
from tiny import LENGTH, Share, Tiny, adamw, batch_of
from tiny import schedule as falling
from torch import Tensor, nn

from lambert.core.world import World
from lambert.distributed.detection import detect
from lambert.distributed.exchange import Exchange
from lambert.engine.loop import train
from lambert.engine.precision import Precision
from lambert.engine.signals import StopRequest
from lambert.engine.step import Step

STEPS = 8
Check = Callable[[World], Any]
Found = Callable[..., Any]
"""`found(check, size, rank)`: what the function of this name returned on a rank, by default rank 0."""


def shared(world: World, parts: int = 4, size: int = 16, start: int = 0) -> Iterator[Share]:
    """Updates in `parts` shares of two micro-batches, those of this rank."""
    number = start
    while True:
        first, each, mine, loads = number * size, size // parts // 2, [], [0] * world.size
        for part in range(parts):
            micro = [
                (2 * part + i, batch_of([*range(first + (2 * part + i) * each, first + (2 * part + i + 1) * each)]))
                for i in range(2)
            ]
            loads[part * world.size // parts] += 2 * each * LENGTH
            if part * world.size // parts == world.rank:
                mine.append(micro)
        batches = [batch for share in mine for _, batch in share]
        counts = {name: sum(b.targets[name].count for b in batches if name in b.targets) for name in Tiny.objectives}
        yield Share(mine, counts, loads, size)
        number += 1


def whole(world: World, start: int = 0) -> Iterator[Share]:
    """The same updates, each rank's in one list."""
    for update in shared(world, start=start):
        update.shares = [[entry for share in update.shares for entry in share]]
        yield update


def updates(
    net: nn.Module, world: World, exchange: Exchange, batches: Iterator[Share], *, start: int = 0, stop: int = STEPS,
    optimizer: torch.optim.Optimizer | None = None, schedule: Callable[[int], float] = falling,
    max_grad_norm: float = 1.0, precision: Precision | None = None, request: StopRequest | None = None,
) -> Iterator[Step]:  # fmt: skip
    return train(
        net, optimizer or adamw(net), batches, schedule=schedule, max_grad_norm=max_grad_norm,
        precision=precision or Precision("float32"), world=world, seed=3, start=start, steps=stop, exchange=exchange,
        stop=request,
    )  # fmt: skip


def trained(*arguments: Any, **options: Any) -> list[Step]:
    return list(updates(*arguments, **options))


def found_by(*checks: Check) -> Any:
    """A fixture that gives a `Found`. A group of each size is started when first asked for, and runs all checks."""

    @pytest.fixture(scope="module")
    def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
        out = tmp_path_factory.mktemp("ranks")

        @cache
        def run(size: int) -> None:
            ranks(size, _all, checks, out)

        def of(check: str, size: int, rank: int = 0) -> Any:
            run(size)
            return torch.load(out / f"{check}-{size}-{rank}.pt")

        return of

    return found


def _all(checks: tuple[Check, ...], out: Path) -> None:
    with detect("cpu", timeout=HANGS) as world:
        for check in checks:
            torch.save(check(world), out / f"{check.__name__}-{world.size}-{world.rank}.pt")


def same_on_all_ranks(found: Found, check: str, size: int, get: Callable[[Any], Tensor]) -> bool:
    return all(torch.equal(get(found(check, size)), get(found(check, size, rank))) for rank in range(size))
