"""LARS against optax and the formulas of the paper."""

from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from torch import nn

from lambert.optim.config import OptimConfig
from lambert.optim.lars import Lars
from lambert.optim.optimizers import build

RATES = [0.5, 1.0, 0.25, 0.0, 2.0]
"""The learning rate is inside the momentum, so it varies."""


def gradients(step: int) -> list[np.ndarray]:
    """Those of a matrix, a vector, and a vector of zeros."""
    place = np.arange(6.0)
    return [np.sin(1.3 * place + step).reshape(2, 3), np.cos(place[:3] * step), np.sin(place[:2] + step)]


def weights() -> list[np.ndarray]:
    return [0.1 * np.cos(np.arange(6.0)).reshape(2, 3), np.linspace(1, 2, 3), np.zeros(2)]


class Tensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(torch.tensor(weight) for weight in weights())


def trained(optimizer: torch.optim.Optimizer, model: Tensors) -> list[np.ndarray]:
    for step, lr in enumerate(RATES):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for param, grad in zip(model.tensors, gradients(step), strict=True):
            param.grad = torch.tensor(grad)
        optimizer.step()
    return [param.detach().numpy() for param in model.tensors]


def by_the_paper(decay: float, coefficient: float, *, vectors: bool) -> list[np.ndarray]:
    """Algorithm 1, tensor by tensor; with a ratio and a decay for vectors, or neither."""
    made = []
    for place, weight in enumerate(weights()):
        adapts = vectors or weight.ndim > 1
        own, momentum = decay if adapts else 0.0, np.zeros_like(weight)
        for step, lr in enumerate(RATES):
            grad = gradients(step)[place]
            lengths = np.linalg.norm(weight), np.linalg.norm(grad)
            ratio = coefficient * lengths[0] / (lengths[1] + own * lengths[0]) if adapts and all(lengths) else 1.0
            momentum = 0.9 * momentum + lr * ratio * (grad + own * weight)
            weight = weight - momentum  # noqa: PLW2901
        made.append(weight)
    return made


def worst(ours: list[np.ndarray], theirs: list[Any]) -> float:
    return max(float(np.abs(a - np.asarray(b)).max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_every_tensor_is_adapted_as_in_the_paper(decay: float) -> None:
    model = Tensors()
    optimizer = Lars(model.parameters(), weight_decay=decay, trust_coefficient=0.01, adapt="all")
    assert worst(trained(optimizer, model), by_the_paper(decay, 0.01, vectors=True)) <= 1e-12


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_settings_adapt_matrices_only(decay: float) -> None:
    model = Tensors()
    config = OptimConfig(name="lars", betas=(0.9, 0.5), weight_decay=decay, trust_coefficient=0.01)
    assert worst(trained(build(model, config), model), by_the_paper(decay, 0.01, vectors=False)) <= 1e-12


def test_lars_equals_optax_without_decay() -> None:
    """With decay, optax's denominator is another."""
    model = Tensors()
    ours = trained(Lars(model.parameters(), weight_decay=0.0, adapt="all"), model)
    with jax.enable_x64(True):
        params: Any = [jax.numpy.asarray(weight) for weight in weights()]
        transform = optax.lars(lambda step: jax.numpy.asarray(RATES)[step])
        state = transform.init(params)
        for step in range(len(RATES)):
            updates, state = transform.update([*map(jax.numpy.asarray, gradients(step))], state, params)
            params = optax.apply_updates(params, updates)
        assert worst(ours, params) <= 1e-12


def test_without_adaptation_it_is_momentum() -> None:
    ours, theirs = Tensors(), Tensors()
    ours_made = trained(Lars(ours.parameters(), weight_decay=0.1, adapt="none"), ours)
    momenta = [np.zeros_like(weight) for weight in weights()]
    made = weights()
    for step, lr in enumerate(RATES):
        for place, grad in enumerate(gradients(step)):
            momenta[place] = 0.9 * momenta[place] + lr * (grad + 0.1 * made[place])
            made[place] = made[place] - momenta[place]
    assert worst(ours_made, made) <= 1e-12
    adapted = trained(Lars(theirs.parameters(), weight_decay=0.1, adapt="decayed"), theirs)
    assert worst(adapted, made) > 0.1


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", -1.0), ("momentum", 1.0), ("weight_decay", -0.1), ("trust_coefficient", 0.0), ("adapt", "some")],
)
def test_an_option_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"Invalid {name}"):
        Lars([{"params": list(Tensors().parameters()), name: value}])


def test_a_sparse_gradient() -> None:
    table = nn.Embedding(3, 2, sparse=True)
    table(torch.tensor([0])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        Lars(table.parameters()).step()
