"""Float8 products equal the same sums over numbers rounded by hand, for the blocks alone, and each row by itself."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lambert.core.compute import Compute
from lambert.engine import precision as engine
from lambert.engine.precision import Precision
from lambert.measure.batches import draw_batch
from lambert.model import float8, weights
from lambert.model.config import EncoderConfig
from lambert.model.linear import linear, project

needs_float8 = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="needs a GPU with float8"
)
FLOAT8 = Compute(float8=True)
HALF = 2.0**-8
"""Relative error of rounding to bfloat16."""
SUMMED = {"cpu": HALF, "cuda": 0.01}
"""Of float8 products. Hopper's matrix units keep some 14 bits of what they add up (DeepSeek-V3 Technical Report, 2024,
section 3.3.2)."""


def rounded(rows: Tensor) -> Tensor:
    """What float8 makes of the rows, in float64: 4 significant bits down to 2^-6 scales, below it multiples of 2^-9."""
    exact = rows.detach().double().cpu().numpy()
    scales = np.abs(exact).max(axis=1, keepdims=True) / 448
    exponents = np.floor(np.log2(np.maximum(np.abs(exact / scales), 2.0**-6)))
    steps = 2.0 ** (exponents - 3)
    return torch.from_numpy(np.rint(exact / scales / steps) * steps * scales)


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Every row, by the Euclidean norm of the difference."""
    expected = expected.detach().double().cpu()
    errors = (found.detach().double().cpu() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(errors.max()) < tolerance


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_float8)])
def parts(request: pytest.FixtureRequest) -> tuple[Tensor, nn.ModuleList, Tensor]:
    """States whose rows differ by orders of magnitude, two layers, and a gradient of their outputs."""
    torch.manual_seed(0)
    states_TD = (torch.randn(37, 64) * 10.0 ** torch.randint(-3, 3, (37, 1))).bfloat16()
    layers = nn.ModuleList(nn.Linear(64, width) for width in (32, 16))
    device = torch.device(request.param)
    return states_TD.to(device), layers.to(device), (1e-6 * torch.randn(37, 48)).bfloat16().to(device)


