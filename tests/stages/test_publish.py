"""A model folder appears whole and verified, or not at all."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lambert.core.errors import DataError
from lambert.corpus import tokenizer as tokenizers
from lambert.model import weights
from lambert.model.heads import Model
from lambert.stages import publish as module
from lambert.stages.publish import publish


@pytest.fixture
def model(pretrained: Path) -> Model:
    return weights.load(pretrained / "model")


@pytest.fixture
def tokenizer(pretrained: Path) -> Any:
    return tokenizers.load(pretrained / "model")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_it_replaces_what_was_there(model: Model, tokenizer: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").touch()
    said = publish(model, tokenizer, folder, {"lambert": {"note": 1}}, "# card\n")
    assert "bit for bit" in said
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
    assert not (folder / "old").exists()
    assert (folder / "README.md").read_text() == "# card\n"
    assert '"note": 1' in (folder / "config.json").read_text()


def bent(function: Callable[..., Any]) -> Callable[..., Any]:
    """What reads the folder back, with one weight changed on the way."""

    def load(*arguments: Any, **settings: Any) -> Any:
        found = function(*arguments, **settings)
        with torch.no_grad():
            found.encoder.words.weight[7] += 1e-6
        return found

    return load


def test_a_changed_weight_is_noticed(
    model: Model, tokenizer: Any, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(pretrained / "model", tmp_path / "model")
    before = contents(tmp_path / "model")
    monkeypatch.setattr(module.weights, "load", bent(weights.load))
    with pytest.raises(DataError, match="nothing was written"):
        publish(model, tokenizer, tmp_path / "model", {})
    assert contents(tmp_path / "model") == before
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_an_encoder_without_heads_is_verified_by_its_states(
    tokenizer: Any, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = weights.load(pretrained / "model", {})
    assert "largest difference from transformers" in publish(bare, tokenizer, tmp_path / "one", {}, compare=True)
    original = weights.load

    def turned(*arguments: Any, **settings: Any) -> Model:
        found = original(pretrained / "model", {})
        with torch.no_grad():
            found.encoder.norm.bias[0] += 1e-3
        return found

    monkeypatch.setattr(module.weights, "load", turned)
    with pytest.raises(DataError, match="'states' changed"):
        publish(bare, tokenizer, tmp_path / "two", {})
    assert {path.name for path in tmp_path.iterdir()} == {"one"}


def test_another_result_of_transformers_is_noticed(
    model: Model, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BertForPreTraining

    original = BertForPreTraining.from_pretrained
    wrong = bent(lambda *arguments, **settings: _with_encoder(original(*arguments, **settings)))
    monkeypatch.setattr(BertForPreTraining, "from_pretrained", wrong)
    publish(model, tokenizer, tmp_path / "close", {}, compare=True)  # a millionth is rounding
    monkeypatch.setattr(module, "TOLERANCE", 1e-9)
    with pytest.raises(DataError, match="transformers computes other logits"):
        publish(model, tokenizer, tmp_path / "model", {}, compare=True)
    assert {path.name for path in tmp_path.iterdir()} == {"close"}


def _with_encoder(net: Any) -> Any:
    net.encoder = type("Names", (), {"words": net.bert.embeddings.word_embeddings})
    return net
