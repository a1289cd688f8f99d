"""Matrix products of the compiled kernels, compared with torch in float64."""

import pytest
import torch
from torch import Tensor

from lambert.native import library
from lambert.ops.native import OPS, PackedBytes, PackedWeight
from lambert.ops.reference import Into

pytestmark = [
    pytest.mark.skipif(library() is None, reason="the compiled kernels are not used on this machine"),
    pytest.mark.usefixtures("instructions"),
]

SHAPES = [(1, 64, 64), (7, 64, 128), (33, 48, 80), (95, 128, 30), (97, 256, 192), (300, 64, 1030), (130, 4224, 64)]
"""Numbers of rows T, inputs D and outputs F, with remainders in every dimension; the last is longer than one block."""


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def weight_of(F: int, D: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(F + D)
    return torch.randn(F, D, generator=generator) * D**-0.5, torch.randn(F, generator=generator)


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("T", "D", "F"), SHAPES)
def test_product_and_its_gradients(T: int, D: int, F: int) -> None:
    x_TD, (weight_FD, bias_F) = drawn(T, D), weight_of(F, D)
    packed = PackedWeight([weight_FD], [bias_F])
    rounded_FD = weight_FD.bfloat16().double()
    close(OPS.linear(x_TD, packed), x_TD.double() @ rounded_FD.T + bias_F, 2**-8)

    grad_TF, other_TD = drawn(T, F), drawn(T, D)
    close(OPS.linear_input(grad_TF, packed), grad_TF.double() @ rounded_FD, 2**-7)
    close(OPS.linear_input(grad_TF, packed, other_TD), grad_TF.double() @ rounded_FD + other_TD, 2**-7)

    into_FD = torch.full((F, D), torch.nan)
    bias_F = torch.full((F,), torch.nan)
    OPS.linear_weights(grad_TF, x_TD, [Into(0, F, (into_FD, False), (bias_F, False))])
    close(into_FD, grad_TF.double().T @ x_TD.double(), 1e-4)
    OPS.linear_weights(grad_TF, x_TD, [Into(0, F, (into_FD, True))])
    close(into_FD, 2 * grad_TF.double().T @ x_TD.double(), 2e-4)
    close(bias_F, grad_TF.double().sum(0), 1e-4)
    OPS.linear_weights(grad_TF, x_TD, [Into(0, F, None, (bias_F, True))])
    close(bias_F, 2 * grad_TF.double().sum(0), 2e-4)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_in_the_products(approximate: str) -> None:
    x_TD, (weight_FD, bias_F) = drawn(50, 64), weight_of(128, 64)
    packed = PackedWeight([weight_FD], [bias_F])
    before_TF, active_TF = OPS.linear_gelu(x_TD, packed, approximate)
    close(active_TF, torch.nn.functional.gelu(before_TF.double(), approximate=approximate), 2**-8)

    down_FD, _ = weight_of(64, 128)
    grad_TF = drawn(50, 64)
    wide_TD = before_TF.double().requires_grad_()
    torch.nn.functional.gelu(wide_TD, approximate=approximate).backward(
        grad_TF.double() @ down_FD.bfloat16().double(), inputs=[wide_TD]
    )
    found_TD = OPS.linear_gelu_input(grad_TF, PackedWeight([down_FD], [None]), before_TF, approximate)
    assert wide_TD.grad is not None
    close(found_TD, wide_TD.grad, 2**-7)


def test_layers_that_read_the_same_states_are_one_product() -> None:
    x_TD, weights = drawn(33, 64), [weight_of(64, 64), weight_of(128, 64), weight_of(30, 64)]
    packed = PackedWeight([weight for weight, _ in weights], [bias for _, bias in weights])
    apart = [OPS.linear(x_TD, PackedWeight([weight], [bias])) for weight, bias in weights]
    assert torch.equal(OPS.linear(x_TD, packed), torch.cat(apart, dim=1))
    grad_TF = drawn(33, 222)
    into_FD, last_FD, bias_F, last_F = torch.empty(128, 64), torch.ones(30, 64), torch.empty(64), torch.ones(30)
    layers = [
        Into(0, 64, None, (bias_F, False)),
        Into(64, 128, (into_FD, False)),
        Into(192, 30, (last_FD, True), (last_F, True)),
    ]
    OPS.linear_weights(grad_TF, x_TD, layers)
    close(into_FD, grad_TF[:, 64:192].double().T @ x_TD.double(), 1e-4)
    close(last_FD, grad_TF[:, 192:].double().T @ x_TD.double() + 1, 1e-4)
    close(bias_F, grad_TF[:, :64].double().sum(0), 1e-4)
    close(last_F, grad_TF[:, 192:].double().sum(0) + 1, 1e-4)


def test_a_row_does_not_depend_on_the_other_rows_or_on_the_number_of_threads() -> None:
    x_TD, (weight_FD, bias_F) = drawn(700, 128), weight_of(512, 128)
    packed = PackedWeight([weight_FD], [bias_F])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = OPS.linear(x_TD, packed)
        torch.set_num_threads(3)
        assert torch.equal(OPS.linear(x_TD, packed), alone)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(OPS.linear(x_TD[123:131].contiguous(), packed), alone[123:131])


@pytest.mark.parametrize(("T", "D", "F"), [(1, 64, 64), (7, 12, 30), (33, 48, 80), (130, 320, 200)])
def test_bytes(T: int, D: int, F: int) -> None:
    """From the definition, in float64: steps of rows, scales of columns, nearest integers."""
    x_TD, (weight_FD, bias_F) = drawn(T, D) * torch.logspace(-2, 2, T)[:, None].bfloat16(), weight_of(F, D)
    x_TD[-1] = 0
    step_T1 = (x_TD.float().abs().amax(1, keepdim=True) / 127).clamp(min=1e-30)
    scale_F1 = weight_FD.abs().amax(1, keepdim=True) / 127
    whole_TD, whole_FD = (x_TD.float() * (1 / step_T1)).round().double(), (weight_FD / scale_F1).round().double()
    expected = (whole_TD @ whole_FD.T) * step_T1.double() * scale_F1.T.double() + bias_F.double()

    weight = PackedBytes([weight_FD], [bias_F])
    close(OPS.linear(x_TD, weight), expected, 0.01)
    torch.testing.assert_close(OPS.linear(x_TD, weight)[-1], bias_F.bfloat16())
    for form in ("none", "tanh"):
        close(OPS.linear(x_TD, weight, form), torch.nn.functional.gelu(expected, approximate=form), 0.01)


def test_rounded_weights() -> None:
    """The rounding is torch's, also where several weights are stacked; a weight of zeros has a scale too."""
    parts = [weight_of(F, 36) for F in (64, 128, 30)]
    parts[1][0][5] = 0
    together = PackedBytes([weight for weight, _ in parts], [bias for _, bias in parts])
    weight_FD = torch.cat([weight for weight, _ in parts])
    scale_F = (weight_FD.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    whole_FD = (weight_FD / scale_F[:, None]).round()
    assert torch.equal(together.scale_F, scale_F)
    assert torch.equal(together.shift_F, (128 * whole_FD.sum(1)).int())
    alone = PackedBytes([weight_FD], [torch.cat([bias for _, bias in parts])])
    x_TD = drawn(7, 36)
    assert torch.equal(OPS.linear(x_TD, together), OPS.linear(x_TD, alone))