def passes(states_TD: Tensor, layers: nn.ModuleList, grad_TF: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and gradient of the states; gradients of the layers are on them."""
    states_TD = states_TD.clone().requires_grad_()
    out_TF = project(states_TD, *layers, compute=FLOAT8)  # type: ignore[arg-type]
    out_TF.backward(grad_TF)
    assert states_TD.grad is not None
    return out_TF.detach(), states_TD.grad


def test_products_and_gradients(parts: tuple[Tensor, nn.ModuleList, Tensor]) -> None:
    states_TD, layers, grad_TF = parts
    out_TF, grad_TD = passes(states_TD, layers, grad_TF)
    assert out_TF.dtype == grad_TD.dtype == torch.bfloat16
    weight_FD = torch.cat([layer.weight.detach() for layer in layers])
    bias_F = torch.cat([layer.bias.detach() for layer in layers]).double()
    wide_TD, wide_FD, wide_TF = states_TD.double(), weight_FD.double(), grad_TF.double()

    summed = SUMMED[states_TD.device.type]
    close(out_TF, rounded(states_TD) @ rounded(weight_FD).T + bias_F.cpu(), summed)
    close(grad_TD, rounded(grad_TF) @ rounded(weight_FD.T).T, summed)
    # Two factors, each off by up to 2^-4: some 4% of a sum of independent terms, and not the 0.2% of bfloat16.
    for found, exact in ((out_TF, wide_TD @ wide_FD.T + bias_F), (grad_TD, wide_TF @ wide_FD)):
        close(found, exact, 0.06)
        with pytest.raises(AssertionError):
            close(found, exact, summed)
    close(torch.cat([layer.weight.grad for layer in layers]), wide_TF.T @ wide_TD, HALF)
    close(torch.cat([layer.bias.grad for layer in layers]), wide_TF.sum(0), HALF)


def test_a_row_does_not_depend_on_the_others(parts: tuple[Tensor, nn.ModuleList, Tensor]) -> None:
    states_TD, layers, grad_TF = parts
    expected = passes(states_TD, layers, grad_TF)
    states_TD, grad_TF = states_TD.clone(), grad_TF.clone()
    states_TD[0], states_TD[1], states_TD[2], grad_TF[0] = 0, torch.inf, torch.nan, 0
    states_TD[3:9] *= 1e4
    grad_TF[3:9] *= 1e4
    out_TF, grad_TD = passes(states_TD, layers, grad_TF)
    assert torch.equal(out_TF[9:], expected[0][9:])
    assert torch.equal(grad_TD[9:], expected[1][9:])
    assert torch.equal(out_TF[0], torch.cat([layer.bias.detach() for layer in layers]).bfloat16())
    assert not grad_TD[0].any()
    assert not out_TF[1:3].isfinite().any()  # an overflow is seen, not clipped


def test_frozen_layers_get_no_gradient(parts: tuple[Tensor, nn.ModuleList, Tensor]) -> None:
    states_TD, layers, grad_TF = parts
    expected = passes(states_TD, layers, grad_TF)
    layers.zero_grad()
    layers.requires_grad_(False)
    assert all(torch.equal(a, b) for a, b in zip(passes(states_TD, layers, grad_TF), expected, strict=True))
    assert all(parameter.grad is None for parameter in layers.parameters())


@pytest.mark.parametrize(("inner", "width"), [(64, 24), (40, 32)])
def test_other_widths_are_left_to_bfloat16(inner: int, width: int) -> None:
    layer, states_TD = nn.Linear(inner, width), torch.randn(5, inner)
    assert torch.equal(project(states_TD, layer, compute=FLOAT8), linear(states_TD, [layer.weight], [layer.bias]))


@pytest.mark.slow
def test_compiled_as_one_graph(parts: tuple[Tensor, nn.ModuleList, Tensor]) -> None:
    states_TD, layers, _ = parts
    compiled = torch.compile(project, backend="aot_eager", fullgraph=True, dynamic=True)
    for enabled, rows in ((True, 37), (True, 20), (False, 20)):
        # On a CPU, torch's float8 product is one of wider numbers, and autocast would round them in eager mode.
        with torch.autocast(states_TD.device.type, torch.bfloat16, enabled=not enabled):
            compute = Compute(float8=enabled)
            found, expected = (f(states_TD[:rows], *layers, compute=compute) for f in (compiled, project))
        close(found, expected, HALF)


def test_blocks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_check_float8", lambda device: None)
    shapes = []

    def counted(states_TD: Tensor, parts: Any, biases: Any, own: Any = float8.linear) -> Tensor:
        shapes.append(tuple(torch.cat([*parts]).shape))
        out_TF: Tensor = own(states_TD, parts, biases)
        return out_TF

    monkeypatch.setattr(float8, "linear", counted)
    config = EncoderConfig(vocabulary=1120, layers=2, hidden=32, heads=2, intermediate=64, positions=64, dropout=0.0)
    model = weights.draw(config, {"mlm": 0, "nsp": 0}).eval()
    batch = draw_batch(config, np.array([20, 9]), seed=1)
    grads, losses = [], []
    for name in ("float32", "float8"):
        model.zero_grad()
        precision = Precision(name)
        with precision.autocast():
            sums_K = model(batch.with_compute(precision.compute))
        sums_K.sum().backward()
        losses.append(sums_K.detach())
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert shapes == 2 * [(96, 32), (32, 32), (64, 32), (32, 64)]
    torch.testing.assert_close(losses[1], losses[0], rtol=0.01, atol=0)
    assert torch.cosine_similarity(grads[0], grads[1], dim=0) > 0.99
