"""What each operation gives on each rank, what it gives autograd, and what happens where ranks do not agree."""

import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lambert.horovod as hvd
from lambert.wings.horovod import session

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def of_rank(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Small whole numbers, so that sums are exact in every type."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(1, 7, shape, generator=generator).to(dtype)


def of_all(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.stack([of_rank(rank, *shape, dtype=dtype) for rank in range(hvd.size())])


def equal(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def allreduce_reduces_every_type_and_shape() -> None:
    wanted: dict[Any, Callable[[Tensor], Tensor]] = {
        hvd.Sum: lambda x: x.sum(0),
        hvd.Min: lambda x: x.amin(0),
        hvd.Max: lambda x: x.amax(0),
        hvd.Product: lambda x: x.prod(0),
    }
    for dtype, shape in itertools.product(FLOATS + INTEGERS, [(), (0,), (5,), (2, 3, 4)]):
        mine = of_rank(hvd.rank(), *shape, dtype=dtype)
        for op, reduce in wanted.items():
            before = mine.clone()
            equal(hvd.allreduce(mine, op=op), reduce(of_all(*shape, dtype=dtype)).to(dtype))
            equal(mine, before)


def average_divides_and_truncates_integers() -> None:
    for dtype in FLOATS:
        equal(hvd.allreduce(of_rank(hvd.rank(), 9, dtype=dtype)), of_all(9, dtype=dtype).sum(0) / hvd.size())
    mine = torch.tensor([-3, 3, 1]) * (hvd.rank() == 0)
    equal(hvd.allreduce(mine), torch.tensor([-1, 1, 0]))


def factors_scale_before_and_after() -> None:
    for dtype in FLOATS:
        scaled = hvd.allreduce(
            of_rank(hvd.rank(), 9, dtype=dtype), op=hvd.Sum, prescale_factor=2, postscale_factor=0.25
        )
        equal(scaled, of_all(9, dtype=dtype).sum(0) / 2)
    scaled = hvd.allreduce(of_rank(hvd.rank(), 9, dtype=torch.int32), op=hvd.Sum, prescale_factor=0.5)
    equal(scaled, (of_all(9, dtype=torch.int32) * 0.5).to(torch.int32).sum(0).to(torch.int32))


def large_and_small_tensors_are_reduced_in_place() -> None:
    tensors = [of_rank(hvd.rank(), n) for n in (3, 1 << 19, 5, 1 << 18)]
    strided = of_rank(hvd.rank(), 6, 4).t()
    large = of_rank(hvd.rank(), 2048, 2048)
    unlike = large if hvd.rank() else large.t().contiguous().t()  # it lies otherwise on the first rank alone
    whole = [*tensors, strided, unlike]
    wanted = [of_all(*tensor.shape).sum(0) for tensor in tensors]
    wanted += [of_all(6, 4).sum(0).t(), of_all(2048, 2048).sum(0)]
    handles = [hvd.allreduce_async_(tensor, name=f"in_place.{i}", op=hvd.Sum) for i, tensor in enumerate(whole)]
    for tensor, handle, right in zip(whole, handles, wanted, strict=True):
        assert hvd.synchronize(handle) is tensor
        equal(tensor, right)


def operations_match_by_name_and_not_by_order() -> None:
    for _ in range(4):  # the first round is negotiated in full, later ones as bits
        names = list(range(40)) if hvd.rank() else list(range(39, -1, -1))
        handles = {i: hvd.allreduce_async(torch.full((i + 1,), float(i)), name=f"by_name.{i}") for i in names}
        for i, handle in sorted(handles.items()):
            equal(hvd.synchronize(handle), torch.full((i + 1,), float(i)))
    repeated = session.current().negotiator._known
    assert all((0, f"allreduce.by_name.{i}") in repeated for i in range(40))


def a_name_may_change_its_shape() -> None:
    for size in (3, 3, 3, 5, 5, 3, 4):
        equal(hvd.allreduce(torch.ones(size), name="changes", op=hvd.Sum), torch.full((size,), float(hvd.size())))
    refused("the shape", lambda: hvd.allreduce(torch.ones(3 + hvd.rank()), name="changes"), sent=["[3]", "[4]"])
    equal(hvd.allreduce(torch.ones(3), name="changes"), torch.ones(3))


def grouped_operations_give_one_result_for_each_tensor() -> None:
    sizes = (2, 1 << 18, 7)
    wanted = [of_all(size).sum(0) for size in sizes]
    mine = [of_rank(hvd.rank(), size) for size in sizes]
    for found, right in zip(hvd.grouped_allreduce(mine, op=hvd.Sum), wanted, strict=True):
        equal(found, right)
    handle = hvd.grouped_allreduce_async([mine[0]], op=hvd.Sum)
    (found,) = hvd.synchronize(handle)
    equal(found, wanted[0])
    assert hvd.grouped_allreduce_(mine, op=hvd.Sum)[1] is mine[1]
    equal(mine[1], wanted[1])
    first, second = hvd.grouped_allgather([torch.full((hvd.rank() + 1, 2), hvd.rank()), torch.tensor([hvd.rank()])])
    equal(first, torch.tensor([[0, 0], [1, 1], [1, 1]]))
    equal(second, torch.arange(2))
    rows = hvd.grouped_reducescatter([of_rank(hvd.rank(), 4), of_rank(hvd.rank(), 5, 2)], op=hvd.Sum)
    equal(rows[0], of_all(4).sum(0).chunk(2)[hvd.rank()])
    equal(rows[1], of_all(5, 2).sum(0).split_with_sizes([3, 2])[hvd.rank()])


def allgather_joins_rows_of_different_number() -> None:
    for dtype in [*FLOATS, *INTEGERS, torch.bool, torch.complex64]:
        parts = [torch.full((rank * 3, 2), 1 + rank).to(dtype) for rank in range(hvd.size())]
        equal(hvd.allgather(parts[hvd.rank()]), torch.cat(parts))
        equal(hvd.allgather(torch.ones(4, dtype=dtype)), torch.ones(4 * hvd.size(), dtype=dtype))
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)


def broadcast_gives_the_root_s_values() -> None:
    for dtype, root in itertools.product([*FLOATS, *INTEGERS, torch.bool], range(hvd.size())):
        mine = of_rank(hvd.rank(), 3, 2, dtype=dtype)
        equal(hvd.broadcast(mine, root), of_rank(root, 3, 2, dtype=dtype))
        equal(mine, of_rank(hvd.rank(), 3, 2, dtype=dtype))
        strided = mine.clone().t()
        assert hvd.broadcast_(strided, root) is strided
        equal(strided, of_rank(root, 3, 2, dtype=dtype).t())


def alltoall_sends_rows_to_each_rank() -> None:
    mine = torch.arange(6).view(6, 1) + 10 * hvd.rank()
    equal(
        hvd.alltoall(mine[:4]), torch.cat([(torch.arange(4).view(4, 1) + 10 * r).chunk(2)[hvd.rank()] for r in (0, 1)])
    )
    sent = [[1, 4], [2, 0]]
    output, received = hvd.alltoall(mine, splits=sent[hvd.rank()])
    starts = [0, 0] if hvd.rank() == 0 else [1, 2]
    wanted = [torch.arange(starts[r], starts[r] + sent[r][hvd.rank()]).view(-1, 1) + 10 * r for r in (0, 1)]
    equal(output, torch.cat(wanted))
    equal(received, torch.tensor([sent[0][hvd.rank()], sent[1][hvd.rank()]], dtype=torch.int32))
    for splits, message in [([1], "splits for"), ([5, 5], "not parts"), ([-1, 1], "not parts")]:
        with pytest.raises(ValueError, match=message):
            hvd.alltoall(mine, splits=splits)


def reducescatter_gives_each_rank_its_rows() -> None:
    for dtype in [*FLOATS, *INTEGERS]:
        mine = of_rank(hvd.rank(), 5, 2, dtype=dtype)
        rows = of_all(5, 2, dtype=dtype).sum(0).to(dtype).split_with_sizes([3, 2])[hvd.rank()]
        equal(hvd.reducescatter(mine, op=hvd.Sum), rows)
    mine = of_rank(hvd.rank(), 4)
    equal(hvd.reducescatter(mine, prescale_factor=4, postscale_factor=0.5), of_all(4).sum(0).chunk(2)[hvd.rank()])


def sparse_tensors_are_added() -> None:
    indices = torch.tensor([[0, 2 + hvd.rank()]])
    mine = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0]), (4,), check_invariants=True)
    total = hvd.sparse_allreduce_async(mine, "sparse", hvd.Sum)().to_dense()
    equal(total, torch.tensor([2.0, 0, 2, 2]))
    mean = hvd.sparse_allreduce_async(mine, "sparse", hvd.Average)().to_dense()
    equal(mean, torch.tensor([1.0, 0, 1, 1]))


