from functools import partial

import pytest
import torch
import torch.distributed as dist
from checks import assert_same_bits, bucket_of, everyones, gradients, on_all_ranks
from torch import Tensor
from torch.distributed import ProcessGroup

from lambert.core.errors import DataError, UsageError
from lambert.distributed.exchange.powersgd import PowerSGD
from lambert.distributed.exchange.reduction import AllReduce

SHAPES = [(40, 33), (11,), (64, 3, 5), (1,), (40, 20), (4, 3), (33, 40), ()]
MATRICES = (0, 2, 4, 6)


def orthonormal(matrix: Tensor) -> Tensor:
    basis: Tensor = torch.linalg.svd(matrix, full_matrices=False).U
    return basis


def sums_are_the_same_bits_and_what_is_not_a_matrix_is_exact(group: ProcessGroup) -> None:
    method = PowerSGD(group, rank=4)
    for update in range(3):
        bucket = bucket_of(gradients(SHAPES, 10 * update + dist.get_rank(group)), align=16)
        expected = torch.stack(everyones(bucket.flat, group)).sum(0)
        exact = bucket_of([torch.zeros(shape) for shape in SHAPES], align=16)
        exact.flat.copy_(expected)
        method.reduce(bucket)
        assert_same_bits(bucket.flat, group)
        for place, (view, wanted) in enumerate(zip(bucket.views, exact.views, strict=True)):
            if place in MATRICES:
                assert torch.linalg.matrix_rank(view.reshape(len(view), -1), rtol=1e-4) == 4
                assert update > 0 or (view - wanted).norm() < 0.999 * wanted.norm()
            else:
                assert torch.allclose(view, wanted, rtol=1e-5, atol=1e-6)


def a_sum_of_low_rank_arrives_whole(group: ProcessGroup) -> None:
    """However far from it each rank's own gradient is."""
    left, right, apart = gradients([(40, 3), (33, 3), (40, 33)], 5)
    own = left @ right.T + apart * {0: 1, 1: -1}.get(dist.get_rank(group), 0)
    method = PowerSGD(group, rank=3)
    for _ in range(3):
        method.reduce(bucket := bucket_of([own]))
        expected = group.size() * left @ right.T
        assert (bucket.views[0] - expected).norm() <= 1e-4 * expected.norm()


def it_is_the_published_iteration_on_the_sum(group: ProcessGroup) -> None:
    method, (start,) = PowerSGD(group, rank=4), gradients([(4, 33)], 9)
    held, right = torch.zeros(40, 33, dtype=torch.float64), start.double().T
    for update in range(6):
        bucket = bucket_of(gradients([(40, 33)], 10 * update + dist.get_rank(group)))
        if update == 0:
            method.load({"q/p0": start}, [bucket])
        wanted = torch.stack(everyones(bucket.flat, group)).double().sum(0).view(40, 33) + held
        basis = orthonormal(wanted @ right)
        right = wanted.T @ basis
        method.reduce(bucket)
        assert (bucket.views[0] - basis @ right.T).norm() <= 1e-5 * wanted.norm()
        held = wanted - basis @ right.T


def nothing_is_lost(group: ProcessGroup) -> None:
    """What was delivered and what is held back is what went in, however the loss scale of float16 changes."""
    method, rank = PowerSGD(group, rank=2), dist.get_rank(group)
    went_in, delivered = torch.zeros(1), torch.zeros(1)
    for update in range(20):
        bucket = bucket_of(gradients(SHAPES, 100 * update + rank), align=16)
        went_in = went_in + torch.stack(everyones(bucket.flat, group)).double().sum(0)
        scale = 2.0 ** (0, 16, 12)[update % 3]
        method.rescale(partial(float, scale))
        bucket.flat.mul_(scale)
        method.reduce(bucket)
        delivered = delivered + bucket.flat.div_(scale).double()
    assert (delivered - went_in).abs().max() > 1
    method.average_residuals([bucket])
    state = method.state()
    held = bucket_of([state[f"residual/{name}"] for name in bucket.names], align=16).flat
    assert (delivered + held - went_in).abs().max() <= 1e-4


def updates_turn_to_the_mean_direction(group: ProcessGroup) -> None:
    """With the same gradients again and again, the mean of what is delivered is their sum, as 1 over the updates."""
    method, total = PowerSGD(group, rank=2), torch.zeros(40, 33)
    for update in range(1, 51):
        bucket = bucket_of(gradients([(40, 33)], dist.get_rank(group)))
        expected = torch.stack(everyones(bucket.flat, group)).sum(0).view(40, 33)
        method.reduce(bucket)
        total += bucket.views[0]
        if update in (1, 50):
            error = (total / update - expected).norm() / expected.norm()
            assert error > 0.5 if update == 1 else error < 0.25


