"""Blocks by the compiled kernels, compared with torch's functions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from flat import make_batch
from torch import Tensor

from lambert.core.batch import Batch
from lambert.model import packed, post_norm, pre_norm, weights
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.heads import Model
from lambert.native import library
from lambert.ops.reference import Ops

pytestmark = pytest.mark.skipif(library() is None, reason="the compiled kernels are not used on this machine")
BERT = EncoderConfig(
    layers=2, hidden=128, heads=4, intermediate=160, vocabulary=200, positions=256, dropout=0.0, attention_dropout=0.0,
    norm_eps=1e-5, init_range=0.05,
)  # fmt: skip
MODERN = replace(
    BERT, layers=4, segment_types=0, block="modernbert", modern=ModernConfig(window=16, global_every=3)
)  # fmt: skip
BIASED = ModernConfig(window=16, global_every=2, attention_bias=True, mlp_bias=True, norm_bias=True)
CONFIGS = {
    "bert": BERT,
    "bert, tanh": replace(BERT, activation="gelu_tanh"),
    "gte": replace(BERT, block="gte", segment_types=1),
    "gte, tanh": replace(BERT, block="gte", segment_types=1, activation="gelu_tanh"),
    "nomic_bert": replace(BERT, block="nomic_bert", intermediate=192),
    "modernbert": MODERN,
    "modernbert, tanh, biased": replace(MODERN, activation="gelu_tanh", modern=BIASED),
    "eurobert": replace(MODERN, block="eurobert", intermediate=192),
    "eurobert, shared keys": replace(
        MODERN, block="eurobert", intermediate=192, modern=ModernConfig(kv_heads=2, attention_bias=True, mlp_bias=True)
    ),
}
PARTS = (post_norm.PostNormBlock, pre_norm.PreNormEncoder)
LENGTHS = [40, 1, 17, 129, 16, 64]


def build(config: EncoderConfig) -> Model:
    model = weights.fresh(config, {"span": 0}, seed=3).train()
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    return model


def run(model: Model, batch: Batch, *, bfloat16: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """The states after the blocks and the gradients of a weighted sum of them, with the same keys of dropout."""
    model.zero_grad()
    torch.manual_seed(5)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        states_TD = model.encoder(batch)
    slope = torch.randn(states_TD.shape, generator=torch.Generator().manual_seed(1))
    (states_TD.float() * slope).sum().backward()
    return states_TD.detach().float(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def compare(one: tuple[Tensor, dict[str, Tensor]], other: tuple[Tensor, dict[str, Tensor]], share: float) -> None:
    assert (one[0] - other[0]).norm() < share * other[0].norm()
    assert one[1].keys() == other[1].keys()
    least = share / 20 * max(grad.norm() for grad in other[1].values())  # the gradient of the keys' bias is 0
    for name, grad in one[1].items():
        assert (grad - other[1][name]).norm() < 2.5 * share * other[1][name].norm() + least, name


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the blocks that the kernels compute."""
    found: list[int] = []
    for module in (post_norm, pre_norm):

        def counted(*arguments: Any, kept: Callable[..., Any] = module._forward, **settings: Any) -> Any:
            found.append(1)
            return kept(*arguments, **settings)

        monkeypatch.setattr(module, "_forward", counted)
    return found


@pytest.mark.parametrize("name", [*CONFIGS])
def test_states_and_gradients(name: str, used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = build(CONFIGS[name]), make_batch(LENGTHS, 200)
    exact = run(model, batch)
    assert not used
    found = run(model, batch, bfloat16=True)
    assert len(used) == CONFIGS[name].layers
    compare(found, exact, 0.02)
    for part in PARTS:
        monkeypatch.setattr(part, "_uses_kernels", lambda *_: False)
    compare(found, run(model, batch, bfloat16=True), 0.02)


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Computes the same functions of blocks with torch's operations, in float64."""

    def switch() -> None:
        oracle = Ops()
        for module in (post_norm, pre_norm, packed):
            monkeypatch.setattr(module, "OPS", oracle)
        for module in (post_norm, pre_norm):
            monkeypatch.setattr(module, "pack", lambda weight, bias, compute: oracle.pack(weight, bias, torch.float64))
        for part in PARTS:
            monkeypatch.setattr(part, "_uses_kernels", lambda *_: True)
        monkeypatch.setattr(Tensor, "bfloat16", lambda self: self)

    return switch


@pytest.mark.parametrize("name", [*CONFIGS])
def test_the_backward_pass_is_the_derivative(name: str, with_torch: Callable[[], None]) -> None:
    """With torch's operations in float64, the block's own backward pass is that of autograd."""
    model, batch = build(CONFIGS[name]).double(), make_batch(LENGTHS, 200)
    expected = run(model, batch)
    with_torch()
    compare(run(model, batch), expected, 1e-6)  # angles are float32


@pytest.mark.parametrize("name", ["bert", "gte", "nomic_bert", "modernbert", "eurobert"])
def test_dropout(name: str, used: list[int], with_torch: Callable[[], None]) -> None:
    """The kernels drop the elements that the reference drops, in both passes."""
    model, batch = build(replace(CONFIGS[name], dropout=0.2, attention_dropout=0.1)), make_batch(LENGTHS, 200)
    model.encoder.config = CONFIGS[name]  # nothing of the embeddings is dropped: they have other keys in float32
    found = run(model, batch, bfloat16=True)
    assert len(used) == CONFIGS[name].layers
    model.double()
    with_torch()
    compare(found, run(model, batch), 0.02)


def test_sizes_that_the_kernels_lack(used: list[int]) -> None:
    lacking = {
        "bert": {"heads": 16},
        "gte": {"heads": 8},
        "nomic_bert": {"intermediate": 160},
        "modernbert": {"heads": 8},
    }
    lacking["eurobert"] = {"modern": ModernConfig(kv_heads=1)}
    for name, settings in lacking.items():
        run(build(replace(CONFIGS[name], **settings)), make_batch([5, 9], 200), bfloat16=True)
    assert not used
