"""Weights of half the size, and folders of sentence-transformers that give equal vectors."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from exported import cases, saved
from safetensors.torch import load_file

from lambert.inference.text_model import load
from lambert.wings.convert.sample import TEXTS


@pytest.mark.parametrize(("kind", "head"), cases(("bert", "label"), ("modernbert", "mlm"), ("distilbert", "vector")))
def test_weights_of_half_the_size(kind: str, head: str, tmp_path: Path, lambert: object) -> None:
    model, out = saved(kind, head, tmp_path / "model"), tmp_path / "out"
    done = lambert("export", model=model, out=out, precision="bfloat16")  # type: ignore[operator]
    assert done.code == 0, done.err
    assert "rounding to bfloat16 changes outputs by at most" in done.out
    before, after = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(tensor.to(torch.bfloat16).equal(after[name]) for name, tensor in before.items())
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    assert f'base_model: "{tmp_path.name}"\n' in (out / "README.md").read_text()


def test_transformers_reads_half_the_size(tmp_path: Path, lambert: object) -> None:
    from transformers import AutoModelForSequenceClassification

    model, out = saved("bert", "label", tmp_path / "model"), tmp_path / "out"
    assert lambert("export", model=model, out=out, precision="bfloat16").code == 0  # type: ignore[operator]
    nets = [AutoModelForSequenceClassification.from_pretrained(at, dtype=torch.float32).eval() for at in (model, out)]
    with torch.inference_mode():
        first, second = (net(torch.tensor([[2, 9, 11, 30, 3]])).logits for net in nets)
    assert 0 < float((first - second).abs().max()) < 0.02


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "head"), [("bert", "vector"), ("modernbert", "first_vector"), ("gte", "vector")])
def test_equal_vectors(kind: str, head: str, precision: str, tmp_path: Path, lambert: object) -> None:
    from sentence_transformers import SentenceTransformer

    model, out = saved(kind, head, tmp_path / "model"), tmp_path / "out"
    done = lambert("export", model=model, out=out, format="sentence-transformers", precision=precision)  # type: ignore[operator]
    assert done.code == 0, done.err
    assert "largest difference from sentence-transformers" in done.out
    assert done.err == ""
    net = SentenceTransformer(str(out), device="cpu", model_kwargs={"dtype": "float32"})
    wanted = load(model).encode([*TEXTS])
    np.testing.assert_allclose(net.encode([*TEXTS]), wanted, atol=1e-5 if precision == "float32" else 0.05)
    old = json.loads((out / "1_Pooling" / "config.json").read_text())  # text-embeddings-inference reads these keys
    assert old["pooling_mode_cls_token"] == (head == "first_vector")
    assert json.loads((out / "sentence_bert_config.json").read_text())["max_seq_length"] == 64


@pytest.mark.parametrize("side", ["right", "left"])
def test_texts_longer_than_the_sample_are_cut_alike(
    side: str, tmp_path: Path, lambert: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sample", "hugging_face"):
        monkeypatch.setattr(f"lambert.wings.convert.{module}.LONGEST", 20)
    model = saved("bert", "vector", tmp_path / "model")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": side}))
    done = lambert("export", model=model, out=tmp_path / "out", format="sentence-transformers")  # type: ignore[operator]
    assert done.code == 0, done.err


def test_a_model_without_vectors_is_refused(tmp_path: Path, lambert: object) -> None:
    model = saved("bert", "label", tmp_path / "model")
    done = lambert("export", model=model, out=tmp_path / "out", format="sentence-transformers")  # type: ignore[operator]
    assert done.code == 2
    assert "is not a model of vectors" in done.err
    assert not (tmp_path / "out").exists()