def gradients_come_from_all_ranks() -> None:
    weights = of_rank(hvd.rank() + 10, 4, 2)
    total = sum(of_rank(rank + 10, 4, 2) for rank in range(hvd.size()))
    assert isinstance(total, Tensor)

    def gradient(operation: Callable[[Tensor], Tensor], weights: Tensor = weights) -> Tensor:
        x = of_rank(hvd.rank(), 4, 2).requires_grad_()
        torch.autograd.backward((operation(x) * weights).sum())
        assert x.grad is not None
        return x.grad

    equal(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, postscale_factor=3)), 3 * total)
    equal(gradient(hvd.allreduce), total / 2)
    equal(gradient(lambda x: hvd.grouped_allreduce([x], op=hvd.Sum)[0]), total)
    equal(gradient(lambda x: hvd.broadcast(x, 1)), total / 2 * (hvd.rank() == 1))
    long = torch.cat([weights, 2 * weights])
    equal(gradient(hvd.allgather, long), total / 2 * (1 + hvd.rank()))
    equal(gradient(hvd.alltoall), torch.cat([of_rank(r + 10, 4, 2).chunk(2)[hvd.rank()] for r in (0, 1)]))
    half = of_rank(hvd.rank() + 10, 2, 2)
    both = torch.cat([of_rank(rank + 10, 2, 2) for rank in (0, 1)])
    equal(gradient(hvd.reducescatter, half), both)
    equal(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), half), 2 * both)


