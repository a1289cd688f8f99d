"""Lamb on four small tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lambert.optim.lamb import Lamb

SHAPES = ((7, 5), (3, 4, 2), (6,), (5,))
"""Two tensors that are decayed, a bias and a LayerNorm; the last starts at zero."""


def start(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64).mul(0.05).to(dtype) for shape in SHAPES]
    weights[-1].zero_()
    return weights


def gradients(step: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).mul(scale).to(dtype) for shape in SHAPES]


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
        {"params": [params[i] for i in excluded], "weight_decay": 0.0},
    ]
    optimizer = Lamb([group for group in groups if group["params"]], **options)
    for step in range(steps):
        for param, grad in zip(params, grads_of(step), strict=True):
            param.grad = grad.clone()
        optimizer.step()
        watch(optimizer)
    return [param.detach() for param in params]


def rel(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    flat = [torch.cat([t.double().flatten() for t in tensors]) for tensors in (ours, theirs)]
    return float((flat[0] - flat[1]).abs().max() / flat[1].abs().max())
