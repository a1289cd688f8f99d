from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from checks import assert_same_bits, bucket_of, everyones, gradients, on_all_ranks
from torch.distributed import ProcessGroup

from lambert.core.errors import UsageError
from lambert.distributed.exchange.hierarchy import Hierarchical, nodes
from lambert.distributed.exchange.powersgd import PowerSGD
from lambert.distributed.exchange.quantized import Quantized
from lambert.distributed.exchange.reduction import AllReduce, Method

SHAPES = [(40, 33), (11,), (64, 3, 5)]
INNER: dict[str, Callable[[ProcessGroup], Method]] = {
    "float32": AllReduce,
    "float16": lambda group: AllReduce(group, torch.float16),
    "int8": Quantized,
    "int4": lambda group: Quantized(group, bits=4),
    "powersgd": lambda group: PowerSGD(group, rank=4),
}


def two_machines(inner: str) -> Hierarchical:
    local, leaders = nodes(4, 2)
    return Hierarchical(local, leaders, INNER[inner](leaders or local))


def ranks_of_a_machine_are_next_to_one_another(group: ProcessGroup) -> None:
    rank = dist.get_rank()
    local, leaders = nodes(4, 2)
    assert dist.get_process_group_ranks(local) == [rank // 2 * 2, rank // 2 * 2 + 1]
    assert (None if leaders is None else dist.get_process_group_ranks(leaders)) == ([0, 2] if rank % 2 == 0 else None)
    with pytest.raises(UsageError, match="cannot be divided into nodes of 3"):
        nodes(4, 3)


def machines_and_ranks_sum_the_same(group: ProcessGroup) -> None:
    for inner, tolerance in {"float32": 1e-6, "float16": 2e-3, "int8": 2e-2, "int4": 0.3}.items():
        method = two_machines(inner)
        bucket = bucket_of(gradients(SHAPES, dist.get_rank()), align=128)
        expected = torch.stack(everyones(bucket.flat, group)).sum(0)
        method.reduce(bucket)
        assert_same_bits(bucket.flat, group)
        assert (bucket.flat - expected).norm() <= tolerance * expected.norm()


def nothing_is_lost_and_leaders_hold_the_state(group: ProcessGroup) -> None:
    for inner in ("int4", "powersgd"):
        method, went_in, delivered = two_machines(inner), torch.zeros(1), torch.zeros(1)
        for update in range(5):
            bucket = bucket_of(gradients(SHAPES, 10 * update + dist.get_rank()), align=128)
            went_in = went_in + torch.stack(everyones(bucket.flat, group)).double().sum(0)
            method.reduce(bucket)
            delivered = delivered + bucket.flat.double()
        method.average_residuals([bucket])
        # Only the first rank's is saved, and every rank loads it.
        leads, own = dist.get_rank() % 2 == 0, method.state()
        told = [own]
        dist.broadcast_object_list(told, src=0)
        state = told[0]
        assert sorted(own) == (sorted(state) if leads else [])
        assert all(torch.equal(tensor, state[name]) for name, tensor in own.items())
        held = bucket_of([state[f"residual/{name}"] for name in bucket.names], align=128).flat
        assert (delivered + held - went_in).abs().max() <= 1e-4
        resumed = two_machines(inner)
        resumed.load(state, [bucket])
        assert sorted(resumed.state()) == sorted(own)
        for name, tensor in resumed.state().items():
            assert torch.equal(tensor, state[name])
        flat = INNER[inner](group)
        flat.load(state, [bucket])
        for name, tensor in flat.state().items():
            assert torch.equal(tensor, state[name])


def exact_methods_have_no_state(group: ProcessGroup) -> None:
    method = two_machines("float32")
    method.reduce(bucket := bucket_of(gradients(SHAPES, 0)))
    method.average_residuals([bucket])
    assert method.state() == {}


def what_is_not_finite_is_so_on_all_ranks(group: ProcessGroup) -> None:
    for inner in INNER:
        method = two_machines(inner)
        bucket = bucket_of(gradients(SHAPES, dist.get_rank()))
        if dist.get_rank() == 3:
            bucket.flat[40] = torch.inf
        method.reduce(bucket)
        assert not bucket.flat.isfinite().all()


test_on_all_ranks = on_all_ranks(
    ranks_of_a_machine_are_next_to_one_another,
    machines_and_ranks_sum_the_same,
    nothing_is_lost_and_leaders_hold_the_state,
    exact_methods_have_no_state,
    what_is_not_finite_is_so_on_all_ranks,
    sizes=(4,),
)
