"""Operations of ModernBERT's blocks by the compiled kernels, compared with torch's functions."""

import pytest
import torch

from lambert.model.packed import norm_of
from lambert.native import library
from lambert.ops.drop import NOTHING
from lambert.ops.native import OPS

pytestmark = [
    pytest.mark.skipif(library() is None, reason="the compiled kernels are not used on this machine"),
    pytest.mark.usefixtures("instructions"),
]


def test_rotation_and_gate() -> None:
    qkv_T3HE = torch.randn(7, 3, 2, 32).bfloat16()
    positions_T = torch.tensor([0, 1, 2, 0, 5, 6, 3])
    angles = torch.randn(7, 16)
    turned = OPS.rotate_(qkv_T3HE.clone(), positions_T, (angles.cos(), angles.sin()))
    cos, sin = (x[positions_T][:, None, None] for x in (angles.cos(), angles.sin()))
    first, second = qkv_T3HE[:, :2].float().chunk(2, -1)
    expected = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    torch.testing.assert_close(turned[:, :2].float(), expected, atol=0.02, rtol=0.01)
    assert torch.equal(turned[:, 2], qkv_T3HE[:, 2])
    again = OPS.rotate_(turned, positions_T, (angles.cos(), angles.sin()), back=True)
    torch.testing.assert_close(again.float(), qkv_T3HE.float(), atol=0.03, rtol=0.02)
    for approximate in ("none", "tanh"):
        both_TF = torch.randn(9, 128).bfloat16().requires_grad_()
        a, b = both_TF.float().chunk(2, -1)
        expected = torch.nn.functional.gelu(a, approximate=approximate) * b
        slope = torch.randn(9, 64).bfloat16()
        (expected * slope.float()).sum().backward()
        found = OPS.gated(both_TF.detach(), approximate, NOTHING)
        torch.testing.assert_close(found.float(), expected.detach(), atol=0.01, rtol=0.01)
        grad = OPS.gated_backward(both_TF.detach(), slope, approximate, NOTHING)
        assert both_TF.grad is not None
        torch.testing.assert_close(grad.float(), both_TF.grad.float(), atol=0.02, rtol=0.02)


def test_another_gradient_of_the_sum_is_added() -> None:
    norm = torch.nn.LayerNorm(64, bias=False)
    x_TD, y_TD, grad_TD, other_TD = torch.randn(4, 5, 64).bfloat16()
    _, saved = OPS.add_norm(y_TD, x_TD, norm_of(norm), NOTHING)
    alone = OPS.add_norm_backward(grad_TD, saved, norm_of(norm), NOTHING)
    both = OPS.add_norm_backward(grad_TD, saved, norm_of(norm), NOTHING, other_TD)
    torch.testing.assert_close(both[0].float(), alone[0].float() + other_TD.float(), atol=0.03, rtol=0.02)
    assert torch.equal(both[2], alone[2])
