"""Gradients move into buckets without anyone's noticing: the same tensors, and no memory that somebody else sees."""

import torch
from torch import Tensor

from lambert.wings.horovod.fusion import lie_together
from lambert.wings.horovod.gradients import BUCKET_BYTES, Buckets


def gradients(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.full(shape, float(i + 1)) for i, shape in enumerate(shapes)]


def test_gradients_that_moved_lie_together_scaled_and_are_the_same_tensors() -> None:
    buckets, grads = Buckets(), gradients((3, 2), (5,), ())
    before = [grad.data_ptr() for grad in grads]
    assert not lie_together(grads)
    assert all(buckets.move(grad, 0.5) for grad in grads)
    assert lie_together(grads)
    assert not lie_together(grads[::-1])
    assert [grad.data_ptr() for grad in grads] != before
    for i, (grad, shape) in enumerate(zip(grads, [(3, 2), (5,), ()], strict=True)):
        torch.testing.assert_close(grad, torch.full(shape, (i + 1) / 2))


def test_types_have_buckets_of_their_own() -> None:
    buckets = Buckets()
    grads = [torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(3)]
    assert all(buckets.move(grad, 1.0) for grad in grads)
    assert lie_together([grads[0], grads[2]])
    assert grads[1].untyped_storage().data_ptr() != grads[0].untyped_storage().data_ptr()


def test_memory_that_others_see_stays() -> None:
    buckets, flat = Buckets(), torch.ones(4)
    part, [alone] = flat[:2], gradients((2, 2))
    seen = alone.view(-1)
    for grad in (part, alone, torch.ones(2, 3).t(), torch.ones(2, 2).to_sparse()):
        assert not buckets.move(grad, 2.0)
    assert torch.equal(flat, torch.ones(4))
    del seen
    assert buckets.move(alone, 2.0)
    # Once moved, the memory is shared with the bucket's other gradients.
    assert not buckets.move(alone, 2.0)
    torch.testing.assert_close(alone, torch.full((2, 2), 2.0))


def test_a_buffer_comes_back_when_its_gradients_are_dropped() -> None:
    buckets = Buckets()
    [first], [second], [third] = gradients((4,)), gradients((4,)), gradients((4,))
    assert buckets.move(first, 1.0)
    buckets.close()
    assert buckets.move(second, 3.0)
    assert torch.equal(first, torch.ones(4))  # kept, so not written to
    address = first.data_ptr()
    del first
    buckets.close()
    assert buckets.move(third, 1.0)
    assert third.data_ptr() == address


def test_a_full_bucket_is_followed_by_another() -> None:
    buckets, size = Buckets(), BUCKET_BYTES // 4 // 2 - 1
    grads = gradients((size,), (size,), (size,))
    assert all(buckets.move(grad, 1.0) for grad in grads)
    assert lie_together(grads[:2])
    assert not lie_together(grads[1:])
    assert [(float(grad.min()), float(grad.max())) for grad in grads] == [(i, i) for i in (1, 2, 3)]
    assert not buckets.move(torch.ones(size * 2), 1.0)  # large enough to be reduced alone
