"""LAMB against its formula, optax, golden vectors, and the properties that follow from the algorithm."""

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lambert.core.errors import UsageError
from lambert.optim import lamb
from lambert.optim.config import Adapt
from lambert.optim.lamb import Lamb

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "optim_vectors.json").read_text())
SHAPES = ((7, 5), (3, 4, 2), (6,), (5,))
"""Two tensors that are decayed, a bias and a LayerNorm; the last starts at zero."""


def scalar_lamb(
    weights: list[float],
    grads: Iterable[list[float]],
    *,
    lr: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    corrected: bool = True,
    adapted: bool = True,
) -> list[float]:
    """Algorithm 2 of the paper on one tensor, a number at a time."""
    means, squares = [0.0] * len(weights), [0.0] * len(weights)
    for t, grad in enumerate(grads, 1):
        steps = []
        for i, g in enumerate(grad):
            means[i] = betas[0] * means[i] + (1 - betas[0]) * g
            squares[i] = betas[1] * squares[i] + (1 - betas[1]) * g * g
            m = means[i] / (1 - betas[0] ** t) if corrected else means[i]
            v = squares[i] / (1 - betas[1] ** t) if corrected else squares[i]
            steps.append(m / (math.sqrt(v) + eps) + weight_decay * weights[i])
        long, short = math.sqrt(sum(w * w for w in weights)), math.sqrt(sum(s * s for s in steps))
        ratio = long / short if adapted and long > 0 and short > 0 else 1.0
        weights = [w - lr * ratio * s for w, s in zip(weights, steps, strict=True)]
    return weights


def start(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64).mul(0.05).to(dtype) for shape in SHAPES]
    weights[-1].zero_()
    return weights


def gradients(step: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).mul(scale).to(dtype) for shape in SHAPES]


def clip(grads: Sequence[Tensor], largest: float) -> list[Tensor]:
    """Scaled down to a global norm of `largest` where it is longer, as apex and timm do inside their LAMB."""
    norm = torch.sqrt(sum((grad.double() ** 2).sum() for grad in grads))
    return [grad / max(1.0, float(norm) / largest) for grad in grads]


def run(
    weights: list[Tensor],
    grads_of: Callable[[int], Sequence[Tensor]],
    steps: int,
    *,
    excluded: Sequence[int] = (),
    watch: Callable[[Lamb], None] = lambda optimizer: None,
    **options: Any,
) -> list[Tensor]:
    """Weights after `steps` steps of Lamb."""
    params = [torch.nn.Parameter(weight.clone()) for weight in weights]
    groups = [
        {"params": [p for i, p in enumerate(params) if i not in excluded]},
        {"params": [params[i] for i in excluded], "excluded": True},
    ]
    optimizer = Lamb([group for group in groups if group["params"]], **options)
    for step in range(steps):
        for param, grad in zip(params, grads_of(step), strict=True):
            param.grad = grad.clone()
        optimizer.step()
        watch(optimizer)
    return [param.detach() for param in params]


def optax_run(
    transform: optax.GradientTransformation,
    weights: list[Tensor],
    grads_of: Callable[[int], Sequence[Tensor]],
    steps: int,
) -> list[Tensor]:
    wide = weights[0].dtype == torch.float64
    with jax.enable_x64(wide):
        params = [jax.numpy.asarray(weight.numpy()) for weight in weights]
        state = transform.init(params)
        update = jax.jit(transform.update)
        for step in range(steps):
            grads = [jax.numpy.asarray(grad.numpy()) for grad in grads_of(step)]
            updates, state = update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return [torch.from_numpy(np.array(param)) for param in params]


