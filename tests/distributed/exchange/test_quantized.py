import shutil
import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
from checks import assert_same_bits, bucket_of, everyones, gradients, on_all_ranks
from torch.distributed import ProcessGroup

from lambert.core.errors import DataError, UsageError
from lambert.core.wire import BLOCKS, quantized_bytes, ring_bytes
from lambert.distributed.exchange import quantized
from lambert.distributed.exchange.quantized import Quantized
from lambert.distributed.exchange.reduction import AllReduce, Method
from lambert.engine.gradients import Bucket

SHAPES = [(40, 33), (11,), (64, 3, 5), (1,)]
RELATIVE = {8: 0.01, 4: 0.2}
"""Largest relative error of one sum in L2, for normally distributed gradients."""


def sums_are_close_and_the_same_bits(group: ProcessGroup) -> None:
    rank = dist.get_rank(group)
    for bits, error in RELATIVE.items():
        for shapes, align in ((SHAPES, 1), (SHAPES, 128), ([(5,)], 1), ([(700_000,)], 64), ([(256,)], 1)):
            bucket = bucket_of(gradients(shapes, rank), align=align)
            expected = torch.stack(everyones(bucket.flat, group)).sum(0)
            Quantized(group, bits).reduce(bucket)
            assert_same_bits(bucket.flat, group)
            assert 0 < (bucket.flat - expected).norm() <= error * expected.norm()


def an_element_errs_by_half_a_step_of_each_rounding(group: ProcessGroup) -> None:
    for bits, levels in ((8, 127), (4, 7)):
        block = BLOCKS[bits]
        bucket = bucket_of(gradients([(block * 40,)], dist.get_rank(group)))
        everything = torch.stack(everyones(bucket.flat, group))
        expected = everything.sum(0)
        Quantized(group, bits).reduce(bucket)
        largest = everything.view(len(everything), -1, block).abs().amax(2).sum(0)
        bound = largest / levels / 2 * (1 if group.size() == 2 else 2 + 1 / levels) * 1.005
        assert ((bucket.flat - expected).view(-1, block).abs() <= bound[:, None]).all()


def nothing_is_lost(group: ProcessGroup) -> None:
    """What was delivered and what is held back is what went in, however the loss scale of float16 changes."""
    for bits in RELATIVE:
        for align, scales in ((1, (1.0,)), (64, (1.0,)), (64, (2.0**16, 2.0**17, 2.0**12))):
            method = Quantized(group, bits)
            went_in, delivered = None, None
            for update in range(20):
                bucket = bucket_of(gradients(SHAPES, 100 * update + dist.get_rank(group)), align=align)
                exact = torch.stack(everyones(bucket.flat, group)).double().sum(0)
                scale = scales[update % len(scales)]
                method.rescale(partial(float, scale))
                bucket.flat.mul_(scale)
                method.reduce(bucket)
                bucket.flat.div_(scale)
                went_in = exact if went_in is None else went_in + exact
                delivered = bucket.flat.double() if delivered is None else delivered + bucket.flat
            assert went_in is not None
            assert delivered is not None
            assert (delivered - went_in).abs().max() > 1e-3
            method.average_residuals([bucket])
            state = method.state()
            held = bucket_of([state[f"residual/{name}"] for name in bucket.names], align=align).flat
            assert (delivered + held - went_in).abs().max() <= 2e-5


def the_state_is_that_of_any_number_of_ranks(group: ProcessGroup) -> None:
    size, rank = group.size(), dist.get_rank(group)
    method, grads = Quantized(group, 4), gradients(SHAPES, rank)
    for _ in range(3):
        method.reduce(bucket := bucket_of(grads, align=64))
    method.average_residuals([bucket])
    state = method.state()
    assert sorted(state) == [f"residual/p{i}" for i in range(len(SHAPES))]
    for tensor in state.values():
        assert_same_bits(tensor, group)
    fewer = dist.new_group([0, 1], use_local_synchronization=True) if size == 4 and rank < 2 else group
    if size == 4 and rank >= 2:
        return
    resumed = Quantized(fewer, 8)
    # In two buckets, neither aligned, of other numbers.
    buckets = [bucket_of(grads[:1], index=5), bucket_of(grads[1:], index=3, first=1)]
    resumed.load(state, buckets)
    for name, tensor in resumed.state().items():
        assert torch.allclose(tensor, state[name], rtol=1e-6, atol=0)
    zeros = [bucket_of([torch.zeros_like(grad) for grad in grads[:1]], index=5)]
    resumed.reduce(zeros[0])
    assert (zeros[0].flat - state["residual/p0"].flatten()).norm() <= 0.01 * state["residual/p0"].norm()
    with pytest.raises(DataError, match="residual of p0"):
        resumed.load({"residual/p0": torch.zeros(3)}, buckets)


