"""The products under bfloat16 autocast equal torch's own linear layer, and notice every change of a weight."""

import copy
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lambert.core.compute import PLAIN, Compute, Copies
from lambert.engine.gradients import Gradients
from lambert.engine.precision import Precision
from lambert.model import linear as module
from lambert.model.embedding import embed
from lambert.model.linear import project
from lambert.optim.lamb import Lamb

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="the processor has no bfloat16 products"
)


def layers(*widths: int, inner: int = 48) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(inner, width) for width in widths)


def by_torch(states_TD: Tensor, several: nn.ModuleList) -> Tensor:
    return torch.cat([layer(states_TD) for layer in several], dim=1)


def passes(function: Callable[..., Tensor], several: nn.ModuleList, rows: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs, gradient of the states, gradients of the weights, of one forward and backward pass."""
    torch.manual_seed(1)
    states_TD = torch.randn(rows, several[0].in_features).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out_TF = function(states_TD, several)
    out_TF.backward(torch.randn(out_TF.shape).bfloat16())
    assert states_TD.grad is not None
    return out_TF.detach(), states_TD.grad, [p.grad.clone() for p in several.parameters() if p.grad is not None]


def ours(states_TD: Tensor, several: nn.ModuleList, compute: Compute = PLAIN) -> Tensor:
    return project(states_TD, *several, compute=compute)  # type: ignore[arg-type]


def computed(compute: Compute) -> Callable[..., Tensor]:
    return partial(ours, compute=compute)


@pytest.mark.parametrize("laid_out", [False, True])
@pytest.mark.parametrize("widths", [(40,), (48, 32, 16)])
def test_equals_torch(widths: tuple[int, ...], laid_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORTH", 1 if laid_out else 10**9)
    several = layers(*widths)
    found = passes(ours, several, 70)
    several.zero_grad()
    expected = passes(by_torch, several, 70)
    for a, b in zip((*found[:2], *found[2]), (*expected[:2], *expected[2]), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=2**-7, atol=float(b.abs().max()) * 2**-7)


def test_a_second_pass_adds_to_the_first() -> None:
    several = layers(24, 24)
    gradients = Gradients(several)
    gradients.flat.fill_(torch.nan)
    gradients.clear()
    into = computed(Compute(gradients=gradients))
    once = passes(into, several, 30)[2]
    places = zip(several.parameters(), gradients.views, strict=True)
    assert all(parameter.grad is place for parameter, place in places)
    twice = passes(into, several, 30)[2]
    for a, b in zip(once, twice, strict=True):
        torch.testing.assert_close(2 * a, b)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, fused=True)


def radam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.RAdam(parameters, foreach=True)


@pytest.mark.parametrize("build", [Lamb, adam, radam])
def test_an_update_is_noticed(build: Callable[..., torch.optim.Optimizer]) -> None:
    several = layers(40)
    optimizer, gradients, precision = build(list(several.parameters())), Gradients(several), Precision("bfloat16")
    for function in (ours, computed(precision.compute)):
        before = passes(function, several, 50)[0]
        gradients.collect()
        precision.step(optimizer, gradients, max_grad_norm=0.0)
        after = passes(function, several, 50)[0]
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, passes(by_torch, several, 50)[0], rtol=2**-7, atol=2**-7)
        several.zero_grad()


def test_new_weights_are_noticed() -> None:
    several, kept = layers(40), computed(Compute(copies=Copies()))
    before = passes(kept, several, 50)[0]
    with torch.no_grad():
        for parameter in several.parameters():
            parameter.copy_(-parameter)
    torch.testing.assert_close(passes(kept, several, 50)[0], -before)
    several.load_state_dict({name: -value for name, value in several.state_dict().items()})
    torch.testing.assert_close(passes(kept, several, 50)[0], before)


def test_weights_are_rounded_once_between_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(module._Weight):
        def __init__(self, *arguments: Any) -> None:
            made.append(1)
            super().__init__(*arguments)

    monkeypatch.setattr(module, "_Weight", Counted)
    monkeypatch.setenv("LAMBERT_NATIVE", "0")
    several, kept = layers(40), computed(Compute(copies=Copies()))
    for _ in range(3):
        passes(kept, several, 50)
    assert len(made) == 1
    for _ in range(3):
        passes(ours, several, 50)
    assert len(made) == 4


def test_importing_hooks_no_optimizer() -> None:
    assert not importlib.import_module("torch.optim.optimizer")._global_optimizer_post_hooks


def test_a_copy_of_a_model_has_its_own_weights() -> None:
    several, kept = layers(40), computed(Compute(copies=Copies()))
    before = passes(kept, several, 50)[0]
    other = copy.deepcopy(several)
    with torch.no_grad():
        other[0].weight.zero_()
    assert not torch.equal(passes(kept, other, 50)[0], before)
    assert torch.equal(passes(kept, several, 50)[0], before)


def test_frozen_weights_get_no_gradient() -> None:
    several = layers(40)
    several.requires_grad_(False)
    assert passes(ours, several, 50)[2] == []


def test_weights_made_for_inference() -> None:
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        several = layers(40)
        states = torch.randn(5, 48)
        torch.testing.assert_close(ours(states, several), by_torch(states, several), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("buffered", [False, True])
def test_rows_of_a_table(buffered: bool) -> None:
    table = nn.Embedding(20, 6)
    ids = torch.tensor([3, 3, 19, 0])
    compute = PLAIN
    if buffered:
        gradients = Gradients(table)
        gradients.flat.fill_(torch.nan)
        gradients.clear()
        compute = Compute(gradients=gradients)
    rows = embed(ids, table, compute)
    torch.testing.assert_close(rows, table(ids))
    rows.backward(torch.arange(24.0).view(4, 6))
    grad = table.weight.grad
    assert grad is not None
    expected = torch.zeros(20, 6).index_add(0, ids, torch.arange(24.0).view(4, 6))
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("rows", [1, 33, 200, 913])
@pytest.mark.parametrize(("inner", "width"), [(128, 512), (512, 128), (256, 768), (768, 3072), (3072, 768)])
def test_the_layout_changes_no_bit(rows: int, inner: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is continued may lay a weight out later than one that went on: an evaluation counts rows too."""
    several = layers(width, inner=inner)
    results = []
    for limit in (10**9, 1):
        monkeypatch.setattr(module, "_WORTH", limit)
        several.zero_grad()
        results.append(passes(ours, several, rows))
    (out, grad, _), (laid_out, laid_out_grad, _) = results
    assert torch.equal(out, laid_out)
    assert torch.equal(grad, laid_out_grad)
