"""The pointwise kernels compute what torch computes in float64, up to the rounding of their bfloat16 results.

The shapes' letters are those of core/batch.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lambert import native
from lambert.core.randomness import words
from lambert.model.packed import norm_of
from lambert.ops.drop import NOTHING
from lambert.ops.native import OPS

KEY = 0x0123456789ABCDEF
EPS = 1e-12
HALF = 2.0**-8
"""Rounding to bfloat16 changes a number by at most this share of it."""
SHAPES = [(1, 32), (7, 64), (33, 256), (131, 96), (300, 768)]


@pytest.fixture
def kernels() -> Any:
    found = native.library()
    if found is None:
        pytest.skip(f"no compiled kernels: {native.reason()}")
    return found


def kept(threshold: int, rows: int, width: int) -> Tensor:
    """What dropout keeps, divided by the probability of keeping: float64 [T, D]."""
    parts = words(np.uint64(KEY), rows * width // 4).view(np.uint16).reshape(rows, width)
    return torch.from_numpy((parts >= threshold) * (65536 / (65536 - threshold)))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_near(found: Tensor, expected: Tensor, rounding: float = HALF, small: float = 1e-5) -> None:
    """`small` is the error that float32 sums may add, as a share of the largest value."""
    bound = rounding * expected.abs() + small * expected.abs().max()
    excess = ((found.double() - expected).abs() - bound).max()
    assert excess <= 0, f"{excess:.3g} more than the bound"


def same_for_all_threads(compute: Callable[[int], list[Tensor]]) -> list[Tensor]:
    """Returns the results of `compute(threads)`, and checks that the number of threads does not change a bit."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        first, *others = (compute(threads) for threads in (1, 2, 3))
    finally:
        torch.set_num_threads(before)
    for other in others:
        assert all(map(torch.equal, first, other))
    return first


class Norm:
    """Inputs of a norm of `rows` rows."""

    def __init__(self, rows: int, width: int) -> None:
        self.rows, self.width = rows, width
        self.gamma_D, self.beta_D = 1 + 0.1 * normal(width, seed=1), normal(width, seed=2)
        self.grad_TD = normal(rows, width, seed=3).bfloat16()

    def results(self) -> list[Tensor]:
        """Empty tensors for out, sum, mean and rstd."""
        shape = (self.rows, self.width)
        wide = [torch.full(shape, torch.nan, dtype=torch.bfloat16) for _ in range(2)]
        return [*wide, *torch.full((2, self.rows), torch.nan)]

    def reference(self, sum_TD: Tensor) -> Tensor:
        return functional.layer_norm(sum_TD, (self.width,), self.gamma_D.double(), self.beta_D.double(), EPS)

    def gradients(self, sum_TD: Tensor, mean_T: Tensor, rstd_T: Tensor, grad_TD: Tensor) -> tuple[Tensor, ...]:
        """Those of the sum, gamma and beta, from the sums and statistics that the forward pass stored."""
        normal_TD = (sum_TD.double() - mean_T.double()[:, None]) * rstd_T.double()[:, None]
        weighted_TD = grad_TD * self.gamma_D.double()
        slopes_T = (weighted_TD * normal_TD).mean(1, keepdim=True)
        centred_TD = weighted_TD - weighted_TD.mean(1, keepdim=True)
        grad_sum_TD = (centred_TD - normal_TD * slopes_T) * rstd_T.double()[:, None]
        return grad_sum_TD, (grad_TD * normal_TD).sum(0), grad_TD.sum(0)


def pointers(*tensors: Tensor) -> list[int]:
    assert all(tensor.is_contiguous() for tensor in tensors)
    return [tensor.data_ptr() for tensor in tensors]


