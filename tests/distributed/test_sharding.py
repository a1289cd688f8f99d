"""Each rank with its share of the moments against each with all of them, to the bit. Two and three ranks are started
once each; every case runs in them."""

import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from checkpoints import save
from patience import HANGS
from ranks import ranks
from tiny import Share, Tiny, schedule, updates

from lambert.core.errors import UsageError
from lambert.core.world import World
from lambert.distributed.config import ExchangeConfig, Name
from lambert.distributed.detection import detect
from lambert.distributed.exchange import build
from lambert.distributed.sharding import Sharded, owners, shard
from lambert.engine import checkpoint
from lambert.engine.loop import train
from lambert.engine.precision import Precision
from lambert.model.config import SIZES, EncoderConfig
from lambert.model.heads import Model
from lambert.optim import optimizers
from lambert.optim.config import OptimConfig
from lambert.runs.microbatch import _room

STEPS, SAVED, BAD = 10, (4, 10), 6
DOCS = Path(__file__).parents[2] / "docs" / "sharding.md"


@dataclass(frozen=True)
class Case:
    optim: OptimConfig
    precision: str = "float32"
    method: Name = "float32"
    single: bool = False
    """Only one parameter is trained: all ranks but the first have none."""


CASES = {
    "lamb": Case(OptimConfig(name="lamb")),
    "all adapted": Case(OptimConfig(name="lamb", adapt="all", max_grad_norm=0.01)),
    "adamw": Case(OptimConfig(name="adamw")),
    "scaled lamb": Case(OptimConfig(name="lamb"), "float16"),
    "scaled radam": Case(OptimConfig(name="radam"), "float16"),
    "int8": Case(OptimConfig(name="lamb"), method="int8"),
    "single": Case(OptimConfig(name="lamb"), single=True),
}
"""int8 reads the gaps of the buffer that weights travel in. The scaled ones meet a gradient that is not finite in
update BAD, on the last rank."""


def data(world: World, start: int) -> Iterator[Share]:
    """On one and two ranks the gradients of two halves are added up, each on its own."""
    for update in updates(start, micro=4 if world.size == 3 else 8, rank=world.rank, world=world.size):
        update.shares = [[entry] for share in update.shares for entry in share]
        yield update