def what_is_not_finite_is_so_on_all_ranks_and_forgotten(group: ProcessGroup) -> None:
    rank, size = dist.get_rank(group), group.size()
    for bits in RELATIVE:
        for align in (1, 64):
            method = Quantized(group, bits)
            method.reduce(bucket_of(gradients(SHAPES, rank), align=align))
            for bad in (torch.nan, torch.inf, -torch.inf):
                for where in (0, -1, 700, 1500):
                    before = {name: tensor.clone() for name, tensor in method.state().items()}
                    bucket = bucket_of(gradients(SHAPES, rank), align=align)
                    if rank == size - 1:
                        bucket.views[0 if where < 1000 else 2].view(-1)[where % 1000 - (where < 0)] = bad
                    method.reduce(bucket)
                    assert not bucket.flat.isfinite().any()
                    for name, tensor in method.state().items():
                        assert torch.equal(tensor, before[name])
            bucket = bucket_of(gradients(SHAPES, rank), align=align)
            bucket.flat[7] = 3e38
            method.reduce(bucket)
            assert not bucket.flat.isfinite().any()
            for name, tensor in method.state().items():
                assert torch.equal(tensor, before[name])
            method.reduce(bucket := bucket_of(gradients(SHAPES, rank), align=align))
            assert bucket.flat.isfinite().all()


def zeros_and_tiny_numbers_are_no_trouble(group: ProcessGroup) -> None:
    for bits in RELATIVE:
        method = Quantized(group, bits)
        for value in (0.0, 1e-42, 1e-30, 1e-37):
            bucket = bucket_of([torch.full((300,), value), torch.zeros(5000)], align=128)
            method.reduce(bucket)
            assert bucket.flat.isfinite().all()
            assert (bucket.views[1] == 0).all()
        assert (bucket_of([torch.zeros(300)], align=128).flat[300:] == 0).all()


def four_bits_learn_with_feedback_and_not_without(group: ProcessGroup) -> None:
    """Half the squared distance to centres of each rank's own, with a gradient in each block that is always large."""
    centres = gradients([(512,)], 1)[0] + 0.1 * gradients([(512,)], 2 + dist.get_rank(group))[0]
    goal = torch.stack(everyones(centres, group)).mean(0)
    large = torch.zeros(512)
    large[::64] = 20.0

    def distance(method: Method, *, forgets: bool = False) -> float:
        weights = torch.zeros(512)
        for update in range(80):
            bucket = bucket_of([torch.where(large > 0, large, weights - centres)])
            if forgets:
                method.load({}, [bucket])
            method.reduce(bucket)
            weights = weights - 0.3 / (1 + update / 10) * bucket.flat / group.size()
        return float((weights - goal)[large == 0].square().mean())

    assert distance(AllReduce(group)) < 1e-3
    assert distance(Quantized(group, 8)) < 1e-3
    assert distance(Quantized(group, 4)) < 1e-2
    assert distance(Quantized(group, 4), forgets=True) > 0.2


class Counting(Quantized):
    """Knows how large its payloads are."""

    def sent(self, bucket: Bucket) -> int:
        self.reduce(bucket)
        others = self._size - 1
        if self._size == 2:
            return len(self._sent._bytes)
        return 2 * others * len(self._sent._bytes) // self._size


def the_wire_is_about_as_short_as_the_bits(group: ProcessGroup) -> None:
    for bits, times in ((8, 3.9), (4, 7.4)):
        bucket = bucket_of([torch.ones(200_000)], align=128)
        method = Counting(group, bits)
        expected = quantized_bytes(len(bucket.flat), bits, group.size())
        assert ring_bytes(4 * len(bucket.flat), group.size()) / expected >= times
        assert method.sent(bucket) == expected


def what_does_not_compile_runs_eagerly(group: ProcessGroup) -> None:
    def broken(kernel: object) -> None:
        raise RuntimeError("no C++ compiler")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized, "_compile", broken)
        method = Quantized(group, 8, compile_for=torch.device("cpu"))
    assert not method.compilation.active
    assert method.compilation.problem == "RuntimeError: no C++ compiler"
    bucket, same = (bucket_of(gradients(SHAPES, dist.get_rank(group))) for _ in range(2))
    method.reduce(bucket)
    Quantized(group, 8).reduce(same)
    assert torch.equal(bucket.flat, same.flat)


def other_bits_are_refused(group: ProcessGroup) -> None:
    with pytest.raises(UsageError, match="8 or 4 bits"):
        Quantized(group, 2)


test_on_all_ranks = on_all_ranks(
    sums_are_close_and_the_same_bits,
    an_element_errs_by_half_a_step_of_each_rounding,
    nothing_is_lost,
    the_state_is_that_of_any_number_of_ranks,
    what_is_not_finite_is_so_on_all_ranks_and_forgotten,
    zeros_and_tiny_numbers_are_no_trouble,
    four_bits_learn_with_feedback_and_not_without,
    the_wire_is_about_as_short_as_the_bits,
    what_does_not_compile_runs_eagerly,
    other_bits_are_refused,
)


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.slow
@pytest.mark.parametrize(("codes", "width"), [(torch.int8, 64), (torch.uint8, 32)])
def test_compiled_kernels_give_the_same_bits(codes: torch.dtype, width: int) -> None:
    for rows in (8, 3000):
        generator = torch.Generator().manual_seed(rows)
        grads, held = torch.randn(2, rows, 64, generator=generator) * torch.logspace(-39, 36, rows)[:, None]
        found = []
        for wrap in (lambda kernel: kernel, quantized._compile):
            tensors = grads.clone(), held.clone(), torch.zeros(rows, dtype=torch.bfloat16)
            written = torch.zeros(rows, width, dtype=codes)
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wrap(quantized._send)(*tensors, written)
                wrap(quantized._add)(total := grads.clone(), tensors[2], written)
            found.append((*tensors, written, total))
        for eager, compiled in zip(*found, strict=True):
            assert torch.equal(eager, compiled)
