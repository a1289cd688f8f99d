"""The optimizers by name against their oracles, and which parameters they decay."""

import copy
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForPreTraining

from lambert.core.errors import UsageError
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.optim.config import OptimConfig
from lambert.optim.groups import decay_groups
from lambert.optim.lamb import Lamb
from lambert.optim.optimizers import OPTIMIZERS, build
from lambert.optim.stable_adamw import StableAdamW

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "optim_vectors.json").read_text())


class Tensors(nn.Module):
    """The three tensors of the golden vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(torch.tensor(weight, dtype=torch.float64) for weight in GOLDEN["inputs"]["W0"])


def trained(optimizer: torch.optim.Optimizer, model: Tensors, steps: int) -> list[Tensor]:
    for step in range(steps):
        for number, param in enumerate(model.tensors):
            grads = GOLDEN["inputs"]["G"][step % 4][number]
            param.grad = torch.tensor(grads, dtype=torch.float64) * (1 + step // 4)
        optimizer.step()
    return [param.detach() for param in model.tensors]


def worst(ours: list[Tensor], theirs: list[Any]) -> float:
    return max(float((o - torch.as_tensor(t, dtype=o.dtype)).abs().max()) for o, t in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", ["radam", "adamw"])
def test_golden_vectors(name: str) -> None:
    """The golden runs decay every tensor, as the plain optimizers do; groups are left out here."""
    model = Tensors()
    groups = [{"params": list(model.named_parameters()), "weight_decay": GOLDEN["inputs"]["hp"]["wd"]}]
    eps = {"radam": 1e-8, "adamw": 1e-6}[name]
    optimizer = OPTIMIZERS[name](groups, OptimConfig(name=name, lr=0.01, eps=eps))
    key = {"radam": "radam_torch_decoupled", "adamw": "adamw"}[name]
    assert worst(trained(optimizer, model, 4), GOLDEN[key]["final"]) <= 1e-14


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_radam_equals_torch_on_single_tensors(weight_decay: float) -> None:
    """20 steps, over the sixth, from which on the step is rectified."""
    ours, theirs = Tensors(), Tensors()
    matrix, *vectors = theirs.tensors
    oracle = torch.optim.RAdam(
        [{"params": [matrix], "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=0.01,
        eps=1e-6,
        decoupled_weight_decay=True,
        foreach=False,
    )
    config = OptimConfig(name="radam", lr=0.01, eps=1e-6, weight_decay=weight_decay)
    assert worst(trained(build(ours, config), ours, 20), trained(oracle, theirs, 20)) <= 1e-12


def optax_trained(transform: optax.GradientTransformation, steps: int) -> list[Any]:
    with jax.enable_x64(True):
        params = [jax.numpy.asarray(np.array(weight)) for weight in GOLDEN["inputs"]["W0"]]
        state = transform.init(params)
        for step in range(steps):
            grads = [jax.numpy.asarray(np.array(grad) * (1 + step // 4)) for grad in GOLDEN["inputs"]["G"][step % 4]]
            updates, state = transform.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return [np.array(param) for param in params]


def test_radam_equals_optax() -> None:
    model = Tensors()
    config = OptimConfig(name="radam", lr=0.01, eps=0.0, weight_decay=0.0)
    assert worst(trained(build(model, config), model, 20), optax_trained(optax.radam(0.01, eps=0.0), 20)) <= 1e-12


@pytest.mark.parametrize(
    "config",
    [OptimConfig(name="adamw", lr=0.01), OptimConfig(name="lamb", lr=0.01, adapt="none")],
    ids=["adamw", "lamb without adaptation"],
)
def test_adamw_equals_torch_and_optax(config: OptimConfig) -> None:
    model, reference = Tensors(), Tensors()
    ours = trained(build(model, config), model, 50)
    matrix, *vectors = reference.tensors
    oracle = torch.optim.AdamW(
        [{"params": [matrix], "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}],
        lr=0.01,
        eps=1e-6,
        foreach=False,
        fused=False,
    )
    assert worst(ours, trained(oracle, reference, 50)) <= 1e-12
    decayed = optax.adamw(0.01, eps=1e-6, weight_decay=0.01, mask=[True, False, False])
    assert worst(ours, optax_trained(decayed, 50)) <= 1e-12


def test_radam_rectifies_from_the_sixth_step_on() -> None:
    """A gradient of 1 makes both bias-corrected means 1, so that a step is lr x the rectification, or lr before it."""
    param = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    groups = [{"params": [("weight", param)], "weight_decay": 0.0}]
    optimizer = OPTIMIZERS["radam"](groups, OptimConfig(name="radam", lr=1.0, eps=0.0))
    steps = {}
    for number in range(1, 101):
        before = float(param.detach())
        param.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
        steps[number] = before - float(param.detach())
    assert [steps[number] for number in range(1, 6)] == pytest.approx([1.0] * 5)
    table = {6: 0.025821, 10: 0.048998, 50: 0.148152, 100: 0.215335}
    assert {number: steps[number] for number in table} == pytest.approx(table, abs=1e-6)


def hf_model() -> nn.Module:
    return BertForPreTraining(
        BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    )


def test_no_decay_is_bias_and_layer_norm_by_hugging_faces_names() -> None:
    model = hf_model()
    decayed, excluded = decay_groups(model)
    names = {name for name, _ in model.named_parameters() if name.endswith("bias") or "LayerNorm." in name}
    assert {name for name, _ in excluded["params"]} == names
    assert len(names) > 20
    assert (decayed["weight_decay"], excluded["weight_decay"]) == (0.01, 0.0)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_lamb_of_the_settings_adapts_matrices_whatever_the_decay(decay: float) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    optimizer = build(model, OptimConfig(weight_decay=decay))
    assert isinstance(optimizer, Lamb)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert {name for name, ratio in optimizer.trust_ratios().items() if ratio != 1} == {"0.weight"}


def test_our_own_names_give_the_same_groups() -> None:
    config = EncoderConfig(vocabulary=50, hidden=8, intermediate=16)
    model = weights.draw(config, {"mlm": 0, "nsp": 0, "label": 3, "span": 0}, seed=1)
    at = {param.data_ptr(): name for name, param in model.named_parameters()}
    names = {
        at[tensor.data_ptr()]
        for name, tensor in weights.state(model).items()
        if name.endswith("bias") or "LayerNorm." in name
    }
    decayed, excluded = decay_groups(model, 0.01)
    assert {name for name, _ in excluded["params"]} == names
    assert {name for name, _ in decayed["params"]} == set(at.values()) - names
    assert len(names) == 30


def test_every_parameter_is_in_exactly_one_group_and_tied_ones_count_once() -> None:
    model = hf_model()
    listed = [id(param) for group in decay_groups(model, 0.01) for _, param in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(param) for param in model.parameters()}
    tied = model.cls.predictions.decoder.weight
    assert tied is model.bert.embeddings.word_embeddings.weight
    assert listed.count(id(tied)) == 1


def test_frozen_parameters_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    model[1].requires_grad_(False)
    assert [name for group in decay_groups(model, 0.1) for name, _ in group["params"]] == ["0.weight", "0.bias"]
    with pytest.raises(UsageError, match="no trainable parameter"):
        build(model.requires_grad_(False), OptimConfig())


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_each_learns_and_continues_from_its_state(name: str) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    wanted = inputs @ torch.randn(4, 1)

    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = ((model(inputs) - wanted) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    config = OptimConfig(name=name, lr=0.05)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 1))
    optimizer = build(model, config)
    losses = fit(model, optimizer, 60)
    assert losses[-1] < losses[0] / 2

    other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 1))
    other.load_state_dict(model.state_dict())
    again = build(other, config)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert fit(other, again, 5) == fit(model, optimizer, 5)
    entries = again.state_dict()["state"].values()
    state = {"momentum_buffer"} if name == "lars" else {"step", "exp_avg", "exp_avg_sq"}
    assert all(set(entry) == state for entry in entries)


def test_lambs_settings_arrive() -> None:
    config = OptimConfig(lr=0.3, betas=(0.8, 0.9), eps=1e-5, bias_correction=False, adapt="all", trust=(0.1, 2.0))
    optimizer = build(hf_model(), config)
    assert isinstance(optimizer, Lamb)
    for group in optimizer.param_groups:
        for field in ("lr", "betas", "eps", "bias_correction", "adapt", "trust"):
            assert group[field] == getattr(config, field)


def test_trust_ratios_carry_the_names_of_the_model() -> None:
    model = nn.Linear(3, 2)
    optimizer = build(model, OptimConfig())
    assert isinstance(optimizer, Lamb)
    assert optimizer.trust_ratios() == {}
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    ratios = optimizer.trust_ratios()
    assert set(ratios) == {"weight", "bias"}
    assert ratios["bias"] == 1.0
    assert 0 < ratios["weight"] < 1


def test_an_optimizer_from_outside() -> None:
    optimizer = build(nn.Linear(2, 2), OptimConfig(name=f"{__name__}:sgd", lr=0.5))
    assert isinstance(optimizer, torch.optim.SGD)
    with pytest.raises(UsageError, match="Did you mean 'lamb'"):
        build(nn.Linear(2, 2), OptimConfig(name="lam"))


def sgd(groups: list[dict[str, Any]], config: OptimConfig) -> torch.optim.Optimizer:
    """An optimizer that another package might bring."""
    return torch.optim.SGD(groups, lr=config.lr)


def stable_adamw_by_the_paper(steps: int, lr: float, decay: float) -> list[Any]:
    """Algorithm 2 of Wortsman et al., 2023, tensor by tensor; betas 0.9 and 0.999, eps 1e-6."""
    weights = [np.array(weight) for weight in GOLDEN["inputs"]["W0"]]
    means, squares = [np.zeros_like(weight) for weight in weights], [np.zeros_like(weight) for weight in weights]
    for step in range(1, steps + 1):
        for place, weight in enumerate(weights):
            grad = np.array(GOLDEN["inputs"]["G"][(step - 1) % 4][place]) * (1 + (step - 1) // 4)
            first, second = (beta * (1 - beta ** (step - 1)) / (1 - beta**step) for beta in (0.9, 0.999))
            means[place] = first * means[place] + (1 - first) * grad
            squares[place] = second * squares[place] + (1 - second) * grad**2
            rms = np.sqrt(np.mean(grad**2 / np.maximum(squares[place], 1e-6**2)))
            rate = lr / max(1.0, rms)
            shrunk = weight * (1 - rate * (decay if place == 0 else 0.0))
            weights[place] = shrunk - rate * means[place] / (np.sqrt(squares[place]) + 1e-6)
    return weights


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_stable_adamw_is_that_of_the_paper(decay: float) -> None:
    model = Tensors()
    config = OptimConfig(name="stable_adamw", lr=0.01, eps=1e-6, weight_decay=decay)
    assert worst(trained(build(model, config), model, 20), stable_adamw_by_the_paper(20, 0.01, decay)) <= 1e-12


def test_stable_adamw_limits_the_step_of_a_sudden_gradient() -> None:
    """After many small gradients, one a thousand times larger moves the weight by less than AdamW would."""
    moved = {}
    for name in ("adamw", "stable_adamw"):
        param = nn.Parameter(torch.zeros(4, dtype=torch.float64))
        groups = [{"params": [("weight", param)], "weight_decay": 0.0}]
        optimizer = OPTIMIZERS[name](groups, OptimConfig(name=name, lr=1.0, betas=(0.9, 0.99)))
        for number in range(60):
            param.grad = torch.full((4,), 1e-3 if number < 59 else 1.0, dtype=torch.float64)
            before = param.detach().clone()
            optimizer.step()
        moved[name] = float((param.detach() - before).abs().max())
    assert moved["stable_adamw"] < 0.2 * moved["adamw"]


@pytest.mark.parametrize(
    ("name", "value"), [("lr", -1.0), ("betas", (0.9, 1.0)), ("eps", 0.0), ("weight_decay", float("inf"))]
)
def test_stable_adamw_refuses_an_option_out_of_range(name: str, value: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=f"Invalid {name}"):
        StableAdamW([weight], **{name: value})
    with pytest.raises(ValueError, match=f"Invalid {name}"):
        StableAdamW([{"params": [weight], name: value}])
