"""Rotary positions: products of rotated queries and keys depend on distances alone."""

import torch

from lambert.model.rotary import angles, rotate


def test_products_depend_on_the_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 16, generator=generator, dtype=torch.float64)
    found = {}
    for first, second in [(0, 5), (3, 8), (100, 105), (5, 0)]:
        qkv_T3HE = torch.zeros(2, 3, 1, 16, dtype=torch.float64)
        qkv_T3HE[0, 0], qkv_T3HE[1, 1] = query, key
        turned = rotate(qkv_T3HE, angles(torch.tensor([first, second]), 16, 100.0))
        found[first, second] = float(turned[0, 0, 0] @ turned[1, 1, 0])
    assert abs(found[0, 5] - found[3, 8]) < 1e-4  # angles are float32
    assert abs(found[0, 5] - found[100, 105]) < 1e-4
    assert abs(found[0, 5] - found[5, 0]) > 1e-2


def test_angles_and_lengths() -> None:
    found = angles(torch.tensor([0, 1, 7]), 4, 10000.0)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.0], [1.0, 0.01], [7.0, 0.07]]))
    qkv_T3HE = torch.randn(3, 3, 2, 4)
    turned = rotate(qkv_T3HE, found)
    torch.testing.assert_close(turned[:, :2].norm(dim=-1), qkv_T3HE[:, :2].norm(dim=-1))
    assert torch.equal(turned[:, 2], qkv_T3HE[:, 2])  # values stay
    assert torch.equal(turned[0], qkv_T3HE[0])  # as does the first position


def test_the_gradient_is_that_of_the_function() -> None:
    qkv_T3HE = torch.randn(3, 3, 1, 4, dtype=torch.float64, requires_grad=True)
    turn = angles(torch.tensor([0, 1, 7]), 4, 10.0)
    (rotate(qkv_T3HE, turn) ** 2 * torch.linspace(-1, 1, 36).view(3, 3, 1, 4)).sum().backward()
    other = qkv_T3HE.detach().clone().requires_grad_()
    cos, sin = turn.cos()[:, None, None].double(), turn.sin()[:, None, None].double()
    first, second = other[:, :2].chunk(2, -1)
    out = torch.cat([torch.cat([first * cos - second * sin, second * cos + first * sin], -1), other[:, 2:]], 1)
    (out**2 * torch.linspace(-1, 1, 36).view(3, 3, 1, 4)).sum().backward()
    torch.testing.assert_close(qkv_T3HE.grad, other.grad, rtol=1e-5, atol=1e-5)
