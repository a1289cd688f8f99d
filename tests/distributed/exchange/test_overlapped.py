"""The exchange in the loop: overlapped, as a tree, within nodes, and what every rank hears."""

import contextlib
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
from exchange_runs import Found, found_by, same_on_all_ranks, shared, trained, updates, whole
from tiny import LENGTH, Tiny, weights
from torch import Tensor

from lambert.core.world import World
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.exchange import build
from lambert.engine.signals import Interrupted, StopRequest

SIZES = (1, 2, 4)


def exact(world: World) -> Any:
    """Weights and losses, overlapped in many small buckets, and as a tree."""
    found = {}
    for name, deterministic in (("overlapped", False), ("deterministic", True)):
        net = Tiny()
        exchange = build(net, world, ExchangeConfig(bucket_mb=1e-5), deterministic=deterministic)
        steps = trained(net, world, exchange, shared(world) if deterministic else whole(world))
        found[name] = (weights(net), [step.loss for step in steps], [step.loads for step in steps])
    return found


def struck(world: World) -> Any:
    """Who is to blame for a skipped update: where gradients travel, and where ranks take steps of their own."""
    return [_struck(world, config) for config in (ExchangeConfig(method="int8"), ExchangeConfig(sync_every=3))]


def _struck(world: World, config: ExchangeConfig) -> Any:
    net, number = Tiny(), 1

    def explode(gradient: Tensor) -> Tensor:
        return gradient * (float("nan") if world.rank == world.size - 1 and number == 2 else 1)

    net.dense.weight.register_hook(explode)  # type: ignore[no-untyped-call]
    found = []
    for step in updates(net, world, build(net, world, config), whole(world), stop=3):
        found.append((step.skipped, step.faults, step.non_finite, step.exchange_seconds != (0, 0)))
        number += 1
    return found


def stop_requested(world: World) -> Any:
    """What steps say of a request to stop that the last rank hears in the second update."""
    net, stop = Tiny(), StopRequest()
    found = []
    for step in updates(net, world, build(net, world, ExchangeConfig()), whole(world), stop=3, request=stop):
        found.append((step.stop_requested, step.stop_requested and stop.agree(world), stop.reason))
        if step.index == 1 and world.rank == world.size - 1:
            with contextlib.suppress(Interrupted):
                stop._handle(signal.SIGTERM, None)
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


found = found_by(exact, struck, stop_requested, nested)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_overlapped_sums_give_the_steps_of_one_process(found: Found, size: int) -> None:
    alone, losses, _ = found("exact", 1)["overlapped"]
    several, theirs, loads = found("exact", size)["overlapped"]
    assert (several - alone).abs().max() <= 1e-5 * alone.abs().max()
    assert theirs == pytest.approx(losses, rel=1e-6)
    assert loads[0] == (16 * LENGTH // size,) * size
    assert same_on_all_ranks(found, "exact", size, lambda out: out["overlapped"][0])


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_deterministic_run_has_the_same_bits_on_any_number_of_ranks(found: Found, size: int) -> None:
    alone, losses, _ = found("exact", 1)["deterministic"]
    several, theirs, _ = found("exact", size)["deterministic"]
    assert torch.equal(several, alone)
    assert theirs == losses


@pytest.mark.parametrize("size", SIZES)
def test_a_gradient_that_is_not_finite_names_parameter_and_rank(found: Found, size: int) -> None:
    for rank in range(size):
        for steps, sent in zip(found("struck", size, rank), ((True,) * 3, (False, False, True)), strict=True):
            skipped, faults, names, travelled = zip(*steps, strict=True)
            assert skipped == (False, True, False)
            assert [*faults] == [{}, {size - 1: "dense.weight"}, {}]
            assert names[1] is not None
            assert travelled == (sent if size > 1 else (False,) * 3)


@pytest.mark.parametrize("size", SIZES)
def test_all_ranks_hear_at_the_same_step_that_one_was_asked_to_stop(found: Found, size: int) -> None:
    first, *later = found("stop_requested", size)
    assert first == (False, False, "nothing")
    assert later == [(True, True, "SIGTERM")] * 2
    assert all(found("stop_requested", size, rank)[1:] == later for rank in range(size))


@pytest.mark.parametrize(("name", "tolerance"), [("float32", 1e-6), ("int8", 0.1)])
def test_sums_within_machines_and_then_between_them(found: Found, name: str, tolerance: float) -> None:
    (one, losses, _), (two, theirs, kept) = (found("nested", 4)[name, machines] for machines in ("off", "on"))
    assert (one - two).abs().max() <= tolerance * one.abs().max()
    assert theirs == pytest.approx(losses, rel=max(1e-6, tolerance / 5))
    for rank in range(4):
        weights_there, _, kept_there = found("nested", 4, rank)[name, "on"]
        assert torch.equal(weights_there, two)
        assert kept_there == (kept if rank % 2 == 0 else [])  # leaders hold back
