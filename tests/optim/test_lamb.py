"""LAMB against its formula, optax, golden vectors, and the properties that follow from the algorithm."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from four_tensors import SHAPES, gradients, rel, run, start
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lambert.optim.lamb import Lamb

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "optim_vectors.json").read_text())


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


def clip(grads: Sequence[Tensor], largest: float) -> list[Tensor]:
    """Scaled down to a global norm of `largest` where it is longer, as apex and timm do inside their LAMB."""
    norm = torch.sqrt(sum((grad.double() ** 2).sum() for grad in grads))
    return [grad / max(1.0, float(norm) / largest) for grad in grads]


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
@settings(max_examples=25)
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


@settings(max_examples=25)
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
