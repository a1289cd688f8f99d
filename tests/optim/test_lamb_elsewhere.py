"""Lamb in other people's training loops: plain parameters, the usual two groups, and torch's own tools around it."""

import copy
import io
import pickle
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lambert.optim.config import OptimConfig
from lambert.optim.groups import decay_groups
from lambert.optim.lamb import Lamb
from lambert.optim.schedule import schedule


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).double()


def set_gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for param in model.parameters():
        param.grad = torch.randn(param.shape, generator=generator, dtype=torch.float64).to(param.dtype)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int] = range(50)) -> list[Tensor]:
    for step in steps:
        set_gradients(model, step)
        optimizer.step()
    return [param.detach() for param in model.parameters()]


def published(model: nn.Module, decays: dict[str, float], adapted: set[str], lr: float) -> list[Tensor]:
    """Algorithm 2 of You et al., 2020, with their betas and eps, tensor by tensor; a ratio of 1 for what is not in
    `adapted`."""
    moments = {name: (torch.zeros_like(param), torch.zeros_like(param)) for name, param in model.named_parameters()}
    for t in range(1, 51):
        set_gradients(model, t - 1)
        for name, param in model.named_parameters():
            assert param.grad is not None
            m, v = moments[name]
            m.copy_(0.9 * m + 0.1 * param.grad)
            v.copy_(0.999 * v + 0.001 * param.grad**2)
            r = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-6)
            w = param.detach()
            u = r + decays[name] * w
            ratio = w.norm() / u.norm() if name in adapted and w.norm() > 0 and u.norm() > 0 else 1.0
            param.data = w - lr * ratio * u
    return [param.detach() for param in model.parameters()]


def assert_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    """As a user writes them, without a key of ours."""
    params = list(model.parameters())
    return [
        {"params": [param for param in params if param.ndim > 1], "weight_decay": 0.01},
        {"params": [param for param in params if param.ndim <= 1], "weight_decay": 0.0},
    ]


@pytest.mark.parametrize("fused", [True, False])
def test_plain_parameters_are_the_published_algorithm(fused: bool) -> None:
    ours, theirs = net(), net()
    names = {name for name, _ in theirs.named_parameters()}
    trained = train(ours, Lamb(ours.parameters(), lr=0.01, fused=fused))
    assert_equal(trained, published(theirs, dict.fromkeys(names, 0.01), names, 0.01))


@pytest.mark.parametrize("fused", [True, False])
def test_a_group_without_decay_has_no_trust_ratio(fused: bool) -> None:
    ours, theirs = net(), net()
    matrices = {name for name, param in theirs.named_parameters() if param.ndim > 1}
    decays = {name: 0.01 if name in matrices else 0.0 for name, _ in theirs.named_parameters()}
    trained = train(ours, Lamb(two_groups(ours), lr=0.01, fused=fused))
    assert_equal(trained, published(theirs, decays, matrices, 0.01))
    again = net()
    assert_equal(train(again, Lamb(decay_groups(again), lr=0.01, fused=fused)), trained)


def test_equals_timm() -> None:
    timm = pytest.importorskip("timm.optim.lamb")
    options: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}), ({"adapt": "all"}, {"always_adapt": True}), ({"trust": (0.0, 1.0)}, {"trust_clip": True}),
    ]  # fmt: skip
    for ours, theirs in options:
        for groups in (two_groups, lambda model: model.parameters()):
            one, other = net(), net()
            expected = train(other, timm.Lamb(groups(other), lr=0.01, max_grad_norm=None, **theirs))
            assert_equal(train(one, Lamb(groups(one), lr=0.01, **ours)), expected)


def test_torchs_schedulers_set_its_learning_rate() -> None:
    rate = schedule(OptimConfig(lr=0.02, warmup_steps=3), steps=10)
    ours, theirs = net(), net()
    optimizer, other = Lamb(decay_groups(ours), lr=1.0), Lamb(decay_groups(theirs), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for step in range(10):
        train(ours, optimizer, [step])
        scheduler.step()
        for group in other.param_groups:
            group["lr"] = rate(step)
        train(theirs, other, [step])
    assert_equal(list(ours.parameters()), list(theirs.parameters()))


@pytest.mark.parametrize("fused", [True, False])
def test_torchs_gradient_scaler_skips_a_step_with_infinite_gradients(fused: bool) -> None:
    ours, theirs = net().float(), net().float()
    optimizer, other = Lamb(decay_groups(ours), lr=0.01, fused=fused), Lamb(decay_groups(theirs), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    inputs = torch.ones(4, 6)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(ours(inputs).sum() * (torch.inf if step == 1 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        if step != 1:
            other.zero_grad()
            theirs(inputs).sum().backward()
            other.step()
    assert scaler.get_scale() == 512.0
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


def test_is_copied_pickled_and_saved_as_torchs_optimizers_are() -> None:
    model = net()
    optimizer = Lamb(two_groups(model), lr=0.01)
    train(model, optimizer, range(5))
    stored = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), stored)
    stored.seek(0)
    weights, state = torch.load(stored, weights_only=True)
    third = net()
    third.load_state_dict(weights)
    loaded = Lamb(two_groups(third), lr=0.5)
    loaded.load_state_dict(state)
    copies = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer))), (third, loaded)]
    expected = train(model, optimizer, range(5, 10))
    for copied, its in copies:
        assert_equal(train(copied, its, range(5, 10)), expected)


def test_a_group_added_later_has_its_own_options() -> None:
    model = net()
    head, *others = [model[3], model[0], model[1]]
    optimizer = Lamb([param for module in others for param in module.parameters()], lr=0.01)
    optimizer.add_param_group({"params": head.parameters(), "weight_decay": 0.0, "lr": 0.0})
    before = [param.detach().clone() for param in head.parameters()]
    train(model, optimizer, [0])
    assert_equal([param.detach() for param in head.parameters()], before)
    ratios = list(optimizer.trust_ratios().values())
    assert ratios[-2:] == [1.0, 1.0]
    assert all(ratio != 1.0 for ratio in ratios[:1])
    with pytest.raises(ValueError, match="Invalid adapt"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "adapt": "some"})