def adasum_adds_orthogonal_and_averages_parallel_vectors() -> None:
    orthogonal = torch.eye(2)[hvd.rank()]
    equal(hvd.allreduce(orthogonal, op=hvd.Adasum), torch.ones(2))
    parallel = torch.tensor([3.0, 4.0]) * (1 + hvd.rank())
    torch.testing.assert_close(hvd.allreduce(parallel, op=hvd.Adasum), torch.tensor([4.5, 6.0]))
    zero = torch.ones(3) * hvd.rank()
    equal(hvd.allreduce(zero, op=hvd.Adasum), torch.ones(3))


def refused(what: str, operation: Callable[[], Any], sent: list[str]) -> None:
    """Every rank hears what the ranks do not agree on, and what each of them sent."""
    with pytest.raises(hvd.HorovodInternalError) as caught:
        operation()
    text = str(caught.value)
    assert f"do not agree on {what}" in text
    for rank, value in enumerate(sent):
        assert f"rank {rank} sent {value}" in text, text


def disagreement_is_an_error_on_every_rank() -> None:
    me = hvd.rank()
    refused("the shape", lambda: hvd.allreduce(torch.ones(2 + me), name="x"), sent=["[2]", "[3]"])
    either = [torch.float32, torch.int64][me]
    refused("the data type", lambda: hvd.allreduce(torch.ones(2, dtype=either), name="x"), ["float32", "int64"])
    refused("the reduction", lambda: hvd.allreduce(torch.ones(2), name="x", op=[hvd.Sum, hvd.Max][me]), ["Sum", "Max"])
    refused(
        "prescale_factor", lambda: hvd.allreduce(torch.ones(2), prescale_factor=1 + me), ["[1.0, 1.0]", "[2.0, 1.0]"]
    )
    refused("the root rank", lambda: hvd.broadcast(torch.ones(2), me), ["0", "1"])
    refused("the shape after", lambda: hvd.allgather(torch.ones(2, 3 + me)), ["[3]", "[4]"])
    refused("the number of dimensions", lambda: hvd.allgather(torch.ones([2] * (1 + me))), ["1", "2"])
    refused("the number of tensors", lambda: hvd.grouped_allreduce([torch.ones(2)] * (1 + me)), ["1", "2"])
    for operation in (hvd.allgather, hvd.reducescatter):
        with pytest.raises(hvd.HorovodInternalError, match="without dimensions"):
            operation(torch.tensor(1.0))
    equal(hvd.allreduce(torch.ones(2)), torch.ones(2))


def a_name_in_use_is_a_value_error() -> None:
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(1), name="twice")
        with pytest.raises(ValueError, match=r"allreduce.twice is already pending"):
            hvd.allreduce_async(torch.ones(1), name="twice")
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(1), name="twice")
    equal(hvd.synchronize(handle), torch.ones(1))


