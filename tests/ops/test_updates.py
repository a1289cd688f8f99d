"""Updates by Triton's kernels, in its interpreter, are those of Lambert's and torch's optimizers."""

import math
import os
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or Triton's interpreter (make test-triton)", allow_module_level=True)

from lambert.core.compute import Copies, Place
from lambert.ops import updates
from lambert.ops.cuda import CudaOps
from lambert.ops.updates import Numbers, Table, can_update, update
from lambert.optim.lamb import Lamb

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [(70, 90), (17,), (1,), (8192,), (3, 2)]
BETAS, EPS, RATE, DECAY = (0.9, 0.98), 1e-6, 0.01, 0.1


def drawn(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(DEVICE) for shape in SHAPES]


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("trust", [None, (0.0, 10.0)])
def test_updates(trust: tuple[float, float] | None, corrected: bool) -> None:
    """Beside the optimizer that takes its steps by torch's functions, and for AdamW beside torch's."""
    weights = drawn(3)
    weights[2].zero_()
    params = [nn.Parameter(weight.clone()) for weight in weights]
    oracle: Any = Lamb(
        params, lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, adapt="all" if trust else "none", fused=False,
        trust=trust or (0.0, math.inf), bias_correction=corrected,
    )  # fmt: skip
    if trust is None and corrected:
        oracle = torch.optim.AdamW(params, lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY)
    means = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]
    copies = [torch.zeros_like(weight, dtype=torch.bfloat16) for weight in weights[1:]]
    places = {id(weight): Place(copy=copy.data_ptr()) for weight, copy in zip(weights[1:], copies, strict=True)}
    for step in range(1, 4):
        grads = drawn(10 + step)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        oracle.step()
        tensors = [(w, 2 * g, *m) for w, g, m in zip(weights, grads, means, strict=True)]
        numbers = Numbers(RATE, BETAS, EPS, DECAY, corrected, torch.tensor(2.0, device=DEVICE), None)
        counters = [torch.tensor(float(step), device=DEVICE) for _ in weights]
        ratios = update(Table(tensors, places), counters, numbers, trust)
        for weight, param in zip(weights, params, strict=True):
            torch.testing.assert_close(weight, param.detach(), rtol=1e-5, atol=1e-6)
        for weight, copy in zip(weights[1:], copies, strict=True):
            torch.testing.assert_close(copy.float(), weight, rtol=2**-7, atol=0)  # the interpreter does not round
        if trust:
            assert ratios.tolist() == pytest.approx([*oracle.trust_ratios().values()], rel=1e-4)


@pytest.mark.parametrize("trust", [None, (0.0, math.inf)])
def test_an_update_that_is_not_taken_changes_nothing(trust: tuple[float, float] | None) -> None:
    weights, means, squares = drawn(1), drawn(2), [one.abs() for one in drawn(3)]
    before = [one.clone() for one in (*weights, *means, *squares)]
    grads = [torch.full_like(weight, math.nan) for weight in weights]
    numbers = Numbers(RATE, BETAS, EPS, DECAY, True, None, torch.ones((), device=DEVICE))
    counters = [torch.zeros((), device=DEVICE) for _ in weights]
    ratios = update(Table([*zip(weights, grads, means, squares, strict=True)], {}), counters, numbers, trust)
    assert all(map(torch.equal, before, (*weights, *means, *squares)))
    assert ratios.tolist() == [0] * len(SHAPES)


def test_which_tensors_it_updates() -> None:
    assert can_update(drawn(1))
    assert not can_update([torch.zeros(8, 8).t()[1:]])
    assert not can_update([torch.zeros(8, dtype=torch.float64)])
    assert not can_update([torch.zeros(9)[1:]])


@pytest.fixture
def on_every_device(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr("lambert.optim.lamb.find_updates", lambda device: updates)
    monkeypatch.setattr(Lamb, "_update_by_kernels", lambda *arguments: None)
    return updates


@pytest.mark.parametrize("adapt", ["decayed", "none"])
def test_an_optimizer_takes_its_steps_by_them(adapt: Any, on_every_device: ModuleType) -> None:
    """With clipping, a step that is skipped, a rate that changes, and a state that is loaded."""
    results = []
    for fused in (True, False):
        params = [nn.Parameter(weight) for weight in drawn(3)]
        groups = [{"params": params[::2]}, {"params": params[1::2], "weight_decay": 0.0}]
        optimizer = Lamb(groups, lr=RATE, betas=BETAS, adapt=adapt, fused=fused)
        for step in range(5):
            scale, skipped = 1.0 + step, step == 2
            for param, grad in zip(params, drawn(10 + step), strict=True):
                param.grad = grad * scale if fused else grad
            optimizer.param_groups[0]["lr"] = RATE / (1 + step)
            if fused:
                optimizer.grad_scale = torch.tensor(scale, device=DEVICE)  # type: ignore[attr-defined]
                optimizer.found_inf = torch.tensor(float(skipped), device=DEVICE)  # type: ignore[attr-defined]
            if step == 3:
                optimizer.load_state_dict(optimizer.state_dict())
            if fused or not skipped:
                optimizer.step()
            if fused:
                written = {*map(id, params)} if DEVICE.type == "cuda" or not skipped else set()  # CPUs skip before
                assert optimizer.written == written
                assert all(not ratio for ratio in optimizer.trust_ratios().values()) == skipped
        results.append([param.detach() for param in params])
        assert all(float(optimizer.state[param]["step"]) == 4 for param in params)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_step_writes_the_copies_that_the_next_pass_reads(on_every_device: ModuleType) -> None:
    ops = CudaOps()
    weights, biases = drawn(3)[:1] * 2, [torch.randn(70), torch.randn(70)]
    params = [nn.Parameter(one.clone()) for one in (*weights, *biases)]
    copies = Copies()
    parts = (*params,)
    made = copies.find(parts, lambda: ops.pack(params[:2], params[2:]))
    optimizer = Lamb(params, lr=RATE)
    for step in range(2):
        for param in params:
            param.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(step))
        optimizer.places = copies.offer()
        optimizer.step()
        copies.keep(optimizer.written)
        assert copies.find(parts, lambda: pytest.fail("a copy was dropped")) is made
        fresh = ops.pack(params[:2], params[2:])
        torch.testing.assert_close(made.weight_FD.float(), fresh.weight_FD.float(), rtol=2**-7, atol=0)
        torch.testing.assert_close(made.bias_F.float(), fresh.bias_F.float(), rtol=2**-7, atol=0)
