"""The buffer of all gradients: what it holds, which gradients arrive in it, its buckets; sums as a binary tree."""

import pytest
import torch
from torch import Tensor, nn

from lambert.core.errors import UsageError
from lambert.engine.gradients import Gradients, PairwiseSum

MEGABYTE = 250_000
"""Elements of float32."""


def parameters(*shapes: tuple[int, ...]) -> nn.ParameterList:
    return nn.ParameterList(nn.Parameter(torch.ones(shape)) for shape in shapes)


def test_every_gradient_is_an_aligned_part_of_the_buffer() -> None:
    net = parameters((3, 5), (130,), ())
    gradients = Gradients(net)
    for number, view in enumerate(gradients.views, 1):
        view.fill_(number)
    assert gradients.names == ["0", "1", "2"]
    assert [view.shape for view in gradients.views] == [parameter.shape for parameter in net]
    assert [view.storage_offset() for view in gradients.views] == [0, 128, 384]
    assert gradients.flat.sum() == 15 + 2 * 130 + 3
    torch.testing.assert_close(gradients.norms(), torch.tensor([15**0.5, 2 * 130**0.5, 3.0]))
    other = torch.arange(gradients.flat.numel())
    assert [int(view.reshape(-1)[0]) for view in gradients.views_of(other)] == [0, 128, 384]


def test_gradients_end_in_their_places() -> None:
    net = parameters((3,), (3,))
    gradients = Gradients(net)
    gradients.flat.fill_(torch.nan)
    gradients.clear()
    (net[1] * 2).sum().backward()  # by torch; nothing uses the other
    (net[1] * 3).sum().backward()
    gradients.collect()
    assert all(parameter.grad is view for parameter, view in zip(net, gradients.views, strict=True))
    assert [view.tolist() for view in gradients.views] == [[0, 0, 0], [5, 5, 5]]
    assert gradients.flat.sum() == 15  # nothing is left between them


def test_a_backward_pass_may_write_to_the_buffer() -> None:
    net = parameters((4, 2))
    gradients, grad = Gradients(net), torch.full((4, 2), 0.5, dtype=torch.bfloat16)
    gradients.clear()
    assert gradients.accumulate(net[0], grad) is None
    assert net[0].grad is not None
    assert net[0].grad.data_ptr() == gradients.flat.data_ptr()
    assert gradients.accumulate(net[0], grad) is None
    assert gradients.add_rows(net[0], torch.tensor([3, 0, 3]), torch.ones(3, 2)) is None
    assert gradients.views[0].tolist() == [[2, 2], [1, 1], [1, 1], [3, 3]]


def test_the_first_rows_replace_what_was_there() -> None:
    net = parameters((3, 1))
    gradients = Gradients(net)
    gradients.flat.fill_(torch.nan)
    gradients.clear()
    assert gradients.add_rows(net[0], torch.tensor([1]), torch.ones(1, 1)) is None
    assert gradients.views[0].tolist() == [[0], [1], [0]]


@pytest.mark.parametrize("released", [False, True])
def test_gradients_of_other_tensors_are_returned(released: bool) -> None:
    net = parameters((3, 1))
    gradients, outside = Gradients(net), nn.Parameter(torch.ones(3, 1))
    gradients.clear()
    if released:
        gradients.release()
        outside = net[0]
    dense = gradients.accumulate(outside, torch.ones(3, 1, dtype=torch.bfloat16))
    assert dense is not None
    assert (dense.dtype, dense.tolist()) == (torch.float32, [[1], [1], [1]])
    rows = gradients.add_rows(outside, torch.tensor([2, 2]), torch.ones(2, 1))
    assert rows is not None
    assert rows.tolist() == [[0], [0], [2]]
    assert not gradients.flat.any()


class Watching:
    """Takes the first rows; then none."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def receive_dense(self) -> None:
        self.heard.append("dense")

    def take_rows(self, ids_T: Tensor, grad_TD: Tensor) -> bool:
        self.heard.append(f"rows {ids_T.tolist()}")
        return len(self.heard) == 1


def test_an_observer_may_take_the_rows_of_a_table() -> None:
    net, watching = parameters((3, 1)), Watching()
    gradients, one = Gradients(net), torch.ones(1, 1)
    gradients.clear()
    gradients.watch(net[0], watching)
    assert gradients.add_rows(net[0], torch.tensor([0]), one) is None
    assert gradients.add_rows(net[0], torch.tensor([1]), one) is None
    assert gradients.accumulate(net[0], torch.ones(3, 1)) is None
    gradients.watch(net[0], None)
    assert gradients.add_rows(net[0], torch.tensor([2]), one) is None
    assert watching.heard == ["rows [0]", "rows [1]", "dense"]
    assert gradients.views[0].tolist() == [[1], [2], [2]]


def test_parameters_of_several_types_or_none_are_refused() -> None:
    mixed = nn.ParameterList([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1, dtype=torch.float64))])
    for net in (mixed, parameters((1,)).requires_grad_(False)):
        with pytest.raises(UsageError, match="of one dtype and on one device"):
            Gradients(net)


@pytest.mark.parametrize(
    ("megabytes", "names"),
    [
        (0.0, [["4"], ["3"], ["2"], ["1"], ["0"]]),
        (2.0, [["3", "4"], ["1", "2"], ["0"]]),  # the large one has a bucket of its own
        (3.0, [["2", "3", "4"], ["1"], ["0"]]),
        (100.0, [["0", "1", "2", "3", "4"]]),
    ],
)
def test_buckets_begin_with_the_last_parameters(megabytes: float, names: list[list[str]]) -> None:
    gradients = Gradients(parameters((4 * MEGABYTE,), *[(MEGABYTE,)] * 4))
    gradients.flat.copy_(torch.arange(len(gradients.flat)))
    buckets = gradients.buckets(megabytes)
    assert [list(bucket.names) for bucket in buckets] == names
    assert [bucket.index for bucket in buckets] == list(range(len(names)))
    assert torch.equal(torch.cat([bucket.flat for bucket in reversed(buckets)]), gradients.flat)
    for bucket in buckets:
        assert bucket.views[0].data_ptr() == bucket.flat.data_ptr()
        bucket.flat.zero_()
    assert not gradients.flat.any()


def drawn(count: int) -> list[Tensor]:
    """Gradients whose sum depends on the order of the additions."""
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(50, generator=generator) * 10.0 ** (number % 4) for number in range(count)]


def tree(parts: list[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1  # the largest power of two below
    return tree(parts[:half]) + tree(parts[half:])


@pytest.mark.parametrize("count", range(1, 10))
def test_sums_are_a_binary_tree(count: int) -> None:
    parts, total, found = drawn(count), PairwiseSum(), torch.full((50,), torch.nan)
    for _ in range(2):  # the second sum holds nothing of the first
        for part in parts:
            added = part.clone()
            total.add(added)
            added.fill_(torch.nan)  # a copy was made
        total.take(found)
        assert torch.equal(found, tree(parts))
    assert count < 4 or not torch.equal(found, sum(parts[1:], parts[0]))


def test_two_ranks_with_half_of_the_gradients_have_the_same_sum() -> None:
    parts, halves = drawn(8), [torch.empty(50), torch.empty(50)]
    for half, into in zip((parts[:4], parts[4:]), halves, strict=True):
        total = PairwiseSum()
        for part in half:
            total.add(part)
        total.take(into)
    assert torch.equal(halves[0] + halves[1], tree(parts))


def test_the_sum_of_nothing_is_zero() -> None:
    found = torch.full((3,), torch.nan)
    PairwiseSum().take(found)
    assert found.tolist() == [0, 0, 0]
