"""Updates by the compiled kernels: what torch's functions compute, and the copies of the weights for products."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lambert.core.compute import Copies
from lambert.model.linear import project
from lambert.native import library
from lambert.ops import native
from lambert.ops.native import OPS, PackedWeight
from lambert.optim.lamb import Lamb
from lambert.optim.stable_adamw import StableAdamW

pytestmark = pytest.mark.skipif(library() is None, reason="the compiled kernels are not built")

SHAPES = [(64, 48), (130, 6), (3, 5), (1,), (70_000,), (300, 200), (0, 4)]
KINDS: dict[str, Callable[[list[Tensor]], Any]] = {
    "adamw": lambda params: Lamb(params, lr=0.02, adapt="none", weight_decay=0.1),
    "uncorrected": lambda params: Lamb(params, lr=0.02, bias_correction=False),
    "lamb": lambda params: Lamb(params, lr=0.02, weight_decay=0.1),
    "bounded": lambda params: Lamb(params, lr=0.02, trust=(0.5, 0.7)),
    "stable": lambda params: StableAdamW(params, lr=0.02, weight_decay=0.1),
}


def drawn(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def trained(kind: str, dtype: torch.dtype) -> tuple[list[Tensor], Any]:
    params = [nn.Parameter(weight) for weight in drawn(0, dtype)]
    optimizer = KINDS[kind](params)  # type: ignore[arg-type]
    for step in range(1, 5):
        for param, grad in zip(params, drawn(step, dtype), strict=True):
            param.grad = grad * 3 ** (step % 3)
        params[1].grad = None if step == 2 else params[1].grad  # its steps are then fewer than the others'
        optimizer.step()
    return params, optimizer  # type: ignore[return-value]


@pytest.mark.parametrize("kind", [*KINDS])
def test_equal_to_torchs_functions_in_float64(kind: str) -> None:
    """float64 is not updated by the kernels."""
    found, optimizer = trained(kind, torch.float32)
    exact, other = trained(kind, torch.float64)
    assert len(optimizer.written) == len(SHAPES)
    assert not other.written
    for one, two in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), two, atol=2e-6, rtol=2e-6)
        for slot, value in other.state[two].items():
            torch.testing.assert_close(optimizer.state[one][slot].double(), value.double(), atol=1e-6, rtol=1e-5)
    if isinstance(optimizer, Lamb):
        assert optimizer.trust_ratios() == pytest.approx(other.trust_ratios(), rel=1e-5)


@pytest.mark.parametrize("kind", ["lamb", "stable"])
def test_threads_change_nothing(kind: str) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(trained(kind, torch.float32)[0])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for other in found[1:] for one, two in zip(found[0], other, strict=True))


def test_norms() -> None:
    tensors = [*drawn(1), torch.full((5000,), 1e15)]
    wanted = [float(tensor.double().norm()) for tensor in tensors]
    assert native.Buffers(tensors).norms().tolist() == pytest.approx(wanted, rel=2e-6)
    bad = [torch.tensor([1.0, torch.nan]), torch.tensor([torch.inf])]
    assert native.Buffers(bad).norms().isfinite().tolist() == [False] * 2


def test_tensors_that_move_between_steps_are_found() -> None:
    """A gradient, a loaded state, and a parameter in other memory."""
    results = []
    for moves in (False, True):
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 60).view(6, 10))
        optimizer = Lamb([weight], lr=0.1)
        for step in range(6):
            grad = torch.full((6, 10), 0.1 * (step + 1))
            if step == 0 or moves:
                weight.grad = grad
            else:
                weight.grad.copy_(grad)
            if moves and step == 2:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if moves and step == 4:
                weight.data = weight.data.clone()
            optimizer.step()
        results.append(weight.detach().clone())
    assert torch.equal(*results)


@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.parametrize("rows", [(64, 128, 64), (128, 30), (46,)])
def test_a_step_writes_the_copies(kind: str, rows: tuple[int, ...]) -> None:
    """The packed weights after a step are those of the new weights, of both products and with the biases."""
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(count, 96)) for count in rows]
    biases = [nn.Parameter(torch.randn(count)) for count in rows]
    copies, parts = Copies(), (*weights, *biases)
    packed = copies.find(parts, lambda: OPS.pack(weights, biases))
    optimizer = KINDS[kind]([*parts])
    for _ in range(2):
        for part in parts:
            part.grad = torch.randn_like(part)
        optimizer.places = copies.offer()
        optimizer.step()
        copies.keep(optimizer.written)
        assert copies.find(parts, lambda: pytest.fail("the copy was dropped")) is packed
        fresh = PackedWeight(weights, biases)
        assert torch.equal(packed.forward, fresh.forward)
        assert torch.equal(packed.backward, fresh.backward)
        assert torch.equal(packed.bias_F, fresh.bias_F)  # type: ignore[arg-type]


def test_copies_that_no_step_has_written_are_dropped() -> None:
    layers = [nn.Linear(64, 64) for _ in range(5)]
    frozen = copy.deepcopy(layers[4]).requires_grad_(False)
    copies, made = Copies(), []

    def find(*chosen: nn.Linear) -> None:
        weights, biases = [layer.weight for layer in chosen], [layer.bias for layer in chosen]
        copies.find((*weights, *biases), lambda: made.append(chosen) or OPS.pack(weights, biases))  # type: ignore[func-returns-value]

    used = [(layers[0],), (layers[1], layers[2]), (layers[2],), (layers[3],), (frozen,)]
    optimizer = Lamb(part for layer in layers for part in layer.parameters())
    for step in range(2):
        made.clear()
        for chosen in used:
            find(*chosen)
        # After a step: layer 2 has two copies, and layer 3 no gradient.
        assert made == (used if step == 0 else [(layers[1], layers[2]), (layers[2],), (layers[3],)])
        project(torch.ones(2, 64), layers[0]).sum().backward()
        project(torch.ones(2, 64), layers[1], layers[2]).sum().backward()
        optimizer.places = copies.offer()
        optimizer.step()
        copies.keep(optimizer.written)
    copies.clear()
    made.clear()
    find(frozen)
    assert made
