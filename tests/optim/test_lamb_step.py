"""LAMB's step as a program: kernels, chunks and threads that change nothing, mixed precision, its state."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from four_tensors import gradients, rel, run, start
from torch import Tensor

from lambert.core.errors import UsageError
from lambert.optim import lamb
from lambert.optim.config import Adapt
from lambert.optim.lamb import Lamb


def test_float32_masters_of_bfloat16_gradients() -> None:
    def grads_of(step: int) -> list[Tensor]:
        return [grad.bfloat16().float() for grad in gradients(step)]

    masters = start(torch.float32)
    one = run(masters, grads_of, 20, fused=True)
    other = run(masters, grads_of, 20, fused=False)
    exact = run([weight.double() for weight in masters], lambda step: [g.double() for g in grads_of(step)], 20)
    assert rel(one, other) <= 1e-6
    assert rel(one, exact) <= 1e-6


def test_refuses_weights_below_float32() -> None:
    with pytest.raises(UsageError, match="float32 masters"):
        Lamb([torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))])


@pytest.mark.parametrize(
    "option",
    [
        {"lr": -1.0}, {"lr": math.nan}, {"lr": math.inf}, {"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)},
        {"betas": (0.9,)}, {"eps": -1e-6}, {"weight_decay": -0.1}, {"weight_decay": math.nan}, {"adapt": "some"},
        {"trust": (2.0, 1.0)}, {"trust": (-1.0, 1.0)}, {"trust": (0.0, math.nan)},
    ],
)  # fmt: skip
def test_options_out_of_range(option: dict[str, Any]) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    (name,) = option
    with pytest.raises(ValueError, match=f"Invalid {name}"):
        Lamb([weight], **option)
    with pytest.raises(ValueError, match=f"Invalid {name}"):
        Lamb([{"params": [weight]} | option])


def test_refuses_sparse_gradients() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse gradients"):
        Lamb(table.parameters()).step()


class Together(Lamb):
    """All tensors of a group in one batch, as on a GPU."""

    def _batches(self, params: list[Tensor], group: dict[str, Any]) -> Iterator[list[Tensor]]:
        yield [param for params in super()._batches(params, group) for param in params]

    def _buffers(self, params: list[Tensor]) -> list[Tensor]:
        return [torch.empty_like(param) for param in params]


@pytest.mark.parametrize("fused", [True, False])
def test_tensors_updated_together_or_one_by_one_are_the_same(fused: bool) -> None:
    ours = [[torch.nn.Parameter(weight) for weight in start(torch.float32)] for _ in range(2)]
    optimizers = [
        kind([{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}], lr=0.01, fused=fused)
        for kind, params in zip((Lamb, Together), ours, strict=True)
    ]
    for step in range(5):
        for optimizer, params in zip(optimizers, ours, strict=True):
            for param, grad in zip(params, gradients(step, dtype=torch.float32), strict=True):
                param.grad = grad
            optimizer.step()
    assert rel(*[[param.detach() for param in params] for params in ours]) <= 1e-6
    assert optimizers[0].trust_ratios() == pytest.approx(optimizers[1].trust_ratios(), rel=1e-6)


@pytest.mark.parametrize("adapted", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01, 1.0])
def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch, adapted: bool, weight_decay: float) -> None:
    options: dict[str, Any] = {"adapt": "all" if adapted else "none", "weight_decay": weight_decay}
    whole = run(start(), gradients, 5, **options)
    monkeypatch.setattr(lamb, "_CHUNK", 8)
    chunked = run(start(), gradients, 5, **options)
    assert rel(chunked, whole) <= 1e-12
    assert rel(chunked, run(start(), gradients, 5, fused=False, **options)) <= 1e-12


def test_the_number_of_threads_does_not_change_the_result() -> None:
    generator = torch.Generator().manual_seed(1)
    large = [torch.randn(1100, 1003, generator=generator), torch.randn(70001, generator=generator)]
    grads = [torch.randn(weight.shape, generator=generator) for weight in large]
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append(run(large, lambda step: grads, 2, adapt="all"))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(result, results[0], strict=True))


@pytest.mark.parametrize("adapt", ["all", "none"])
@pytest.mark.parametrize("turned", ["weight", "gradient"])
def test_the_order_in_memory_does_not_matter(adapt: Adapt, turned: str) -> None:
    results = []
    for turn in (False, True):
        weight, grad = start()[0], gradients(0)[0]
        turned_weight, turned_grad = (tensor.t().contiguous().t() for tensor in (weight, grad))
        param = torch.nn.Parameter(turned_weight if turn and turned == "weight" else weight)
        param.grad = turned_grad if turn and turned == "gradient" else grad
        optimizer = Lamb([param], lr=0.1, adapt=adapt)
        for _ in range(2):
            optimizer.step()
        results.append([param.detach()])
    assert rel(results[1], results[0]) <= 1e-12


@pytest.mark.parametrize("fused", [True, False])
def test_gradients_are_not_modified(fused: bool) -> None:
    params = [torch.nn.Parameter(weight) for weight in start(torch.float32)]
    grads = gradients(0, dtype=torch.float32)
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.clone()
    Lamb(params, fused=fused).step()
    assert all(torch.equal(p.grad, g) for p, g in zip(params, grads, strict=True) if p.grad is not None)


def test_parameters_without_a_gradient_stay_and_count_their_own_steps() -> None:
    late, early = (torch.nn.Parameter(torch.ones(3, 3)) for _ in range(2))
    optimizer = Lamb([late, early], lr=0.1)
    early.grad = torch.ones(3, 3)
    optimizer.step()
    assert torch.equal(late.detach(), torch.ones(3, 3))
    assert list(optimizer.trust_ratios()) == ["1"]
    first = early.detach().clone()
    late.grad, early.grad = torch.ones(3, 3), None
    optimizer.step()
    torch.testing.assert_close(late.detach(), first)
    assert list(optimizer.trust_ratios()) == ["0"]


@pytest.mark.parametrize("kind", [Lamb, Together])
@pytest.mark.parametrize("options", [{}, {"adapt": "none"}, {"adapt": "all", "bias_correction": False}])
def test_a_step_with_found_inf_changes_nothing(kind: type[Lamb], options: dict[str, Any]) -> None:
    params = [torch.nn.Parameter(weight) for weight in start(torch.float32)]
    optimizer = kind([{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}], lr=0.01, **options)
    others = copy.deepcopy(params)
    twin = kind([{"params": others[:2]}, {"params": others[2:], "weight_decay": 0.0}], lr=0.01, **options)
    assert optimizer._step_supports_amp_scaling
    for step, bad in enumerate([True, False, True, False]):
        grads = gradients(step, dtype=torch.float32)
        for param, other, grad in zip(params, others, grads, strict=True):
            param.grad, other.grad = grad * (math.nan if bad else 1), grad
        optimizer.found_inf = torch.tensor(float(bad))  # type: ignore[attr-defined]
        before = copy.deepcopy(([param.detach() for param in params], optimizer.state_dict()["state"]))
        optimizer.step()
        if bad:
            kept = optimizer.state_dict()["state"]
            assert all(torch.equal(one, two) for one, two in zip(before[0], params, strict=True))
            assert set(kept) == set(range(len(params)))
            for number, slots in before[1].items():
                assert all(torch.equal(slots[slot], kept[number][slot]) for slot in slots)
            assert set(optimizer.trust_ratios().values()) == {0.0}
        else:
            twin.step()
    assert all(float(slots["step"]) == 2 for slots in optimizer.state.values())
    for one, two in zip(params, others, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=0)


def test_gradients_are_unscaled_on_the_way() -> None:
    params, others = ([torch.nn.Parameter(weight) for weight in start(torch.float32)] for _ in range(2))
    one, two = Lamb(params, lr=0.01), Lamb(others, lr=0.01)
    for param, other, grad in zip(params, others, gradients(0, dtype=torch.float32), strict=True):
        param.grad, other.grad = grad * 1024, grad
    one.grad_scale, one.found_inf = torch.tensor(1024.0), torch.tensor(0.0)  # type: ignore[attr-defined]
    one.step()
    two.step()
    assert all(torch.equal(a, b) for a, b in zip(params, others, strict=True))


def test_without_the_fused_kernel_the_caller_decides() -> None:
    assert not Lamb([torch.nn.Parameter(torch.ones(2))], fused=False)._step_supports_amp_scaling


@pytest.mark.parametrize("copied", [True, False])
def test_continues_from_its_state_bit_for_bit(copied: bool) -> None:
    params = [torch.nn.Parameter(weight) for weight in start(torch.float32)]
    optimizer = Lamb(params, lr=0.01)

    def advance(optimizer: Lamb, params: list[torch.nn.Parameter], steps: range) -> None:
        for step in steps:
            for param, grad in zip(params, gradients(step, dtype=torch.float32), strict=True):
                param.grad = grad
            optimizer.step()

    advance(optimizer, params, range(5))
    others = [torch.nn.Parameter(param.detach().clone()) for param in params]
    other = Lamb(others, lr=0.5)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    if copied:
        other, others = copy.deepcopy((other, others))
    advance(optimizer, params, range(5, 10))
    advance(other, others, range(5, 10))
    assert all(torch.equal(one, two) for one, two in zip(params, others, strict=True))
    state = other.state_dict()["state"][0]
    assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
    assert state["step"].item() == 10


def test_the_closure_is_run_with_gradients() -> None:
    param = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = Lamb([param], lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (param**2).sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 4.0
    assert float(param.detach().sum()) < 4.0


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("adapt", ["all", "none"])
def test_a_rate_in_a_tensor(adapt: Adapt, fused: bool) -> None:
    results = []
    for rate in (0.125, torch.tensor(0.125)):
        weight = torch.nn.Parameter(start()[0])
        optimizer = Lamb([weight], adapt=adapt, fused=fused)
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = gradients(0)[0]
        optimizer.step()
        results.append([weight.detach()])
    assert rel(results[1], results[0]) <= 1e-7