@pytest.mark.parametrize("threshold", [0, 6554, 40000])
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_add_norm(kernels: Any, rows: int, width: int, threshold: int) -> None:
    norm = Norm(rows, width)
    y_TD, x_TD = normal(rows, width, seed=4).bfloat16(), (3 + normal(rows, width, seed=5)).bfloat16()

    def forward(threads: int) -> list[Tensor]:
        results = norm.results()
        kernels.lambert_add_norm(
            *pointers(y_TD, x_TD), KEY, threshold, *pointers(norm.gamma_D, norm.beta_D), EPS, 1, rows, width, threads,
            *pointers(*results),
        )  # fmt: skip
        return results

    out_TD, sum_TD, mean_T, rstd_T = same_for_all_threads(forward)
    mask_TD = kept(threshold, rows, width)
    expected_TD = x_TD.double() + y_TD.double() * mask_TD
    assert_near(sum_TD, expected_TD)
    assert_near(mean_T, expected_TD.mean(1), rounding=1e-6)
    assert_near(rstd_T, (expected_TD.var(1, correction=0) + EPS).rsqrt(), rounding=1e-5)
    assert_near(out_TD, norm.reference(expected_TD))

    def backward(threads: int) -> list[Tensor]:
        wide = [torch.full((rows, width), torch.nan, dtype=torch.bfloat16) for _ in range(2)]
        grads = torch.full((2, width), torch.nan)
        kernels.lambert_add_norm_backward(
            *pointers(norm.grad_TD, sum_TD, mean_T, rstd_T, norm.gamma_D), None, KEY, threshold, 1, rows, width,
            threads, *pointers(wide[0]), wide[1].data_ptr() if threshold else None, *pointers(*grads),
        )  # fmt: skip
        return [*wide[: 2 if threshold else 1], *grads]

    found = same_for_all_threads(backward)
    grad_sum_TD, grad_gamma_D, grad_beta_D = norm.gradients(sum_TD, mean_T, rstd_T, norm.grad_TD.double())
    assert_near(found[0], grad_sum_TD)
    if threshold:
        assert_near(found[1], grad_sum_TD * mask_TD)
    assert_near(found[-2], grad_gamma_D, rounding=1e-5)
    assert_near(found[-1], grad_beta_D, rounding=1e-5)


