"""The exchange in the loop. One, two and four ranks are started once; each writes down what every check came to."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from patience import HANGS
from tiny import LENGTH, Share, Tiny, adamw, batch_of, free_port, schedule, start
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.errors import DataError, LambertError, MachineError, UsageError
from lambert.core.world import World
from lambert.distributed import agreement
from lambert.distributed.exchange import DistributedExchange, Exchange, build
from lambert.distributed.exchange.methods import ExchangeConfig, Name
from lambert.distributed.group import Group, detect
from lambert.distributed.stragglers import Stragglers
from lambert.engine.loop import OutOfMemory, train
from lambert.engine.precision import Precision
from lambert.engine.signals import Interrupted, StopRequest
from lambert.engine.step import Step
from lambert.model.config import EncoderConfig
from lambert.model.weights import fresh

SIZES = (1, 2, 4)
STEPS = 8
COMPRESSED: tuple[Name, ...] = ("bfloat16", "float16", "int8", "int4", "powersgd")


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


def trained(
    net: nn.Module, world: World, exchange: Exchange, batches: Iterator[Share], *, start: int = 0, stop: int = STEPS,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[Step]:  # fmt: skip
    return list(
        train(
            net, optimizer or adamw(net), batches, schedule=schedule, max_grad_norm=1.0, precision=Precision("float32"),
            world=world, seed=3, start=start, steps=stop, exchange=exchange,
        )
    )  # fmt: skip


def weights(net: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def exact(world: World) -> Any:
    """Weights and losses, overlapped in many small buckets, and as a tree."""
    found = {}
    for name, deterministic in (("overlapped", False), ("deterministic", True)):
        net = Tiny()
        exchange = build(net, world, ExchangeConfig(bucket_mb=1e-5), deterministic=deterministic)
        steps = trained(net, world, exchange, shared(world) if deterministic else whole(world))
        found[name] = (weights(net), [step.loss for step in steps], [step.loads for step in steps])
    return found


def compressed(world: World) -> Any:
    """The last loss by each method, and whether all ranks have the same weights."""
    found = {}
    for name in COMPRESSED:
        net = Tiny(dropout=0.0, width=32)
        exchange = build(net, world, ExchangeConfig(method=name, rank=2, bucket_mb=0.001))
        losses = [step.loss for step in trained(net, world, exchange, whole(world), stop=40)]
        values = sum(tensor.numel() for key, tensor in exchange.state().items() if key.startswith("residual/"))
        assert values == exchange.residuals_per_weight * len(weights(net))
        found[name] = (losses, weights(net))
    return found


def continued(world: World) -> Any:
    """Settled and saved after half of the updates: as it goes on, and as one that was restored."""
    found = {}
    for name in COMPRESSED:
        ends = []
        net = Tiny()
        exchange, optimizer = build(net, world, ExchangeConfig(method=name, rank=2)), adamw(net)
        trained(net, world, exchange, whole(world), stop=4, optimizer=optimizer)
        exchange.average_residuals(optimizer)
        kept = {key: tensor.clone() for key, tensor in exchange.state().items()}
        before, moments = net.state_dict(), deepcopy(optimizer.state_dict())
        restored = Tiny()
        restored.load_state_dict(before)
        other, again = build(restored, world, ExchangeConfig(method=name, rank=2)), adamw(restored)
        again.load_state_dict(moments)
        other.load(kept)
        for one, by, steps in ((net, exchange, optimizer), (restored, other, again)):
            trained(one, world, by, whole(world, start=4), start=4, stop=8, optimizer=steps)
            ends.append(weights(one))
        found[name] = (ends, sorted(kept))
    return found


def early(world: World) -> Any:
    """What went in, and what was delivered or is held back, of a run that changes its method after the second update
    and goes on from a checkpoint after the first; and what was held back there."""
    found = {}
    for name in ("float32", "int4", "powersgd"):
        totals: dict[str, Tensor] = {}
        net, config = Tiny(dropout=0.0), ExchangeConfig(method=name, rank=2, dense_share=0.5)
        optimizer = torch.optim.SGD(net.parameters())
        kept: list[dict[str, Tensor]] = []
        for first, stop in ((0, 1), (1, 4)):
            exchange = build(net, world, config, updates=4)
            exchange.load(kept[-1] if kept else {})
            for _ in train(
                net,
                optimizer,
                whole(world, start=first),
                schedule=lambda n: 0.0,
                max_grad_norm=0.0,
                world=world,
                seed=3,
                precision=Precision("float32"),
                start=first,
                steps=stop,
                exchange=exchange,
            ):
                for key, view in zip(exchange.gradients.names, exchange.gradients.views, strict=True):
                    totals[key] = totals.get(key, 0) + view
            exchange.average_residuals(optimizer)
            kept.append(exchange.state())
        sums = [total + kept[-1].get(f"residual/{key}", 0) for key, total in totals.items()]
        found[name] = (torch.cat([part.flatten() for part in sums]), sorted(kept[0]), sorted(kept[1]))
    return found


def scaled(world: World) -> Any:
    """Sums of gradients of the third update of float16, where the loss scale stays and where it changes before it."""
    sums = []
    for scale in (2.0**8, 2.0**12):
        net, precision = Tiny(dropout=0.0), Precision("float16")
        exchange, optimizer = build(net, world, ExchangeConfig(method="int4", dense_share=0.0)), adamw(net)
        for first, stop, loss_scale in ((0, 2, 2.0**8), (2, 3, scale)):
            state = precision.state()
            precision.load(state | {"scaler": state["scaler"] | {"scale": loss_scale}})
            for _ in train(
                net, optimizer, whole(world, start=first), schedule=schedule, max_grad_norm=0.0, precision=precision,
                world=world, seed=3, start=first, steps=stop, exchange=exchange,
            ):  # fmt: skip
                pass
        sums.append(exchange.gradients.flat.clone())
    return sums


def local(world: World) -> Any:
    """Weights after local steps: apart in between, the same after every third update and once settled."""
    net = Tiny()
    exchange, optimizer, found = build(net, world, ExchangeConfig(sync_every=3)), adamw(net), []
    for step in train(
        net,
        optimizer,
        whole(world),
        schedule=schedule,
        max_grad_norm=1.0,
        precision=Precision("float32"),
        world=world,
        seed=3,
        start=0,
        steps=5,
        exchange=exchange,
    ):
        if step.index == 5:
            exchange.average_residuals(optimizer)
        found.append((weights(net), step.loss, step.grad_norm))
    moments = torch.cat([slots["exp_avg"].flatten() for slots in optimizer.state.values()])
    return found, moments


def short(world: World) -> Any:
    """Weights of local steps, in the midst of which a rank ran out of memory."""
    net = Tiny()
    exchange, optimizer, passes, forward = build(net, world, ExchangeConfig(sync_every=3)), adamw(net), [0], net.forward

    def limited(batch: Batch) -> Tensor:
        passes[0] += 1
        if world.rank == world.size - 1 and passes[0] == 4 * 8 // world.size + 1:
            raise MemoryError
        return forward(batch)

    net.forward = limited  # type: ignore[method-assign]
    with pytest.raises(OutOfMemory) as error:
        trained(net, world, exchange, whole(world), stop=6, optimizer=optimizer)
    done = error.value.update - 1
    trained(net, world, exchange, whole(world, start=done), start=done, stop=6, optimizer=optimizer)
    return done, weights(net)


def struck(world: World) -> Any:
    """Who is to blame for a skipped update: where gradients travel, and where ranks take steps of their own."""
    return [_struck(world, config) for config in (ExchangeConfig(method="int8"), ExchangeConfig(sync_every=3))]


def _struck(world: World, config: ExchangeConfig) -> Any:
    net, number = Tiny(), 1

    def explode(gradient: Tensor) -> Tensor:
        return gradient * (float("nan") if world.rank == world.size - 1 and number == 2 else 1)

    net.dense.weight.register_hook(explode)  # type: ignore[no-untyped-call]
    found = []
    for step in train(
        net,
        adamw(net),
        whole(world),
        schedule=schedule,
        max_grad_norm=1.0,
        precision=Precision("float32"),
        world=world,
        seed=3,
        start=0,
        steps=3,
        exchange=build(net, world, config),
    ):
        found.append((step.skipped, step.faults, step.non_finite, step.exchange_seconds != (0, 0)))
        number += 1
    return found


def stop_requested(world: World) -> Any:
    """What steps say of a request to stop that the last rank hears in the second update."""
    net, stop = Tiny(), StopRequest()
    found = []
    for step in train(
        net,
        adamw(net),
        whole(world),
        schedule=schedule,
        max_grad_norm=1.0,
        precision=Precision("float32"),
        world=world,
        seed=3,
        start=0,
        steps=3,
        exchange=build(net, world, ExchangeConfig()),
        stop=stop,
    ):
        found.append((step.stop_requested, step.stop_requested and stop.agreed(world), stop.reason))
        if step.index == 1 and world.rank == world.size - 1:
            with contextlib.suppress(Interrupted):
                stop._ask(signal.SIGTERM, None)
    return found


class Noting(DistributedExchange):
    """Notes the share of the buckets that were handed over by the end of each backward pass."""

    def finish(self) -> None:
        self.shares = [*getattr(self, "shares", []), self._next / len(self.buckets)]
        super().finish()


def tied(world: World) -> Any:
    """Weights of a BERT with a tied decoder: its table sent whole at the end, or its dense part first and then rows.
    Two updates: the first is watched, and later ones amplify the order of sums through bfloat16 weights."""
    found, options = {}, ExchangeConfig(bucket_mb=0.05)
    for name, apart in (("whole", False), ("apart", True)):
        config = EncoderConfig(vocabulary=600, hidden=32, layers=2, heads=2, intermediate=64, positions=16)
        model = fresh(config, {"mlm": 0, "nsp": 0}, seed=5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        exchange = Noting(model, world, options) if isinstance(world, Group) else build(model, world, options)
        tied = getattr(exchange, "tied_embedding", None)
        if tied is not None and not apart:
            tied.active = False
        list(
            train(
                model,
                optimizer,
                whole(world),
                schedule=lambda n: 0.1,
                max_grad_norm=0.0,
                precision=Precision("bfloat16"),
                world=world,
                seed=3,
                start=0,
                steps=2,
                exchange=exchange,
            )
        )
        shares = exchange.shares if isinstance(exchange, Noting) else []
        found[name] = (weights(model), None if tied is None else tied.active, shares)
    return found


def nested(world: World) -> Any:
    """Weights where four ranks are two machines of two, and where they are four machines."""
    found = {}
    for name in ("float32", "int8"):
        for machines in ("on", "off"):
            net = Tiny()
            halves = replace(world, local_size=2) if world.size == 4 else world
            exchange = build(net, halves, ExchangeConfig(method=name, nodes=machines))
            losses = [step.loss for step in trained(net, halves, exchange, whole(world))]
            found[name, machines] = (weights(net), losses, sorted(exchange.state()))
    return found


def caught(work: Callable[[], object]) -> tuple[str, str]:
    try:
        work()
    except LambertError as error:
        return type(error).__name__, str(error)
    return "", ""


def agreed(world: World) -> Any:
    """What is said where ranks differ, fail or break."""

    def failing() -> None:
        with world.together("reading its data"):
            if world.rank == 1:
                raise DataError("no shard 7.")

    net = Tiny()
    same = caught(lambda: agreement.compare_weights(world, net, 5))
    if world.rank == 1:
        net.dense.weight.data.view(torch.int32)[0, 0] ^= 1
    return {
        "same": same,
        "weights": caught(lambda: agreement.compare_weights(world, net, 5)),
        "facts": caught(lambda: agreement.compare(world, {"seed": 1 + (world.rank == 1), "lr": 0.5})),
        "equal facts": caught(lambda: agreement.compare(world, agreement.software())),
        "failing": caught(failing),
    }


CHECKS = (exact, compressed, continued, early, scaled, local, short, struck, stop_requested, tied, nested, agreed)


def _all(out: Path) -> None:
    with detect("cpu", timeout=HANGS) as world:
        for check in CHECKS:
            torch.save(check(world), out / f"{check.__name__}-{world.size}-{world.rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int, int], Any]:
    out = tmp_path_factory.mktemp("ranks")
    for size in SIZES:
        port = free_port()
        processes = [start(_all, out, rank=rank, world=size, port=port) for rank in range(size)]
        for process in processes:
            process.join(HANGS)
        assert [process.exitcode for process in processes] == [0] * size

    def of(check: str, size: int, rank: int = 0) -> Any:
        return torch.load(out / f"{check}-{size}-{rank}.pt")

    return of


def same_on_all_ranks(found: Callable[..., Any], check: str, size: int, get: Callable[[Any], Tensor]) -> bool:
    return all(torch.equal(get(found(check, size)), get(found(check, size, rank))) for rank in range(size))


@pytest.mark.parametrize("size", [2, 4])
def test_overlapped_sums_give_the_steps_of_one_process(found: Callable[..., Any], size: int) -> None:
    alone, losses, _ = found("exact", 1)["overlapped"]
    several, theirs, loads = found("exact", size)["overlapped"]
    assert (several - alone).abs().max() <= 1e-5 * alone.abs().max()
    assert theirs == pytest.approx(losses, rel=1e-6)
    assert loads[0] == (16 * LENGTH // size,) * size
    assert same_on_all_ranks(found, "exact", size, lambda out: out["overlapped"][0])


@pytest.mark.parametrize("size", [2, 4])
def test_a_deterministic_run_has_the_same_bits_on_any_number_of_ranks(found: Callable[..., Any], size: int) -> None:
    alone, losses, _ = found("exact", 1)["deterministic"]
    several, theirs, _ = found("exact", size)["deterministic"]
    assert torch.equal(several, alone)
    assert theirs == losses


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", COMPRESSED)
def test_fewer_bits_learn_as_well_and_all_ranks_alike(found: Callable[..., Any], name: str, size: int) -> None:
    exact, _ = found("compressed", 1)[name]
    losses, _ = found("compressed", size)[name]
    # Rank 2 of 32 columns and no start in bfloat16 is little: what is sent late is missed so early.
    assert sum(losses[-5:]) <= (1.2 if name == "powersgd" else 1.05) * sum(exact[-5:])
    assert losses != exact
    assert same_on_all_ranks(found, "compressed", size, lambda out: out[name][1])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", COMPRESSED)
def test_residuals_are_restored_from_a_checkpoint(found: Callable[..., Any], name: str, size: int) -> None:
    (straight, restored), kept = found("continued", size)[name]
    assert torch.equal(straight, restored)
    assert bool(kept) == (name != "bfloat16")


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["int4", "powersgd"])
def test_nothing_is_lost_where_a_run_begins_in_more_bits(found: Callable[..., Any], name: str, size: int) -> None:
    went_in, *_ = found("early", size)["float32"]
    came_out, before, after = found("early", size)[name]
    assert (came_out - went_in).abs().max() <= 1e-5 * went_in.abs().max()
    assert all(key.startswith("residual/") for key in before)
    assert set(before) <= set(after)
    assert any(key.startswith("q/") for key in after) == (name == "powersgd")


@pytest.mark.parametrize("size", [2, 4])
def test_residuals_follow_the_loss_scale(found: Callable[..., Any], size: int) -> None:
    stays, changes = found("scaled", size)
    assert (changes - stays).norm() <= 0.01 * stays.norm()


def test_local_steps_part_and_meet(found: Callable[..., Any]) -> None:
    (first, moments), (second, theirs) = found("local", 2, 0), found("local", 2, 1)
    apart = [not torch.equal(a, b) for (a, *_), (b, *_) in zip(first, second, strict=True)]
    assert apart == [True, True, False, True, False]
    assert torch.equal(moments, theirs)
    assert [step[1:] for step in first] == [step[1:] for step in second]
    alone, _ = found("local", 1)
    assert first[0][1] == pytest.approx(alone[0][1], rel=1e-6)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_meet_again_where_memory_ran_out_between_two_averagings(found: Callable[..., Any], size: int) -> None:
    assert found("short", size)[0] == 4
    assert same_on_all_ranks(found, "short", size, lambda out: out[1])


@pytest.mark.parametrize("size", SIZES)
def test_a_gradient_that_is_not_finite_names_parameter_and_rank(found: Callable[..., Any], size: int) -> None:
    for rank in range(size):
        for steps, sent in zip(found("struck", size, rank), ((True,) * 3, (False, False, True)), strict=True):
            skipped, faults, names, travelled = zip(*steps, strict=True)
            assert skipped == (False, True, False)
            assert [*faults] == [{}, {size - 1: "dense.weight"}, {}]
            assert names[1] is not None
            assert travelled == (sent if size > 1 else (False,) * 3)


@pytest.mark.parametrize("size", SIZES)
def test_all_ranks_hear_at_the_same_step_that_one_was_asked_to_stop(found: Callable[..., Any], size: int) -> None:
    first, *later = found("stop_requested", size)
    assert first == (False, False, "nothing")
    assert later == [(True, True, "SIGTERM")] * 2
    assert all(found("stop_requested", size, rank)[1:] == later for rank in range(size))


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="gradients in place need bfloat16")
@pytest.mark.parametrize("size", [2, 4])
def test_a_tied_table_sent_in_two_parts_gives_the_same_weights(found: Callable[..., Any], size: int) -> None:
    for rank in range(size):
        said = found("tied", size, rank)
        (whole_table, off, shares), (apart, on, shares_apart) = said["whole"], said["apart"]
        assert (off, on) == (False, True)
        assert shares == shares_apart == [1.0, 1.0]  # everything leaves while the backward pass goes on
        assert (apart - whole_table).abs().max() <= 1e-6
        assert torch.equal(apart, found("tied", size)["apart"][0])
        assert (apart - found("tied", 1)["apart"][0]).abs().max() <= 1e-3  # in bfloat16


@pytest.mark.parametrize(("name", "tolerance"), [("float32", 1e-6), ("int8", 0.1)])
def test_sums_within_machines_and_then_between_them(found: Callable[..., Any], name: str, tolerance: float) -> None:
    (one, losses, _), (two, theirs, kept) = (found("nested", 4)[name, machines] for machines in ("off", "on"))
    assert (one - two).abs().max() <= tolerance * one.abs().max()
    assert theirs == pytest.approx(losses, rel=max(1e-6, tolerance / 5))
    for rank in range(4):
        weights_there, _, kept_there = found("nested", 4, rank)[name, "on"]
        assert torch.equal(weights_there, two)
        assert kept_there == (kept if rank % 2 == 0 else [])  # leaders hold back


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_differ_are_named_on_all(found: Callable[..., Any], size: int) -> None:
    for rank in range(size):
        said = found("agreed", size, rank)
        assert said["same"] == said["equal facts"] == ("", "")
        kind, text = said["weights"]
        assert kind == MachineError.__name__
        assert "dense.weight" in text
        assert size == 2 or "rank 1 differ" in text
        kind, text = said["facts"]
        assert kind == UsageError.__name__
        assert "Rank 1 differs from rank 0 in seed: 2 instead of 1" in text
        assert said["failing"] == ("DataError", "Rank 1 failed reading its data: no shard 7.")


class Paced:
    """A step of four ranks, the third of which takes so long."""

    def __init__(self, slowest: float, loads: tuple[int, ...] = (100, 100, 100, 100)) -> None:
        self.rank_seconds, self.loads, self.tokens = [1.0, 1.0, slowest, 1.0], loads, sum(loads)


@pytest.mark.parametrize(("slowest", "said"), [(1.1, 0), (3.0, 1)])
def test_a_straggler_is_named_once(slowest: float, said: int) -> None:
    slow = Stragglers()
    lines = [line for _ in range(200) if (line := slow.watch(Paced(slowest)))]  # type: ignore[arg-type]
    assert len(lines) == said
    assert all("rank 2 is slow" in line for line in lines)


def test_more_work_is_not_slowness() -> None:
    slow = Stragglers()
    assert not any(slow.watch(Paced(3.0, (100, 100, 300, 100))) for _ in range(100))  # type: ignore[arg-type]


def test_idle_ranks_are_said_once() -> None:
    slow = Stragglers()
    lines = [slow.watch(Paced(0.0, (100, 100, 0, 0))) for _ in range(3)]  # type: ignore[arg-type]
    assert "2 of 4 ranks have nothing to do" in lines[0]
    assert lines[1:] == ["", ""]