def a_rank_of_two_learns_what_float32_learns(group: ProcessGroup) -> None:
    centre = gradients([(24, 32)], dist.get_rank(group))[0]
    goal = torch.stack(everyones(centre, group)).mean(0)
    for method in (AllReduce(group), PowerSGD(group, rank=2)):
        weights = torch.zeros(24, 32)
        for _ in range(120):
            method.reduce(bucket := bucket_of([weights - centre]))
            weights = weights - 0.12 * bucket.views[0] / group.size()
        assert (weights - goal).norm() <= 1e-3 * goal.norm()


def the_state_is_that_of_any_number_of_ranks(group: ProcessGroup) -> None:
    size, rank = group.size(), dist.get_rank(group)
    method, grads = PowerSGD(group, rank=4), gradients(SHAPES, rank)
    for _ in range(3):
        method.reduce(bucket := bucket_of(grads, align=64))
    method.average_residuals([bucket])
    state = method.state()
    assert sorted(name for name in state if name.startswith("q/")) == [f"q/p{place}" for place in MATRICES]
    for tensor in state.values():
        assert_same_bits(tensor, group)
    fewer = dist.new_group([0, 1], use_local_synchronization=True) if size == 4 and rank < 2 else group
    if size < 4 or rank < 2:
        resumed = PowerSGD(fewer, rank=4)
        buckets = [bucket_of(grads[:3], index=5), bucket_of(grads[3:], index=3, first=3)]
        resumed.load(state, buckets)
        for name, tensor in resumed.state().items():
            assert torch.allclose(tensor, state[name], rtol=1e-6, atol=0)
        resumed.reduce(zeros := bucket_of([torch.zeros_like(grad) for grad in grads[:3]], index=5))
        straight = state["residual/p0"] @ state["q/p0"].T
        basis = orthonormal(straight)
        assert torch.allclose(zeros.views[0], basis @ (basis.T @ state["residual/p0"]), atol=1e-4)
        PowerSGD(fewer, rank=3).load(state, buckets)
        with pytest.raises(DataError, match="residual of p0"):
            resumed.load({"residual/p0": torch.zeros(3)}, buckets)


def another_methods_residual_of_a_whole_gradient_is_sent_once(group: ProcessGroup) -> None:
    method, held = PowerSGD(group, rank=4), gradients(SHAPES, 1)
    zeros = [torch.zeros_like(grad) for grad in held]
    method.load({"residual/p1": held[1]}, [bucket_of(zeros)])
    for expected in (held[1], zeros[1]):
        method.reduce(bucket := bucket_of(zeros))
        assert torch.allclose(bucket.views[1], expected, rtol=1e-6)


def what_is_not_finite_is_so_on_all_ranks_and_forgotten(group: ProcessGroup) -> None:
    rank, size, method = dist.get_rank(group), group.size(), PowerSGD(group, rank=4)
    method.reduce(bucket_of(gradients(SHAPES, rank)))
    for bad in (torch.nan, torch.inf, -torch.inf):
        for place in range(len(SHAPES)):
            before = {name: tensor.clone() for name, tensor in method.state().items()}
            bucket = bucket_of(gradients(SHAPES, rank))
            if rank == size - 1:
                bucket.views[place].view(-1)[-1] = bad
            method.reduce(bucket)
            assert not bucket.flat.isfinite().any()
            for name, tensor in method.state().items():
                assert torch.equal(tensor, before[name])
    method.reduce(bucket := bucket_of(gradients(SHAPES, rank)))
    assert bucket.flat.isfinite().all()


def a_gradient_of_zeros_is_no_trouble(group: ProcessGroup) -> None:
    method, low = PowerSGD(group, rank=4), gradients([(40, 4), (33, 4)], 3)
    for _ in range(3):
        method.reduce(bucket := bucket_of([torch.zeros(40, 33), torch.zeros(3)]))
        assert (bucket.flat == 0).all()
    for _ in range(3):
        method.reduce(bucket := bucket_of([low[0] @ low[1].T, torch.zeros(3)]))
    assert bucket.flat.isfinite().all()
    assert (bucket.flat != 0).any()


def factors_alone_are_sent(group: ProcessGroup) -> None:
    method = PowerSGD(group, rank=4)
    elements = 4 * (40 + 33) + 11 + 4 * (64 + 15) + 1 + 4 * (40 + 20) + 12 + 4 * (33 + 40) + 1
    method.reduce(bucket_of(gradients(SHAPES, 0), align=64))
    assert len(method._left._bytes) + len(method._right._bytes) == 4 * elements
    with pytest.raises(UsageError, match="rank 1 or more"):
        PowerSGD(group, rank=0)


test_on_all_ranks = on_all_ranks(
    sums_are_the_same_bits_and_what_is_not_a_matrix_is_exact,
    a_sum_of_low_rank_arrives_whole,
    it_is_the_published_iteration_on_the_sum,
    nothing_is_lost,
    updates_turn_to_the_mean_direction,
    a_rank_of_two_learns_what_float32_learns,
    the_state_is_that_of_any_number_of_ranks,
    another_methods_residual_of_a_whole_gradient_is_sent_once,
    what_is_not_finite_is_so_on_all_ranks_and_forgotten,
    a_gradient_of_zeros_is_no_trouble,
    factors_alone_are_sent,
)
