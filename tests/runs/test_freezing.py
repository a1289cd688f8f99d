"""Frozen layers: what is trained, that its gradients are those of the whole model, and whole runs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import one_line
from safetensors.torch import load_file

from lambert.core.batch import Target, flat_batch
from lambert.core.errors import UsageError
from lambert.engine.exchange import Exchange
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.heads import Model
from lambert.optim.config import OptimConfig
from lambert.optim.optimizers import build
from lambert.planning import operations
from lambert.runs.run import freeze, frozen_blocks

Lambert = Callable[..., Any]
SHAPE = EncoderConfig(vocabulary=50, hidden=8, heads=2, layers=3, intermediate=16, dropout=0.0, attention_dropout=0.0)


def fresh() -> Model:
    return weights.draw(SHAPE, {"label": 3}, seed=1)


def trained(model: Model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_what_is_frozen() -> None:
    names = trained(fresh())
    inside = {name for name in names if name.startswith("encoder.")}
    blocks = {name for name in inside if name.startswith("encoder.blocks.")}
    lower = {name for name in blocks if name.startswith(("encoder.blocks.0.", "encoder.blocks.1."))}
    cases: dict[Any, set[str]] = {
        0: names, "embeddings": names - (inside - blocks), 2: names - (inside - blocks) - lower,
        3: names - inside, "encoder": names - inside,
    }  # fmt: skip
    for what, left in cases.items():
        model = fresh()
        line = freeze(model, what)
        assert trained(model) == left
        weights_left = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert (f"{weights_left:,} of {sum(p.numel() for p in model.parameters()):,} weights" in line) == (what != 0)
        assert frozen_blocks(model) == {0: 0, "embeddings": 0, 2: 2, 3: 3, "encoder": 3}[what]
    assert any(name.startswith("pooler.") for name in cases["encoder"])
    with pytest.raises(UsageError, match=r"train.freeze = 4, but the encoder has 3 blocks: use at most 3"):
        freeze(fresh(), 4)


def batch() -> Any:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 50, (12,), generator=generator).numpy()
    target = Target(torch.arange(2), torch.tensor([0, 2]))
    return flat_batch(ids, ids * 0, torch.tensor([7, 5]).numpy(), {"label": target})


@pytest.mark.parametrize("what", ["embeddings", 2, "encoder"])
def test_gradients_are_those_of_the_whole_model(what: Any) -> None:
    """And the gradient buffer, the moments and the graph hold nothing of what is frozen."""
    whole, part = fresh(), fresh()
    freeze(part, what)
    exchanges = [Exchange(model) for model in (whole, part)]
    for model, exchange in zip((whole, part), exchanges, strict=True):
        exchange.gradients.clear()
        model(batch()).sum().backward()
        exchange.finish()
    expected = dict(zip(exchanges[0].gradients.names, exchanges[0].gradients.views, strict=True))
    found = dict(zip(exchanges[1].gradients.names, exchanges[1].gradients.views, strict=True))
    assert set(found) == trained(part)
    assert all(torch.allclose(grad, expected[name], atol=1e-7) for name, grad in found.items())
    optimizer = build(part, OptimConfig(name="adamw"))
    optimizer.step()
    names = {id(parameter): name for name, parameter in part.named_parameters()}
    assert {names[id(parameter)] for parameter in optimizer.state} == trained(part)
    states_TD = part.encoder.embed(batch())
    for number, block in enumerate(part.encoder.blocks if what != "encoder" else ()):
        assert states_TD.requires_grad == (number > (what if isinstance(what, int) else 0))
        states_TD = block(states_TD, batch())
    assert states_TD.requires_grad == (what != "encoder")


def test_operations_of_frozen_blocks() -> None:
    """A frozen block has a forward pass only, a third of the operations."""
    none, some, every = (operations.count_training(SHAPE, [7, 5], {}, frozen=frozen) for frozen in (0, 1, 3))
    assert none == 3 * every
    assert some == none - 2 * every // 3


def test_a_run_leaves_frozen_weights_as_they_were(
    pretrained: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    flags = {"init": pretrained, "data": labelled("classify", "train"), "train__steps": 4, "train__threads": 1}
    flags |= {"train__batch_size": 8, "train__save_every": 2, "task__max_length": 64, "optim__layer_decay": 0.9}
    out = tmp_path / "run"
    done = lambert("finetune", out=out, **flags, train__freeze="embeddings")
    assert done.code == 0, done.err
    assert "the embeddings are frozen" in done.out
    before = load_file(pretrained / "model" / "model.safetensors")
    after = load_file(out / "model" / "model.safetensors")
    shared = [name for name in after if name in before]
    for name in shared:
        assert torch.equal(before[name], after[name]) == (".embeddings." in name), name
    moments = load_file(out / "checkpoints" / "step-000004" / "optimizer.safetensors")
    assert moments
    assert not [name for name in moments if "encoder.words" in name or "encoder.norm" in name]
    shutil.rmtree(out / "model")
    shutil.rmtree(out / "checkpoints" / "step-000004")
    assert lambert("finetune", out=out, **flags, train__freeze="embeddings").code == 0
    again = load_file(out / "model" / "model.safetensors")
    assert all(torch.equal(after[name], again[name]) for name in after)
    one_line(lambert("finetune", out=out, **flags, train__freeze=1), 2, "train.freeze embeddings -> 1")
    one_line(lambert("finetune", out=tmp_path / "x", **flags, train__freeze=2), 2, "use at most 1")


def test_a_run_of_an_older_version_continues(
    pretrained: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    """Its config.toml lacks the settings that are new."""
    out = tmp_path / "run"
    flags = {"init": pretrained, "data": labelled("classify", "train"), "out": out, "train__steps": 1}
    assert lambert("finetune", **flags).code == 0
    config = (out / "config.toml").read_text()
    new = ("freeze = 0", 'keep_best = ""', "patience = 0", "layer_decay = 1.0")
    kept = [line for line in config.splitlines(keepends=True) if not line.startswith(new)]
    assert len(config.splitlines()) == len(kept) + len(new)
    (out / "config.toml").write_text("".join(kept))
    state = out / "checkpoints" / "step-000001" / "state.json"
    assert "best" in json.loads(state.read_text())["extra"]
    again = lambert("finetune", **flags)
    assert "has all its 1 updates already" in again.out, again.err
    one_line(lambert("finetune", **flags, optim__layer_decay=0.5), 2, "optim.layer_decay 1.0 -> 0.5")
