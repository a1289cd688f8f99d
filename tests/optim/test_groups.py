"""Learning rates by depth, against one optimizer for each parameter whose rate is computed by hand."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from lambert.core.errors import UsageError
from lambert.engine import state
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model
from lambert.optim.config import OptimConfig
from lambert.optim.groups import decay_groups
from lambert.optim.lamb import Lamb
from lambert.optim.optimizers import build

DECAY, LR = 0.7, 0.01
SHAPE = EncoderConfig(vocabulary=50, hidden=8, heads=2, layers=3, intermediate=16)


def fresh() -> Model:
    return weights.draw(SHAPE, {"label": 3, "span": 0}, seed=1)


def exponent(name: str, layers: int) -> int:
    """The rule of Howard and Ruder: each layer has the rate of the one above times the factor."""
    block = re.search(r"(?:blocks|layer)\.(\d+)\.", name)
    if block:
        return layers - int(block[1])
    return layers + 1 if name.startswith("encoder.") or "embeddings" in name else 0


def factors(model: nn.Module) -> dict[str, float]:
    return {
        name: group["lr_scale"] for group in decay_groups(model, 0.01, DECAY) for name, _ in group["params"]
    }  # fmt: skip


def test_the_factor_of_every_parameter() -> None:
    model = fresh()
    assert factors(model) == {name: DECAY ** exponent(name, 3) for name, _ in model.named_parameters()}
    found = factors(model)
    assert found["encoder.words.weight"] == found["encoder.norm.bias"] == DECAY**4
    assert found["encoder.blocks.2.up.weight"] == DECAY
    assert {scale for name, scale in found.items() if not name.startswith("encoder.")} == {1.0}
    theirs = BertForSequenceClassification(
        BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=11, num_attention_heads=2, intermediate_size=16)
    )
    assert factors(theirs) == {name: DECAY ** exponent(name, 11) for name, _ in theirs.named_parameters()}


def test_every_parameter_is_in_one_group_and_vectors_are_not_decayed() -> None:
    model = fresh()
    groups = decay_groups(model, 0.01, DECAY)
    listed = [param for group in groups for _, param in group["params"]]
    assert len(listed) == len(set(listed)) == len([*model.parameters()])
    for group in groups:
        assert {param.ndim > 1 for _, param in group["params"]} == {group["weight_decay"] > 0}
    model.encoder.words.requires_grad_(False)
    assert "encoder.words.weight" not in factors(model)
    assert factors(model)["encoder.positions.weight"] == DECAY**4, "the depth does not depend on what is frozen"


def test_a_model_without_blocks() -> None:
    assert len(decay_groups(nn.Linear(2, 2))) == 2
    with pytest.raises(UsageError, match="needs a model with numbered blocks"):
        decay_groups(nn.Linear(2, 2), layer_decay=0.5)
    with pytest.raises(UsageError, match=r"optim.layer_decay = 1.5 must be above 0 and at most 1"):
        OptimConfig(layer_decay=1.5)


def stepped(optimizer: torch.optim.Optimizer, model: nn.Module, steps: range) -> None:
    """Steps with random gradients; the rate of the loop is LR."""
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        for param in model.parameters():
            param.grad = torch.randn(param.shape, generator=draw)
        for group in optimizer.param_groups:
            group["lr"] = LR * group.get("lr_scale", 1.0)
        optimizer.step()


def alone(name: str, rate: float, param: nn.Parameter) -> torch.optim.Optimizer:
    decay, matrix = (0.01, True) if param.ndim > 1 else (0.0, False)
    if name == "lamb":
        return Lamb([param], lr=rate, weight_decay=decay, adapt="all" if matrix else "none", fused=False)
    if name == "adamw":
        return torch.optim.AdamW([param], lr=rate, eps=1e-6, weight_decay=decay, foreach=False)
    return torch.optim.RAdam([param], lr=rate, eps=1e-6, weight_decay=decay, decoupled_weight_decay=True)


@pytest.mark.parametrize("name", ["lamb", "adamw", "radam"])
def test_equals_one_optimizer_for_each_parameter(name: str) -> None:
    ours, theirs = fresh(), fresh()
    stepped(build(ours, OptimConfig(name=name, layer_decay=DECAY)), ours, range(7))
    for number, (key, param) in enumerate(theirs.named_parameters()):
        optimizer = alone(name, LR * DECAY ** exponent(key, 3), param)
        for step in range(7):
            draw = torch.Generator().manual_seed(step)
            grads = [torch.randn(p.shape, generator=draw) for p in theirs.parameters()]
            param.grad = grads[number]
            optimizer.step()
    for (key, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6), key


def test_the_state_continues_to_the_bit() -> None:
    config = OptimConfig(name="adamw", layer_decay=DECAY)
    whole, first, second = fresh(), fresh(), fresh()
    stepped(build(whole, config), whole, range(6))
    optimizer = build(first, config)
    stepped(optimizer, first, range(3))
    arrays, described = state.moments(optimizer, first)
    second.load_state_dict(first.state_dict())
    again = build(second, config)
    state.restore(again, second, arrays, json.loads(json.dumps(described)), source="here")
    stepped(again, second, range(3, 6))
    assert all(torch.equal(*pair) for pair in zip(whole.parameters(), second.parameters(), strict=True))
    with pytest.raises(UsageError, match="groups of parameters"):
        state.restore(build(second, OptimConfig(name="adamw")), second, arrays, described, source="here")


def test_a_run_moves_each_layer_by_its_share(
    pretrained: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Callable[..., Any]
) -> None:
    """In the first update the gradients are equal, so the steps are as the rates."""
    flags = {"init": pretrained, "data": labelled("classify", "train"), "train__steps": 1, "train__threads": 1}
    flags |= {"optim__lr": 0.5, "optim__warmup_ratio": 0, "train__batch_size": 8, "task__max_length": 64}
    found = {}
    for name, more in (
        ("still", {"optim__lr": 1e-30}), ("plain", {}), ("decayed", {"optim__layer_decay": 0.25})
    ):  # fmt: skip
        done = lambert("finetune", out=tmp_path / name, **flags | more)
        assert done.code == 0, done.err
        found[name] = load_file(tmp_path / name / "checkpoints" / "step-000001" / "model.safetensors")
    for name, start in found["still"].items():
        plain, decayed = found["plain"][name] - start, found["decayed"][name] - start
        assert plain.abs().max() > 0.1 or name.endswith("key.bias"), name  # its gradient is 0
        assert torch.allclose(decayed, plain * 0.25 ** exponent(name, 1), atol=1e-5), name