def rel(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    flat = [torch.cat([t.double().flatten() for t in tensors]) for tensors in (ours, theirs)]
    return float((flat[0] - flat[1]).abs().max() / flat[1].abs().max())


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_all_adapted_equals_optax(fused: bool, dtype: torch.dtype, tolerance: float) -> None:
    def grads_of(step: int) -> list[Tensor]:
        return gradients(step, dtype=dtype)

    ours = run(start(dtype), grads_of, 50, lr=0.01, adapt="all", fused=fused)
    theirs = optax_run(optax.lamb(0.01, eps=1e-6, weight_decay=0.01), start(dtype), grads_of, 50)
    assert rel(ours, theirs) <= tolerance


@pytest.mark.parametrize("fused", [True, False])
def test_default_after_clipping_equals_optax(fused: bool) -> None:
    parts = {"decayed": optax.lamb(0.01, eps=1e-6, weight_decay=0.01), "excluded": optax.adam(0.01, eps=1e-6)}
    labels = ["decayed", "decayed", "excluded", "excluded"]
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.partition(parts, labels))
    theirs = optax_run(transform, start(), gradients, 50)
    ours = run(start(), lambda step: clip(gradients(step), 1.0), 50, lr=0.01, excluded=(2, 3), fused=fused)
    assert rel(ours, theirs) <= 1e-12


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("adapted", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_equals_the_scalar_algorithm(
    fused: bool, corrected: bool, adapted: bool, dtype: torch.dtype, tolerance: float
) -> None:
    ours = run(
        start(dtype),
        lambda step: gradients(step, dtype=dtype),
        20,
        lr=0.01,
        bias_correction=corrected,
        adapt="all" if adapted else "none",
        fused=fused,
    )
    theirs = [
        torch.tensor(
            scalar_lamb(
                weight.double().flatten().tolist(),
                [gradients(step, dtype=dtype)[i].double().flatten().tolist() for step in range(20)],
                corrected=corrected,
                adapted=adapted,
            ),
            dtype=torch.float64,
        )
        for i, weight in enumerate(start(dtype))
    ]
    assert rel(ours, theirs) <= tolerance


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


class Together(Lamb):
    """All tensors of a group in one batch, as on a GPU."""

    def _batches(self, group: dict[str, Any]) -> Iterator[list[Tensor]]:
        yield [param for params in super()._batches(group) for param in params]

    def _room(self, params: list[Tensor]) -> list[Tensor]:
        return [torch.empty_like(param) for param in params]


@pytest.mark.parametrize("fused", [True, False])
def test_tensors_updated_together_or_one_by_one_are_the_same(fused: bool) -> None:
    ours = [[torch.nn.Parameter(weight) for weight in start(torch.float32)] for _ in range(2)]
    optimizers = [
        kind([{"params": params[:2]}, {"params": params[2:], "excluded": True}], lr=0.01, fused=fused)
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


VARIANTS: dict[str, dict[str, Any]] = {
    "lamb_bc_adapt_all": {"adapt": "all"},
    "lamb_v3_no_bc": {"adapt": "all", "bias_correction": False},
    "lamb_bc_exclude_bias_ln": {"excluded": (1, 2)},
    "fusedlamb_apex_default": {"excluded": (1, 2)},
    "lambc_trust_hi_1": {"adapt": "all", "trust": (0.0, 1.0)},
    "adamw": {"adapt": "none"},
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_golden_vectors(variant: str, fused: bool) -> None:
    def grads_of(step: int) -> list[Tensor]:
        grads = [torch.tensor(grad, dtype=torch.float64) for grad in inputs["G"][step]]
        return clip(grads, 1.0) if variant == "fusedlamb_apex_default" else grads

    inputs, expected = GOLDEN["inputs"], GOLDEN[variant]
    weights = [torch.tensor(weight, dtype=torch.float64) for weight in inputs["W0"]]
    ratios: list[list[float]] = []
    final = run(
        weights,
        grads_of,
        len(inputs["G"]),
        watch=lambda optimizer: ratios.append(list(optimizer.trust_ratios().values())),
        lr=inputs["hp"]["lr"],
        weight_decay=inputs["hp"]["wd"],
        fused=fused,
        **VARIANTS[variant],
    )
    for ours, theirs in zip(final, expected["final"], strict=True):
        assert (ours - torch.tensor(theirs, dtype=torch.float64)).abs().max() <= 1e-14
    if "trust" in expected:
        np.testing.assert_allclose(ratios, expected["trust"], rtol=0, atol=1e-14)


@pytest.mark.parametrize(("low", "high"), [(0.01, 10.0), (0.3, 0.6), (2.0, 3.0)])
def test_trust_bounds(low: float, high: float) -> None:
    """One step from known weights, where the ratio has a closed form: |w| / |sign(g) + decay * w| at eps = 0."""
    weights, grads = start()[:2], gradients(0)[:2]
    weights[0] *= 100
    weights[1] *= 1e-3
    params = [torch.nn.Parameter(weight.clone()) for weight in weights]
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad
    Lamb(params, lr=0.1, eps=0.0, weight_decay=0.01, trust=(low, high)).step()
    for param, weight, grad in zip(params, weights, grads, strict=True):
        step = grad.sign() + 0.01 * weight
        ratio = min(max(float(weight.norm() / step.norm()), low), high)
        torch.testing.assert_close(param.detach(), weight - 0.1 * ratio * step, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@settings(max_examples=25, deadline=None)
@given(lr=st.floats(1e-3, 0.5), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_an_adapted_tensor_moves_by_lr_times_its_norm(
    dtype: torch.dtype, tolerance: float, lr: float, scale: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    param = torch.nn.Parameter(torch.randn(9, 4, generator=generator, dtype=dtype))
    optimizer = Lamb([param], lr=lr)
    for _ in range(3):
        before = param.detach().clone()
        param.grad = torch.randn(9, 4, generator=generator, dtype=dtype) * scale
        optimizer.step()
        moved, long = float((param.detach() - before).norm()), float(before.norm())
        assert abs(moved - lr * long) <= tolerance * long


@settings(max_examples=25, deadline=None)
@given(factor=st.floats(1e-4, 1e4))
def test_the_length_of_a_gradient_does_not_matter(factor: float) -> None:
    one = run(start(), gradients, 5, eps=0.0, adapt="all")
    other = run(start(), lambda step: gradients(step, factor), 5, eps=0.0, adapt="all")
    assert rel(one, other) <= 1e-12


def test_bias_correction_cancels_without_decay_and_eps() -> None:
    options: dict[str, Any] = {"adapt": "all", "weight_decay": 0.0, "eps": 0.0}
    weights = [torch.ones(shape, dtype=torch.float64) for shape in SHAPES]
    one = run(weights, gradients, 10, bias_correction=True, **options)
    other = run(weights, gradients, 10, bias_correction=False, **options)
    assert rel(one, other) <= 1e-12


@pytest.mark.parametrize("fused", [True, False])
def test_zero_weights_and_zero_steps_keep_a_ratio_of_one(fused: bool) -> None:
    weight, still = torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.ones(4))
    weight.grad, still.grad = torch.tensor([1.0, -2.0, 3.0, -4.0]), torch.zeros(4)
    optimizer = Lamb([weight, still], lr=0.1, weight_decay=0.0, adapt="all", fused=fused)
    optimizer.step()
    assert optimizer.trust_ratios() == {"0": 1.0, "1": 1.0}
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.1, 0.1, -0.1, 0.1]), rtol=1e-5, atol=0)
    assert torch.equal(still.detach(), torch.ones(4))


def test_steps_without_bias_correction_are_too_long_at_first() -> None:
    """A constant gradient: corrected, every step is lr; uncorrected, (1 - b1^t) / sqrt(1 - b2^t) of it."""
    param = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = Lamb([param], lr=1.0, eps=0.0, weight_decay=0.0, adapt="none", bias_correction=False)
    factors = []
    for _ in range(100):
        before = float(param.detach())
        param.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
        factors.append(before - float(param.detach()))
    assert factors[0] == pytest.approx(3.1622777, abs=1e-6)
    assert max(factors) == pytest.approx(6.5685, abs=1e-3)
    assert factors.index(max(factors)) + 1 == 12
    assert factors[99] == pytest.approx(3.24, abs=0.01)


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
    optimizer = kind([{"params": params[:2]}, {"params": params[2:], "excluded": True}], lr=0.01, **options)
    others = copy.deepcopy(params)
    twin = kind([{"params": others[:2]}, {"params": others[2:], "excluded": True}], lr=0.01, **options)
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