def trained(
    world: World, case: Case, run: Path, *, sharded: bool, stop: int = STEPS, saved: tuple[int, ...] = SAVED
) -> dict[str, Any]:
    """What a rank has after each update from where `run` was left, and what of the moments it keeps."""
    net, precision = Tiny(), Precision(case.precision)
    if case.single:
        net.requires_grad_(False).dense.weight.requires_grad_()
    exact = world.size < 3 and case.method == "float32"
    exchange = build(net, world, ExchangeConfig(method=case.method), deterministic=exact)
    optimizer = optimizers.build(net, case.optim)
    optimizer = shard(optimizer, exchange, world) if sharded else optimizer
    found = checkpoint.latest(run, world=world)
    number = start = found.step if found else 0
    if found:
        found.restore(net, optimizer, precision)

    def explode(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (float("inf") if number + 1 == BAD and world.rank == world.size - 1 else 1)

    if case.precision == "float16":
        net.dense.weight.register_hook(explode)  # type: ignore[no-untyped-call]
    weights, skipped, versions = [], [], []
    steps = train(
        net,
        optimizer,
        data(world, start),
        schedule=schedule,
        max_grad_norm=case.optim.max_grad_norm,
        precision=precision,
        world=world,
        seed=3,
        start=start,
        steps=stop,
        exchange=exchange,
    )
    versions.append([parameter._version for parameter in exchange.gradients.parameters])
    for step in steps:
        number = step.index
        weights.append(torch.cat([parameter.detach().flatten() for parameter in net.parameters()]))
        skipped.append(step.skipped)
        versions.append([parameter._version for parameter in exchange.gradients.parameters])
        if number in saved:
            save(run, number, model=net, optimizer=optimizer, precision=precision, world=world, keep=9)
    values = [value for slots in optimizer.state.values() for value in slots.values()]
    return {
        "weights": torch.stack(weights),
        "skipped": skipped,
        "changed": bool(torch.tensor(versions).diff(dim=0).min() > 0),
        "bytes": sum(value.nbytes for value in values),
        "own": len(optimizer.own) if isinstance(optimizer, Sharded) else None,
        "spared": optimizer.moment_bytes_saved if isinstance(optimizer, Sharded) else None,
    }


def everything(folder: Path) -> None:
    world = detect("cpu", timeout=HANGS)
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        for sharded in (False, True):
            run = folder / f"{name} {world.size} {sharded}"
            found[f"{name} {sharded}"] = trained(world, case, run, sharded=sharded)
    if world.size == 2:
        found["chain"] = chain(world, folder / "chain")
        found["local"], found["room"] = refused(world), room(world)
    torch.save(found, folder / f"{world.size}-{world.rank}.pt")
    world.close()


def chain(world: World, run: Path) -> dict[str, Any]:
    """Shared out over two ranks, then one rank alone, then two with all of it each, then shared out again."""
    case = CASES["lamb"]
    trained(world, case, run, sharded=True, stop=3, saved=(3,))
    if world.is_first:
        trained(World(), case, run, sharded=True, stop=5, saved=(5,))
    world.largest(0)
    trained(world, case, run, sharded=False, stop=8, saved=(8,))
    return trained(world, case, run, sharded=True)


def refused(world: World) -> str:
    net = Tiny()
    try:
        shard(optimizers.build(net, OptimConfig()), build(net, world, ExchangeConfig(sync_every=4)), world)
    except UsageError as error:
        return str(error)
    return ""


def room(world: World) -> tuple[list[int], int]:
    """Bytes found free for micro-batches: with all moments to come, with a share of them, and with that share there."""
    net = Tiny()
    exchange, whole = build(net, world, ExchangeConfig()), optimizers.build(net, OptimConfig())
    with patch("lambert.runs.microbatch.free_memory", lambda device: 1_000_000):

        def found(optimizer: torch.optim.Optimizer) -> int:
            return _room(cast(Model, net), optimizer, torch.float32, world)

        rooms = [found(whole)]
        sharded = shard(whole, exchange, world)
        assert isinstance(sharded, Sharded)
        rooms.append(found(sharded))
        exchange.gradients.collect()
        sharded.step()
        rooms.append(found(sharded))
    return rooms, sharded.moment_bytes_saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the ranks of two worlds found."""
    out = tmp_path_factory.mktemp("sharding")
    for size in (2, 3):
        ranks(size, everything, out)
    return out


def said(folder: Path, size: int) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{size}-{rank}.pt") for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_without_sharing_to_the_bit(folder: Path, name: str, size: int) -> None:
    everyone = said(folder, size)
    alone = everyone[0][f"{name} False"]
    assert len(alone["weights"]) == STEPS
    assert alone["weights"].isfinite().all()
    scaled = CASES[name].precision == "float16"
    assert alone["skipped"] == [scaled and update == BAD for update in range(1, STEPS + 1)]
    for (before, after), skipped in zip(itertools.pairwise(alone["weights"]), alone["skipped"][1:], strict=True):
        assert torch.equal(before, after) == skipped
    for found in everyone:
        assert torch.equal(found[f"{name} True"]["weights"], alone["weights"])
        assert found[f"{name} True"]["skipped"] == alone["skipped"]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_checkpoints_are_those_without_sharing(folder: Path, name: str, size: int) -> None:
    for step in SAVED:
        mine, theirs = (folder / f"{name} {size} {sharded}/checkpoints/step-{step:06d}" for sharded in (True, False))
        for file in ("model.safetensors", "optimizer.safetensors", "state.json"):
            assert (mine / file).read_bytes() == (theirs / file).read_bytes()
    assert json.loads((mine / "state.json").read_text())["step"] == STEPS


@pytest.mark.parametrize("size", [2, 3])
def test_each_rank_keeps_its_share_alone(folder: Path, size: int) -> None:
    everyone = said(folder, size)
    sizes = [parameter.numel() for parameter in Tiny().parameters()]
    for name in ("lamb", "adamw"):
        found = [rank[f"{name} True"] for rank in everyone]
        assert [rank["bytes"] for rank in found] == moment_bytes(sizes, size)
        assert [rank["own"] for rank in found] == [owners(sizes, size).count(rank) for rank in range(size)]
        (whole,) = moment_bytes(sizes, 1)
        assert {rank[f"{name} False"]["bytes"] for rank in everyone} == {whole}
        for rank in found:
            assert rank["bytes"] + rank["spared"] == whole - 4 * (len(sizes) - rank["own"])
    assert [rank["single True"]["own"] for rank in everyone] == [1] + [0] * (size - 1)


def test_what_another_rank_updated_counts_as_changed(folder: Path) -> None:
    assert all(rank["all adapted True"]["changed"] for rank in said(folder, 2))


def test_a_run_goes_on_with_and_without_sharing(folder: Path) -> None:
    for rank in said(folder, 2):
        assert torch.equal(rank["chain"]["weights"], rank["lamb False"]["weights"][8:])
        assert rank["chain"]["bytes"] == rank["lamb True"]["bytes"]
    last = [folder / run / "checkpoints/step-000010/optimizer.safetensors" for run in ("chain", "lamb 2 False")]
    assert last[0].read_bytes() == last[1].read_bytes()


def test_local_steps_are_refused(folder: Path) -> None:
    for rank in said(folder, 2):
        assert "train.shard_optimizer" in rank["local"]
        assert "exchange.sync_every" in rank["local"]


def test_memory_that_other_ranks_spare_this_one_is_free_for_data(folder: Path) -> None:
    for rank in said(folder, 2):
        (whole, coming, there), moment_bytes_saved = rank["room"]
        assert coming - whole == moment_bytes_saved > 500
        assert there - coming == rank["lamb True"]["bytes"]  # which are no longer free by then


def test_a_process_alone_keeps_its_optimizer() -> None:
    net = Tiny()
    optimizer = optimizers.build(net, OptimConfig())
    assert shard(optimizer, build(net, World(), ExchangeConfig(sync_every=4)), World()) is optimizer


def test_shares_are_as_even_as_whole_parameters_allow() -> None:
    """Against the best of all assignments: at most 4/3 - 1/(3 W) times its largest load (Graham, 1969, theorem 2)."""
    dice = random.Random(1)
    for _ in range(30):
        ranks_, sizes = dice.randint(1, 4), [dice.randint(1, 50) for _ in range(dice.randint(1, 6))]
        found = owners(sizes, ranks_)
        best = min(max(_loads(sizes, each, ranks_)) for each in itertools.product(range(ranks_), repeat=len(sizes)))
        assert max(_loads(sizes, found, ranks_)) <= (4 / 3 - 1 / (3 * ranks_)) * best + 1e-9
        assert set(found) <= set(range(ranks_))


def moment_bytes(sizes: Sequence[int], ranks_: int) -> list[int]:
    """Bytes of LAMB's or Adam's moments on each rank: two float32 a weight, and a counter a parameter."""
    held = [0] * ranks_
    for owner, size in zip(owners(sizes, ranks_), sizes, strict=True):
        held[owner] += 2 * 4 * size + 4
    return held


def _loads(sizes: list[int], found: Any, ranks_: int) -> list[int]:
    return [sum(size for size, owner in zip(sizes, found, strict=True) if owner == rank) for rank in range(ranks_)]


def test_the_table_in_the_docs() -> None:
    rows = re.findall(r"^\| (base|large) +\|(.*)\|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == ["base", "large"]
    for name, cells in rows:
        with torch.device("meta"):
            model = Model(EncoderConfig(**SIZES[name], vocabulary=30522), {"mlm": 0, "nsp": 0})
        sizes = [parameter.numel() for parameter in model.parameters()]
        held = [max(moment_bytes(sizes, count)) for count in (1, 2, 4, 8)]
        assert [float(cell.replace(",", "")) for cell in cells.split("|")] == [round(each / 1e6, 1) for each in held]
