"""The products under bfloat16 autocast equal torch's own linear layer, and notice every change of a weight."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lambert.core.gradients import collect, reserve
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


def ours(states_TD: Tensor, several: nn.ModuleList) -> Tensor:
    return project(states_TD, *several)  # type: ignore[arg-type]


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
    places = [torch.full_like(parameter, torch.nan) for parameter in several.parameters()]
    for parameter, place in zip(several.parameters(), places, strict=True):
        reserve(parameter, place)
    once = passes(ours, several, 30)[2]
    assert all(parameter.grad is place for parameter, place in zip(several.parameters(), places, strict=True))
    twice = passes(ours, several, 30)[2]
    for a, b in zip(once, twice, strict=True):
        torch.testing.assert_close(2 * a, b)


def test_gradients_end_in_their_places() -> None:
    unused, by_autograd = (nn.Parameter(torch.ones(3)) for _ in range(2))
    places = [torch.full((3,), torch.nan) for _ in range(2)]
    reserve(unused, places[0])
    reserve(by_autograd, places[1])
    (by_autograd * 2).sum().backward()
    for parameter, place in zip((unused, by_autograd), places, strict=True):
        collect(parameter, place)
        assert parameter.grad is place
    assert places[0].tolist() == [0, 0, 0]
    assert places[1].tolist() == [2, 2, 2]


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, fused=True)


def radam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.RAdam(parameters, foreach=True)


@pytest.mark.parametrize("build", [Lamb, adam, radam])
def test_an_update_is_noticed(build: Callable[..., torch.optim.Optimizer]) -> None:
    several = layers(40)
    optimizer = build(list(several.parameters()))
    before = passes(ours, several, 50)[0]
    optimizer.step()
    after = passes(ours, several, 50)[0]
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, passes(by_torch, several, 50)[0], rtol=2**-7, atol=2**-7)


def test_new_weights_are_noticed() -> None:
    several = layers(40)
    before = passes(ours, several, 50)[0]
    with torch.no_grad():
        for parameter in several.parameters():
            parameter.copy_(-parameter)
    torch.testing.assert_close(passes(ours, several, 50)[0], -before)
    several.load_state_dict({name: -value for name, value in several.state_dict().items()})
    torch.testing.assert_close(passes(ours, several, 50)[0], before)


def test_a_copy_of_a_model_has_its_own_weights() -> None:
    several = layers(40)
    before = passes(ours, several, 50)[0]
    other = copy.deepcopy(several)
    with torch.no_grad():
        other[0].weight.zero_()
    assert not torch.equal(passes(ours, other, 50)[0], before)
    assert torch.equal(passes(ours, several, 50)[0], before)


def test_frozen_weights_get_no_gradient() -> None:
    several = layers(40)
    several.requires_grad_(False)
    assert passes(ours, several, 50)[2] == []


def test_weights_made_for_inference() -> None:
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        several = layers(40)
        states = torch.randn(5, 48)
        torch.testing.assert_close(ours(states, several), by_torch(states, several), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("reserved", [False, True])
def test_rows_of_a_table(reserved: bool) -> None:
    table = nn.Embedding(20, 6)
    ids = torch.tensor([3, 3, 19, 0])
    if reserved:
        reserve(table.weight, torch.full_like(table.weight, torch.nan))
    rows = embed(ids, table)
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