def test_add_norm_agrees_with_autograd(kernels: Any) -> None:
    """The reference of the other tests is that of autograd, apart from the rounding of the stored sum."""
    norm = Norm(48, 128)
    sum_TD = normal(48, 128, seed=6).double().requires_grad_()
    norm.gamma_D.requires_grad_()
    norm.beta_D.requires_grad_()
    norm.reference(sum_TD).backward(norm.grad_TD.double())
    mean_T, rstd_T = sum_TD.detach().mean(1), sum_TD.detach().var(1, correction=0).rsqrt()
    found = norm.gradients(sum_TD.detach(), mean_T, rstd_T, norm.grad_TD.double())
    for one, leaf in zip(found, (sum_TD, norm.gamma_D, norm.beta_D), strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(one.detach(), leaf.grad.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threshold", [0, 6554])
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_embed_norm(kernels: Any, rows: int, width: int, threshold: int) -> None:
    norm = Norm(rows, width)
    sizes = {"words": 50, "types": 2, "positions": 19}
    tables = [normal(size, width, seed=size) for size in sizes.values()]
    ids = [torch.randint(size, (rows,), generator=torch.Generator().manual_seed(size)) for size in sizes.values()]

    def forward(threads: int) -> list[Tensor]:
        results = norm.results()
        kernels.lambert_embed_norm(
            *pointers(*ids, *tables), KEY, threshold, *pointers(norm.gamma_D, norm.beta_D), EPS, rows, width, threads,
            *pointers(*results),
        )  # fmt: skip
        return results

    out_TD, sum_TD, mean_T, rstd_T = same_for_all_threads(forward)
    mask_TD = kept(threshold, rows, width)
    expected_TD = sum(table.double()[index_T] for table, index_T in zip(tables, ids, strict=True))
    assert isinstance(expected_TD, Tensor)
    assert_near(sum_TD, expected_TD)
    assert_near(out_TD, norm.reference(expected_TD) * mask_TD)

    def backward(threads: int) -> list[Tensor]:
        grad_sum_TD = torch.full((rows, width), torch.nan, dtype=torch.bfloat16)
        grads = torch.full((2, width), torch.nan)
        kernels.lambert_embed_norm_backward(
            *pointers(norm.grad_TD, sum_TD, mean_T, rstd_T, norm.gamma_D), KEY, threshold, rows, width, threads,
            *pointers(grad_sum_TD, *grads),
        )  # fmt: skip
        return [grad_sum_TD, *grads]

    grad_sum_TD, grad_gamma_D, grad_beta_D = same_for_all_threads(backward)
    expected = norm.gradients(sum_TD, mean_T, rstd_T, norm.grad_TD.double() * mask_TD)
    assert_near(grad_sum_TD, expected[0])
    assert_near(grad_gamma_D, expected[1], rounding=1e-5)
    assert_near(grad_beta_D, expected[2], rounding=1e-5)

    for table, index_T in zip(tables, ids, strict=True):

        def scatter(threads: int, table: Tensor = table, index_T: Tensor = index_T) -> list[Tensor]:
            grad_VD = torch.ones_like(table)
            kernels.lambert_add_rows(*pointers(grad_sum_TD, index_T), rows, width, threads, grad_VD.data_ptr())
            return [grad_VD]

        (grad_VD,) = same_for_all_threads(scatter)
        assert_near(grad_VD, torch.ones_like(table).double().index_add_(0, index_T, grad_sum_TD.double()), 1e-5)


@pytest.mark.parametrize("vocabulary", [1, 17, 2048, 30522])
@pytest.mark.parametrize("scale", [0.01, 3.0, 40.0])
def test_cross_entropy(kernels: Any, vocabulary: int, scale: float) -> None:
    rows = 5
    logits_TV = (100 + scale * normal(rows, vocabulary, seed=7)).bfloat16()
    labels_T = torch.randint(vocabulary, (rows,), generator=torch.Generator().manual_seed(8))
    labels_T[0], labels_T[1] = vocabulary - 1, logits_TV[1].argmax()
    scales_T = torch.tensor([0.5, 0.5, 0.25, -0.5, 0.0])

    def compute(threads: int) -> list[Tensor]:
        surrounded = torch.full((3 + logits_TV.numel() + 3,), 7.0).bfloat16()
        surrounded[3:-3] = logits_TV.flatten()
        losses_T, *saved = torch.full((3, rows), torch.nan)
        inside, sizes = surrounded[3:], (rows, vocabulary, threads)
        kernels.lambert_cross_entropy(*pointers(inside, labels_T), *sizes, *pointers(losses_T, *saved))
        assert torch.equal(inside[:-3], logits_TV.flatten())
        kernels.lambert_cross_entropy_backward(*pointers(inside, labels_T, *saved, scales_T), *sizes)
        assert surrounded[:3].tolist() == surrounded[-3:].tolist() == [7.0] * 3
        return [surrounded[3:-3].view(rows, vocabulary), losses_T]

    grad_TV, losses_T = same_for_all_threads(compute)
    exact_TV = logits_TV.double().requires_grad_()
    expected_T = functional.cross_entropy(exact_TV, labels_T, reduction="none")
    (scales_T * expected_T).sum().backward()
    assert exact_TV.grad is not None
    assert_near(losses_T, expected_T.detach(), rounding=1e-5, small=1e-6)
    assert_near(grad_TV, exact_TV.grad, small=1e-6)


def test_the_rate_of_dropout_and_its_independence_of_rows(kernels: Any) -> None:
    """Two rows or two keys have unrelated masks: about 0.9^2 of the pairs are both kept."""
    rows, width, threshold = 64, 1024, 6554
    norm = Norm(rows, width)
    masks = []
    for key in (KEY, KEY + 1):
        results = norm.results()
        kernels.lambert_add_norm(
            *pointers(torch.ones(rows, width).bfloat16(), torch.zeros(rows, width).bfloat16()), key, threshold,
            *pointers(norm.gamma_D, norm.beta_D), EPS, 1, rows, width, 1, *pointers(*results),
        )  # fmt: skip
        masks.append(results[1] > 0)
    for pair in ((masks[0], masks[1]), (masks[0][1:], masks[0][:-1])):
        assert abs(float((pair[0] & pair[1]).float().mean()) - 0.81) < 0.01
    assert abs(float(masks[0].float().mean()) - 0.9) < 0.005


def test_indices_from_outside_are_checked() -> None:
    if native.library() is None:
        pytest.skip("the compiled kernels are not used on this machine")
    tables, norm = [torch.zeros(5, 32), torch.zeros(3, 32), torch.zeros(2, 32)], torch.nn.LayerNorm(32)
    inside = torch.zeros(4, dtype=torch.int64)
    OPS.embed_norm([inside, inside, inside], tables, norm_of(norm), NOTHING)
    for wrong in (torch.tensor([0, 1, 5, 0]), torch.tensor([0, -1, 0, 0]), inside.int(), inside[:3]):
        with pytest.raises(IndexError):
            OPS.embed_norm(
                [wrong, inside, inside] if len(wrong) == 4 else [inside, wrong, inside], tables, norm_of(norm), NOTHING
            )
    with pytest.raises(IndexError, match="index 7 is out of range for 6 rows"):
        OPS.cross_entropy(torch.zeros(1, 6).bfloat16(), torch.tensor([7]))
    for bounds in ([0, 3], [1, 4], [0, 4, 2, 4], []):
        with pytest.raises(IndexError, match="bounds of"):
            OPS.attention(torch.zeros(4, 3, 1, 16).bfloat16(), torch.tensor(bounds, dtype=torch.int32), 4, NOTHING)
    with pytest.raises(IndexError, match="int32"):
        OPS.attention(torch.zeros(4, 3, 1, 16).bfloat16(), torch.tensor([0, 4]), 4, NOTHING)
