"""The fast kernels give what the plain one gives, within each sequence and nowhere else."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lambert.model.attention import KERNELS, attend_padded, attention, kernel, reference
from lambert.native import library
from lambert.ops.reference import equal_lengths

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def bounds(sizes: list[int]) -> Tensor:
    return torch.tensor([0, *sizes]).cumsum(0).to(torch.int32)


def random_qkv(tokens: int, dtype: torch.dtype = torch.float64, heads: int = 2, width: int = 4) -> Tensor:
    return torch.randn(tokens, 3, heads, width, generator=torch.Generator().manual_seed(tokens)).to(dtype)


def gradients(kernel: object, qkv: Tensor, bounds_S1: Tensor, longest: int, window: int = 0) -> tuple[Tensor, Tensor]:
    leaf = qkv.clone().requires_grad_()
    if kernel is attention:
        out = attention(leaf, bounds_S1, longest=longest, dropout=0.0, window=window)
    else:
        out = reference(leaf, bounds_S1, dropout=0.0, window=window)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view(out.shape)).sum().backward()
    assert leaf.grad is not None
    return out.detach(), leaf.grad


@given(lengths)
@settings(max_examples=40)
def test_equals_the_plain_kernel_in_float64(sizes: list[int]) -> None:
    qkv, bounds_S1 = random_qkv(sum(sizes)), bounds(sizes)
    for ours, plain in zip(
        gradients(attention, qkv, bounds_S1, max(sizes)), gradients(reference, qkv, bounds_S1, max(sizes)), strict=True
    ):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_equals_the_plain_kernel_in_narrow_types(dtype: torch.dtype, tolerance: float) -> None:
    sizes = [40, 7, 40, 1, 129, 7]
    exact = gradients(reference, random_qkv(sum(sizes), dtype).double(), bounds(sizes), 129)
    ours = gradients(attention, random_qkv(sum(sizes), dtype), bounds(sizes), 129)
    assert ours[0].dtype == dtype
    for mine, right in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=0, atol=tolerance)


@given(lengths, st.integers(0, 7))
@settings(max_examples=30)
def test_a_sequence_sees_itself_alone(sizes: list[int], which: int) -> None:
    changed = which % len(sizes)
    qkv, bounds_S1 = random_qkv(sum(sizes), torch.float32), bounds(sizes)
    start, end = bounds_S1[changed : changed + 2].tolist()
    other = qkv.clone()
    other[start:end] += 1
    before, after = (attention(x, bounds_S1, longest=max(sizes), dropout=0.0) for x in (qkv, other))
    outside = torch.ones(sum(sizes), dtype=torch.bool)
    outside[start:end] = False
    assert torch.equal(before[outside], after[outside])
    assert not torch.equal(before[start:end], after[start:end])


@given(lengths)
def test_groups_hold_every_token_once(sizes: list[int]) -> None:
    tokens = torch.arange(sum(sizes))
    groups = equal_lengths(bounds(sizes))
    assert sorted(torch.cat([tokens[rows] for _, rows, _ in groups]).tolist()) == tokens.tolist()
    assert len({length for _, _, length in groups}) == len(groups)
    for numbers, rows, length in groups:
        starts = tokens[rows].view(len(numbers), length)
        assert torch.equal(starts, starts[:, :1] + torch.arange(length))
        assert torch.equal(starts[:, 0], bounds(sizes)[numbers].long())


def test_gradients_under_dropout_are_those_of_the_function_drawn() -> None:
    qkv, bounds_S1 = random_qkv(7).requires_grad_(), bounds([3, 1, 3])

    def drawn(values: Tensor) -> Tensor:
        torch.manual_seed(3)
        return attention(values, bounds_S1, longest=3, dropout=0.4)

    assert torch.autograd.gradcheck(drawn, (qkv,))


def test_dropout_keeps_the_mean() -> None:
    torch.manual_seed(0)
    qkv, bounds_S1 = random_qkv(6), bounds([6])
    still = attention(qkv, bounds_S1, longest=6, dropout=0.0)
    drawn = torch.stack([attention(qkv, bounds_S1, longest=6, dropout=0.3) for _ in range(4000)])
    assert not torch.allclose(drawn[0], still)
    error = drawn.std(0) / 4000**0.5
    assert ((drawn.mean(0) - still).abs() < 5 * error + 1e-12).all()


# --- windows ---


def by_hand(qkv: Tensor, bounds_S1: Tensor, window: int) -> Tensor:
    """Each token alone: the softmax over the tokens of its sequence that are at most `window` away."""
    out = torch.empty_like(qkv[:, 0])
    for start, end in pairwise(bounds_S1.tolist()):
        for at in range(start, end):
            near = slice(max(start, at - window), min(end, at + window + 1))
            for head in range(qkv.shape[2]):
                keys, values = qkv[near, 1, head], qkv[near, 2, head]
                weights = torch.softmax(keys @ qkv[at, 0, head] / qkv.shape[-1] ** 0.5, 0)
                out[at, head] = weights @ values
    return out


@pytest.mark.parametrize("window", [1, 2, 3, 7, 16, 40])
def test_windows(window: int) -> None:
    sizes = [9, 1, 2, 3, 4, 17, 33, 9, 16, 50]
    qkv, bounds_S1 = random_qkv(sum(sizes)), bounds(sizes)
    expected = by_hand(qkv, bounds_S1, window)
    for name in ("plain", "banded"):
        found = KERNELS[name](qkv, bounds_S1, max(sizes), 0.0, window)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(attend_padded(qkv, bounds_S1, max(sizes), 0.0, window), expected, rtol=0, atol=1e-12)
    leaf, plain = qkv.clone().requires_grad_(), qkv.clone().requires_grad_()
    slope = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(0))
    (attention(leaf, bounds_S1, longest=max(sizes), dropout=0.0, window=window) * slope).sum().backward()
    (reference(plain, bounds_S1, dropout=0.0, window=window) * slope).sum().backward()
    torch.testing.assert_close(leaf.grad, plain.grad, rtol=0, atol=1e-12)


def test_a_window_that_sees_all_changes_nothing() -> None:
    sizes = [5, 17, 3]
    qkv, bounds_S1 = random_qkv(sum(sizes)), bounds(sizes)
    whole = attention(qkv, bounds_S1, longest=17, dropout=0.0)
    assert torch.equal(attention(qkv, bounds_S1, longest=17, dropout=0.0, window=16), whole)
    assert not torch.equal(attention(qkv, bounds_S1, longest=17, dropout=0.0, window=15), whole)


def test_dropout_in_a_window_keeps_the_mean() -> None:
    torch.manual_seed(0)
    qkv, bounds_S1 = random_qkv(9), bounds([9])
    still = attention(qkv, bounds_S1, longest=9, dropout=0.0, window=2)
    drawn = torch.stack([attention(qkv, bounds_S1, longest=9, dropout=0.3, window=2) for _ in range(2000)])
    error = drawn.std(0) / 2000**0.5
    assert ((drawn.mean(0) - still).abs() < 5 * error + 1e-12).all()


def test_the_rate_of_dropout_in_a_window() -> None:
    """Equal scores, and values that are unit vectors: the outputs are the probabilities."""
    torch.manual_seed(0)
    M, window, places_M = 96, 20, torch.arange(96)
    qkv_T3HE = torch.zeros(M, 3, 2, M)
    qkv_T3HE[:, 2] = torch.eye(M)[:, None]
    near_MM = (places_M[:, None] - places_M).abs() <= window
    found_M2M = KERNELS["banded"](qkv_T3HE, bounds([M]), M, 0.25, window)
    kept_N2 = found_M2M.transpose(1, 2)[near_MM] != 0
    assert kept_N2.float().mean() == pytest.approx(0.75, abs=0.02)
    assert not found_M2M.transpose(1, 2)[~near_MM].any()
    whole_M2M = found_M2M * near_MM.sum(1)[:, None, None]
    torch.testing.assert_close(whole_M2M[found_M2M != 0], torch.full((int(kept_N2.sum()),), 1 / 0.75))


# --- GPUs ---

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SIZES = [40, 7, 40, 1, 129, 7]


@pytest.mark.parametrize(
    ("name", "dtype", "major", "width"),
    [
        ("flash", torch.bfloat16, 8, 64),
        ("flash", torch.float16, 9, 256),
        ("efficient", torch.float32, 9, 64),
        ("efficient", torch.float16, 7, 64),
        ("efficient", torch.float32, 9, 12),
        ("plain", torch.bfloat16, 9, 12),
        ("plain", torch.float32, 9, 6),
        ("efficient", torch.bfloat16, 9, 264),
    ],
)
def test_a_gpu_takes_the_fastest_kernel_that_it_has(
    name: str, dtype: torch.dtype, major: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major))
    assert kernel(torch.device("cuda", 0), dtype, width) == name
    native = dtype == torch.bfloat16 and width % 16 == 0 and library() is not None
    assert kernel(torch.device("cpu"), dtype, width) == ("native" if native else "products")
    assert kernel(torch.device("cpu"), dtype, width, 4) == ("native" if native else "banded")
    assert kernel(torch.device("mps"), dtype, width) == "plain"


@given(lengths)
@settings(max_examples=20)
def test_padded_rows_equal_the_plain_kernel_in_float64(sizes: list[int]) -> None:
    qkv, bounds_S1 = random_qkv(sum(sizes)), bounds(sizes)
    torch.testing.assert_close(attend_padded(qkv, bounds_S1, max(sizes), 0.0), reference(qkv, bounds_S1, dropout=0.0))


@pytest.mark.parametrize("window", [0, 16])
@pytest.mark.parametrize(("name", "dtype"), [("flash", torch.bfloat16), ("efficient", torch.float32)])
def test_kernels_of_gpus_have_the_shapes_and_gradients_that_torch_declares(
    name: str, dtype: torch.dtype, window: int
) -> None:
    qkv = torch.empty(50, 3, 2, 8, dtype=dtype, device="meta", requires_grad=True)
    mixed = KERNELS[name](qkv, torch.empty(4, dtype=torch.int32, device="meta"), 39, 0.1, window)
    assert (mixed.shape, mixed.dtype) == ((50, 2, 8), dtype)
    mixed.sum().backward()
    assert qkv.grad is not None
    assert (qkv.grad.shape, qkv.grad.dtype) == (qkv.shape, dtype)


@needs_cuda
@pytest.mark.parametrize("window", [0, 16])
@pytest.mark.parametrize(
    ("dtype", "width", "tolerance"),
    [
        (torch.float32, 64, 1e-4),
        (torch.float32, 12, 1e-4),
        (torch.bfloat16, 64, 0.03),
        (torch.float16, 64, 0.005),
        (torch.bfloat16, 12, 0.03),
    ],
)
def test_cuda_equals_the_plain_kernel(dtype: torch.dtype, width: int, tolerance: float, window: int) -> None:
    qkv = random_qkv(sum(SIZES), dtype, width=width)
    exact = gradients(reference, qkv.double(), bounds(SIZES), 129, window)
    ours = gradients(attention, qkv.cuda(), bounds(SIZES).cuda(), 129, window)
    for mine, right in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.cpu().double(), right, rtol=0, atol=tolerance)


@needs_cuda
@pytest.mark.parametrize("window", [0, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_dropout_is_drawn_from_the_seed_once_for_both_passes(dtype: torch.dtype, window: int) -> None:
    leaf = random_qkv(sum(SIZES), dtype, width=64).cuda().requires_grad_()
    weight = torch.linspace(-1, 1, sum(SIZES) * 2 * 64, device="cuda").view(-1, 2, 64)

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return attention(leaf, bounds(SIZES).cuda(), longest=129, dropout=0.4, window=window)

    out = drawn(1)
    assert torch.equal(out, drawn(1))
    assert not torch.equal(out, drawn(2))
    (grad,) = torch.autograd.grad((out.float() * weight).sum(), leaf)
    # The mixture is linear in the values: its product with the weight is that of the values with their gradient.
    through_values = (grad[:, 2].double() * leaf[:, 2].detach().double()).sum()
    direct = (out.detach().double() * weight.double()).sum()
    assert abs(through_values - direct) < 0.02 * (out.detach().double() * weight.double()).norm()


@needs_cuda
@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_dropout_keeps_the_mean(dtype: torch.dtype, window: int) -> None:
    qkv, settings = random_qkv(9, dtype, width=8).cuda(), {"longest": 6, "window": window}
    bounds_S1 = bounds([6, 3]).cuda()
    still = attention(qkv, bounds_S1, dropout=0.0, **settings).float()
    drawn = torch.stack([attention(qkv, bounds_S1, dropout=0.3, **settings).float() for _ in range(2000)])
    error = drawn.std(0) / 2000**0.5
    assert ((drawn.mean(0) - still).abs() < 5 * error + 0.01).all()
