"""Local steps: ranks take steps of their own and average their weights."""

from typing import Any

import pytest
import torch
from exchange_runs import Found, found_by, same_on_all_ranks, trained, updates, whole
from tiny import Tiny, adamw, weights
from torch import Tensor

from lambert.core.batch import Batch
from lambert.core.world import World
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.exchange import build
from lambert.engine.loop import OutOfMemory


def local(world: World) -> Any:
    """Weights after local steps: apart in between, the same after every third update and once settled."""
    net = Tiny()
    exchange, optimizer, found = build(net, world, ExchangeConfig(sync_every=3)), adamw(net), []
    for step in updates(net, world, exchange, whole(world), stop=5, optimizer=optimizer):
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


found = found_by(local, short)


def test_local_steps_part_and_meet(found: Found) -> None:
    (first, moments), (second, theirs) = found("local", 2, 0), found("local", 2, 1)
    apart = [not torch.equal(a, b) for (a, *_), (b, *_) in zip(first, second, strict=True)]
    assert apart == [True, True, False, True, False]
    assert torch.equal(moments, theirs)
    assert [step[1:] for step in first] == [step[1:] for step in second]
    alone, _ = found("local", 1)
    assert first[0][1] == pytest.approx(alone[0][1], rel=1e-6)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_meet_again_where_memory_ran_out_between_two_averagings(found: Found, size: int) -> None:
    assert found("short", size)[0] == 4
    assert same_on_all_ranks(found, "short", size, lambda out: out[1])
