"""Blocks by the compiled kernels, compared with torch's functions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import relu_squared
import torch
from blocks import CONFIGS, LENGTHS, build, compare, run
from flat import make_batch

from lambert.model import post_norm, pre_norm
from lambert.model.block import Block
from lambert.model.config import ModernConfig
from lambert.native import library
from lambert.ops.reference import Ops

pytestmark = [
    pytest.mark.skipif(library() is None, reason="the compiled kernels are not used on this machine"),
    pytest.mark.usefixtures("instructions"),
]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the blocks that the kernels compute."""
    found: list[int] = []
    for module in (post_norm, pre_norm, relu_squared):

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
    monkeypatch.setattr(Block, "choose_ops", lambda *_: None)
    compare(found, run(model, batch, bfloat16=True), 0.02)


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Computes the same functions of blocks with torch's operations, in float64."""

    return lambda: monkeypatch.setattr(Block, "choose_ops", lambda *_: Ops(torch.float64))


@pytest.mark.parametrize("name", [*CONFIGS])
def test_the_backward_pass_is_the_derivative(name: str, with_torch: Callable[[], None]) -> None:
    """With torch's operations in float64, the block's own backward pass is that of autograd."""
    model, batch = build(CONFIGS[name]).double(), make_batch(LENGTHS, 200)
    expected = run(model, batch)
    with_torch()
    compare(run(model, batch), expected, 1e-6)  # angles are float32


@pytest.mark.parametrize("name", ["bert", "gte", "nomic_bert", "modernbert", "eurobert", "from outside"])
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