def poll_says_whether_a_result_is_there() -> None:
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(1), name="polled")
        assert not hvd.poll(handle)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(1), name="polled")
    while not hvd.poll(handle):
        time.sleep(0.001)
    hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="already synchronized"):
        hvd.poll(handle)


def ranks_that_have_joined_count_as_zeros() -> None:
    for joins_first in range(hvd.size()):
        for _ in range(3):
            hvd.allreduce(torch.ones(4), name="before_join")
        if hvd.rank() != joins_first:
            handles = [hvd.allreduce_async(torch.ones(4), name=name, op=hvd.Sum) for name in ("before_join", "other")]
            handles += [
                hvd.allreduce_async(torch.ones(4), op=op) for op in (hvd.Average, hvd.Min, hvd.Max, hvd.Product)
            ]
            for handle, wanted in zip(handles, (1, 1, 0.5, 1, 1, 1), strict=True):
                equal(hvd.synchronize(handle), torch.full((4,), float(wanted)))
            for operation in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
                with pytest.raises(hvd.HorovodInternalError, match=f"after rank {joins_first} called join"):
                    operation(torch.ones(4))
        last = hvd.join()
        assert last != joins_first
        equal(hvd.allgather(torch.tensor([last])), torch.tensor([last] * hvd.size()))


def horovod_starts_again_after_shutdown() -> None:
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.rank()
    hvd.init()
    hvd.init()
    equal(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))


def what_waits_for_a_rank_that_left_fails() -> None:
    if hvd.rank() == 0:
        with pytest.raises(hvd.HorovodInternalError, match=r"rank 1 has called shutdown\(\)"):
            hvd.allreduce(torch.ones(1), name="alone")
        with pytest.raises(hvd.HorovodInternalError, match="cannot run"):
            hvd.allreduce(torch.ones(1), name="alone")
    hvd.shutdown()
    hvd.init()


CHECKS = [
    allreduce_reduces_every_type_and_shape,
    average_divides_and_truncates_integers,
    factors_scale_before_and_after,
    large_and_small_tensors_are_reduced_in_place,
    operations_match_by_name_and_not_by_order,
    a_name_may_change_its_shape,
    grouped_operations_give_one_result_for_each_tensor,
    allgather_joins_rows_of_different_number,
    broadcast_gives_the_root_s_values,
    alltoall_sends_rows_to_each_rank,
    reducescatter_gives_each_rank_its_rows,
    sparse_tensors_are_added,
    gradients_come_from_all_ranks,
    adasum_adds_orthogonal_and_averages_parallel_vectors,
    disagreement_is_an_error_on_every_rank,
    a_name_in_use_is_a_value_error,
    poll_says_whether_a_result_is_there,
    ranks_that_have_joined_count_as_zeros,
    horovod_starts_again_after_shutdown,
    what_waits_for_a_rank_that_left_fails,
]


def test_on_ranks(outcome: str) -> None:
    assert not outcome, outcome


def test_the_log_is_as_loud_as_its_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("lambert.horovod")
    before = log.level
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "fatal")
    hvd.init()
    try:
        assert not log.isEnabledFor(logging.ERROR)
    finally:
        hvd.shutdown()
        log.setLevel(before)


def test_a_process_alone_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.allreduce(torch.ones(1))
    hvd.init()
    try:
        assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
        assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
        x = torch.arange(3.0)
        for result in (hvd.allreduce(x), hvd.allgather(x), hvd.broadcast(x, 0), hvd.alltoall(x), hvd.reducescatter(x)):
            equal(result, x)
        assert hvd.join() == 0
        with pytest.raises(ValueError, match="root rank 1"):
            hvd.broadcast(x, 1)
        with pytest.raises(ValueError, match="complex64 cannot be reduced"):
            hvd.allreduce(x.to(torch.complex64))
        with pytest.raises(ValueError, match="sparse_allreduce_async"):
            hvd.allreduce(x.to_sparse())
        with pytest.raises(ValueError, match="supersedes average"):
            hvd.allreduce(x, average=True, op=hvd.Sum)
        with pytest.warns(DeprecationWarning, match="average"):
            hvd.allreduce(x, average=False)
    finally:
        hvd.shutdown()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"HOROVOD_RANK": "0"}, "HOROVOD_SIZE is not"),
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "2"}, "rank 2 is not below size 2"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one' is not an integer"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "set MASTER_ADDR and MASTER_PORT"),
    ],
)
def test_an_environment_that_says_too_little(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "RANK", "WORLD_SIZE", "MASTER_ADDR", "HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        hvd.init()
