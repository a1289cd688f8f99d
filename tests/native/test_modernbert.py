"""ModernBERT's blocks by the compiled kernels, compared with torch's functions."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from flat import make_batch
from torch import Tensor

from lambert.core.batch import Batch
from lambert.model import weights
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.heads import Model
from lambert.model.modernbert import native
from lambert.model.packed import norm_of
from lambert.native import library
from lambert.ops.drop import NOTHING
from lambert.ops.native import OPS

pytestmark = [
    pytest.mark.skipif(library() is None, reason="the compiled kernels are not used on this machine"),
    pytest.mark.usefixtures("instructions"),
]

CONFIG = EncoderConfig(
    layers=4, hidden=128, heads=4, intermediate=160, vocabulary=200, positions=256, segment_types=0, dropout=0.0,
    attention_dropout=0.0, norm_eps=1e-5, init_range=0.05, block="modernbert",
    modern=ModernConfig(window=16, global_every=3),
)  # fmt: skip
LENGTHS = [40, 1, 17, 129, 16, 64]


def run(model: Model, batch: Batch, *, bfloat16: bool) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        states_TD = model.encoder(batch)
    slope = torch.randn(states_TD.shape, generator=torch.Generator().manual_seed(1))
    (states_TD.float() * slope).sum().backward()
    return states_TD.detach().float(), {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("norm_bias", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_states_and_gradients(norm_bias: bool, activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modern = replace(CONFIG.modern, norm_bias=norm_bias)
    model = weights.fresh(replace(CONFIG, modern=modern, activation=activation), {"mlm": 0}, seed=3).train()
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    batch, used = make_batch(LENGTHS, 200), []
    kept = native.native_states

    def counted(*arguments: Any) -> Tensor:
        used.append(1)
        return kept(*arguments)

    monkeypatch.setattr(native, "native_states", counted)
    expected, wanted = run(model, batch, bfloat16=False)
    assert not used
    found, grads = run(model, batch, bfloat16=True)
    assert used
    assert (found - expected).norm() < 0.02 * expected.norm()
    assert grads.keys() == wanted.keys()
    for name, grad in grads.items():
        assert (grad - wanted[name]).norm() < 0.05 * wanted[name].norm(), name
    monkeypatch.setattr(native, "usable", lambda *_: False)
    plain, slopes = run(model, batch, bfloat16=True)
    assert (found - plain).norm() < 0.02 * plain.norm()
    assert all((grads[name] - slopes[name]).norm() < 0.05 * slopes[name].norm() for name in grads)


def test_dropout_of_outputs_and_biases_are_left_to_torch() -> None:
    batch = make_batch([5, 9], 200)
    for config in (replace(CONFIG, dropout=0.1), replace(CONFIG, modern=replace(CONFIG.modern, mlp_bias=True))):
        model = weights.fresh(config, {"mlm": 0}).train()
        with torch.autocast("cpu", torch.bfloat16):
            assert not native.usable(model.encoder, batch)  # type: ignore[arg-type]
            assert torch.isfinite(model.encoder(batch)).all()


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
