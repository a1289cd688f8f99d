import pytest
import torch
import torch.distributed as dist
from checks import assert_same_bits, bucket_of, everyones, gradients, on_all_ranks
from torch.distributed import ProcessGroup

from lambert.core.errors import UsageError
from lambert.distributed.exchange.reduction import AllReduce, Butterfly

SHAPES = [(30, 7), (11,), (5, 3, 2), (1,)]


def plain_sums_are_sums(group: ProcessGroup) -> None:
    for method, tolerance in (
        (AllReduce(group), 1e-6),
        (AllReduce(group, torch.bfloat16), 2e-2),
        (AllReduce(group, torch.float16), 2e-3),
    ):
        bucket = bucket_of(gradients(SHAPES, dist.get_rank(group)), align=16)
        expected = torch.stack(everyones(bucket.flat, group)).double().sum(0)
        method.reduce(bucket)
        assert_same_bits(bucket.flat, group)
        assert (bucket.flat - expected).abs().max() <= tolerance * expected.abs().max()


def the_butterfly_is_the_pairwise_tree_to_the_bit(group: ProcessGroup) -> None:
    if group.size() == 3:
        with pytest.raises(UsageError, match="start 2 or 4"):
            Butterfly(group)
        return
    method = Butterfly(group)
    for length in (1, 2, 3, 5, 1000, 100_003):
        bucket = bucket_of(gradients([(length,)], dist.get_rank(group)))
        parts = everyones(bucket.flat, group)
        while len(parts) > 1:
            parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
        method.reduce(bucket)
        assert torch.equal(bucket.flat, parts[0])
        assert_same_bits(bucket.flat, group)


def half_precision_follows_the_size_of_gradients(group: ProcessGroup) -> None:
    method, size = AllReduce(group, torch.float16), 1e-9
    for update in range(12):
        bucket = bucket_of([grad * size for grad in gradients(SHAPES, 10 * update + dist.get_rank(group))])
        expected = torch.stack(everyones(bucket.flat, group)).double().sum(0)
        method.reduce(bucket)
        assert (bucket.flat - expected).abs().max() <= 2e-3 * expected.abs().max()
        size *= 4 if update < 6 else 1 / 64


def half_precision_saturates_and_recovers(group: ProcessGroup) -> None:
    method = AllReduce(group, torch.float16)
    for size in (1e-6, 1e6, 1e30, 3e38):
        for update in range(12):
            bucket = bucket_of([torch.full((9,), size / group.size())])
            method.reduce(bucket)
            assert bucket.flat.isfinite().all()
            if update > 0 and bucket.flat[0] > 0.99 * size:
                break
        if size < 1e30:
            assert bucket.flat == pytest.approx(size, rel=1e-3)


def what_is_not_finite_stays_so_on_all_ranks(group: ProcessGroup) -> None:
    for method in (AllReduce(group), AllReduce(group, torch.bfloat16), AllReduce(group, torch.float16)):
        for bad in (torch.inf, -torch.inf, torch.nan):
            for poisoned in (False, True, False):
                bucket = bucket_of(gradients(SHAPES, dist.get_rank(group)))
                before = method.state()
                if poisoned and dist.get_rank(group) == 1:
                    bucket.flat[17] = bad
                method.reduce(bucket)
                assert bool(bucket.flat.isfinite().all()) is not poisoned
                assert not poisoned or method.state() == before


def half_precision_continues_from_its_state(group: ProcessGroup) -> None:
    straight, grads = AllReduce(group, torch.float16), gradients(SHAPES, dist.get_rank(group))
    first, second = (bucket_of([grad * 1e-5 for grad in grads]) for _ in range(2))
    straight.reduce(first)
    resumed = AllReduce(group, torch.float16)
    resumed.load(straight.state(), [second])
    assert resumed.state() == straight.state()
    straight.reduce(bucket := bucket_of([grad * 1e-5 for grad in grads]))
    resumed.reduce(second)
    assert torch.equal(bucket.flat, second.flat)


def other_precisions_are_refused(group: ProcessGroup) -> None:
    with pytest.raises(UsageError, match="float32, bfloat16 or float16"):
        AllReduce(group, torch.float64)


test_on_all_ranks = on_all_ranks(
    plain_sums_are_sums,
    the_butterfly_is_the_pairwise_tree_to_the_bit,
    half_precision_follows_the_size_of_gradients,
    half_precision_saturates_and_recovers,
    what_is_not_finite_stays_so_on_all_ranks,
    half_precision_continues_from_its_state,
    other_precisions_are_refused,
)
