"""Attention of the compiled kernels, compared with the plain function in float64."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from lambert.model.attention import reference
from lambert.native import library
from lambert.ops.drop import NOTHING, Drop
from lambert.ops.native import OPS

pytestmark = [
    pytest.mark.skipif(library() is None, reason="the compiled kernels are not used on this machine"),
    pytest.mark.usefixtures("instructions"),
]

LENGTHS = [1, 2, 5, 59, 60, 61, 63, 64, 65, 127, 130, 200]


def inputs(H: int, E: int, lengths: list[int] = LENGTHS) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries, keys and values, the bounds of the sequences, and a gradient of the output."""
    generator = torch.Generator().manual_seed(H + E)
    T = sum(lengths)
    bounds_S1 = torch.tensor([0, *lengths]).cumsum(0).int()
    qkv_T3HE = torch.randn(T, 3, H, E, generator=generator).bfloat16()
    return qkv_T3HE, bounds_S1, torch.randn(T, H, E, generator=generator).bfloat16()


@pytest.mark.parametrize("window", [0, 1, 16, 64, 65, 150])
@pytest.mark.parametrize(("H", "E"), [(1, 64), (3, 32), (2, 16), (2, 48), (1, 128)])
def test_attention_and_its_gradients(H: int, E: int, window: int) -> None:
    qkv_T3HE, bounds_S1, grad_THE = inputs(H, E, [*LENGTHS, 333] if window else LENGTHS)
    wide_T3HE = qkv_T3HE.double().requires_grad_()
    expected_THE = reference(wide_T3HE, bounds_S1, dropout=0.0, window=window)
    expected_THE.backward(grad_THE.double())
    assert wide_T3HE.grad is not None

    out_THE, saved = OPS.attention(qkv_T3HE, bounds_S1, 0, NOTHING, window)
    torch.testing.assert_close(out_THE.double(), expected_THE, atol=0.02, rtol=0.02)
    found_T3HE, _ = OPS.attention_backward(qkv_T3HE, bounds_S1, 0, out_THE, saved, grad_THE, NOTHING, window)
    error = (found_T3HE.double() - wide_T3HE.grad).norm() / wide_T3HE.grad.norm()
    assert error < 0.01


def kept(drop: Drop, bounds_S1: Tensor, H: int, window: int = 0) -> Tensor:
    """Returns which probabilities dropout keeps: the weights of values that are unit vectors, [T, H, longest]."""
    longest = int(bounds_S1.diff().max())
    qkv_T3HE = torch.zeros(int(bounds_S1[-1]), 3, H, longest, dtype=torch.bfloat16)
    for start, end in pairwise(bounds_S1.tolist()):
        qkv_T3HE[start:end, 2] = torch.eye(longest, dtype=torch.bfloat16)[: end - start, None]
    return OPS.attention(qkv_T3HE, bounds_S1, 0, drop, window)[0] != 0


@pytest.mark.parametrize("window", [0, 20])
def test_dropout_of_probabilities(window: int) -> None:
    H, E, lengths = 2, 64, [64, 33, 64]
    drop = Drop(key=77, threshold=round(0.25 * 65536))
    qkv_T3HE, bounds_S1, grad_THE = inputs(H, E, lengths)
    mask_THM = kept(drop, bounds_S1, H, window)
    places_M = torch.arange(64)
    near_MM = (places_M[:, None] - places_M).abs() <= (window or 64)
    assert mask_THM[:64].transpose(1, 2)[near_MM].float().mean() == pytest.approx(0.75, abs=0.02)
    assert not mask_THM[:64].transpose(1, 2)[~near_MM].any()
    assert not torch.equal(mask_THM[:64, 0], mask_THM[:64, 1])
    assert not torch.equal(mask_THM[:64], mask_THM[97:])

    wide_T3HE, mixed = qkv_T3HE.double().requires_grad_(), []
    for start, end in pairwise(bounds_S1.tolist()):
        q_HME, k_HME, v_HME = wide_T3HE[start:end].permute(1, 2, 0, 3)
        places_M = torch.arange(end - start)
        far_MM = (places_M[:, None] - places_M).abs() > (window or end)
        weights_HMM = torch.softmax((q_HME @ k_HME.mT / E**0.5).masked_fill(far_MM, -torch.inf), -1)
        mask_HMM = mask_THM[start:end, :, : end - start].transpose(0, 1)
        mixed.append((weights_HMM * mask_HMM / 0.75 @ v_HME).transpose(0, 1))
    expected_THE = torch.cat(mixed)
    expected_THE.backward(grad_THE.double())
    assert wide_T3HE.grad is not None

    out_THE, saved = OPS.attention(qkv_T3HE, bounds_S1, 0, drop, window)
    torch.testing.assert_close(out_THE.double(), expected_THE, atol=0.03, rtol=0.03)
    found_T3HE, _ = OPS.attention_backward(qkv_T3HE, bounds_S1, 0, out_THE, saved, grad_THE, drop, window)
    assert (found_T3HE.double() - wide_T3HE.grad).norm() < 0.01 * wide_T3HE.grad.norm()


def test_results_do_not_depend_on_threads_or_on_other_sequences() -> None:
    qkv_T3HE, bounds_S1, grad_THE = inputs(2, 64)
    drop, before, found = Drop(key=5, threshold=6554), torch.get_num_threads(), []
    biases_HL = torch.randn(2, 2 * int(bounds_S1.diff().max()) - 1)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out_THE, saved = OPS.attention(qkv_T3HE, bounds_S1, 0, drop, 0, biases_HL)
            arguments = qkv_T3HE, bounds_S1, 0, out_THE, saved, grad_THE, drop, 0, biases_HL
            found.append((out_THE, *OPS.attention_backward(*arguments)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for result in found[1:] for a, b in zip(result, found[0], strict=True))
    alone_THE, _ = OPS.attention(qkv_T3HE[:3].contiguous(), torch.tensor([0, 1, 3], dtype=torch.int32), 2, NOTHING)
    whole_THE, _ = OPS.attention(qkv_T3HE, bounds_S1, 0, NOTHING)
    assert torch.equal(alone_THE, whole_THE[:3])
