"""A gradient that is not finite on one rank: all ranks skip it together, and too many of them end the run on all."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patience import HANGS
from tiny import Tiny, adamw, free_port, schedule, start, steps, updates
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.errors import DivergedError
from lambert.core.world import World
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.detection import detect
from lambert.distributed.exchange import build
from lambert.engine.guard import Guard, GuardConfig, Incidents
from lambert.engine.loop import train
from lambert.engine.precision import Precision

ALONE, FOR_GOOD = 30, 41


class Poisoned(Tiny):
    """Its losses are not finite on the second rank in update ALONE and from FOR_GOOD on."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.rank, self.update = world.rank, 0

    def forward(self, batch: Batch) -> Tensor:
        bad = self.rank == 1 and (self.update == ALONE or self.update >= FOR_GOOD)
        return super().forward(batch) * (float("nan") if bad else 1.0)

    def counted(self, world: World) -> Iterator[Any]:
        for update in updates(rank=world.rank, world=world.size):
            self.update += 1
            yield update


def fingerprint(net: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()


def poisoned(folder: Path) -> None:
    world = detect("cpu")
    torch.set_num_threads(1)
    net, precision = Poisoned(world), Precision("float32")
    guard = Guard(GuardConfig(skips=10))
    guard.record = Incidents(folder, lambda update: (np.zeros(16, int), np.arange(16) + 16 * update), world).add
    rows = []
    try:
        for step in train(
            net, adamw(net), net.counted(world), schedule=schedule, max_grad_norm=1.0, precision=precision, world=world,
            seed=3, start=0, steps=100, exchange=build(net, world, ExchangeConfig()),
        ):  # fmt: skip
            rows.append([step.index, step.skipped, {str(rank): name for rank, name in step.faults.items()}])
            rows[-1].append(fingerprint(net))
            guard.watch(step)
    finally:
        (folder / f"rows-{world.rank}").write_text(json.dumps(rows))


def test_what_one_rank_cannot_use_all_ranks_skip(tmp_path: Path) -> None:
    port = free_port()
    processes = [start(poisoned, tmp_path, rank=rank, world=2, port=port) for rank in range(2)]
    for process in processes:
        process.join(HANGS)
    assert [process.exitcode for process in processes] == [5, 5]
    rows, others = (json.loads((tmp_path / f"rows-{rank}").read_text()) for rank in range(2))
    assert rows == others
    bad = [ALONE, *range(FOR_GOOD, FOR_GOOD + 11)]  # the guard judges an update when it sees the next
    assert [index for index, *_ in rows] == [*range(1, FOR_GOOD + 11)]
    assert [index for index, skipped, *_ in rows if skipped] == bad
    assert all(faults == ({"1": "pieces.weight"} if skipped else {}) for _, skipped, faults, _ in rows)
    weights = [digest for *_, digest in rows]
    kept = [index for index in range(2, len(weights) + 1) if weights[index - 1] == weights[index - 2]]
    assert kept == bad
    found = [json.loads(line) for line in (tmp_path / "incidents.jsonl").read_text().splitlines()]
    assert [row["step"] for row in found] == bad[:-1]
    assert [row["what"] for row in found] == ["skipped"] * 10 + ["diverged"]
    assert {(row["parameter"], *row["ranks"]) for row in found} == {("pieces.weight", 1)}
    assert found[0]["samples"] == [[0, [*range(16 * (ALONE - 1), 16 * ALONE)]]]


def test_a_loss_scale_that_collapses_is_told_from_a_few_overflows() -> None:
    torch.set_num_threads(1)
    net, precision = Tiny(), Precision("float16")
    with torch.no_grad():
        net.dense.weight.fill_(1e6)  # no float16
    guard = Guard(GuardConfig(skips=100), scale=lambda: precision.scale)

    def go_on() -> None:
        for step in steps(net, adamw(net), precision, stop=40):
            guard.watch(step)

    # 65536 is halved by each and passes 1 at the 17th, with which the guard judges the one before.
    with pytest.raises(DivergedError, match=r"at step 16: the float16 loss scale collapsed to 0\.5,"):
        go_on()
