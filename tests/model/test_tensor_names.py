"""Tables of names give the names of tensors on disk, and recognise those of older files."""

import dataclasses

import pytest
import torch

from lambert.model.config import EncoderConfig
from lambert.model.families import FAMILIES
from lambert.model.heads import build_model
from lambert.model.tensor_names import TensorNames

NAMES = TensorNames(
    prefix="net.",
    former="old.",
    encoder={"words": "embed.table", "norm": "scale"},
    layers="stack.",
    block={"norm": "ln", "norms.2": "ln2", "up": "ffn.in"},
    pooler="net.pool",
    heads={"mlm.bias": "out.bias", "label.dense": "score.first"},
    decoder="out",
)


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("encoder.words.weight", "net.embed.table.weight"),
        ("encoder.norm.weight", "net.scale.weight"),
        ("encoder.blocks.12.norm.bias", "net.stack.12.ln.bias"),
        ("encoder.blocks.0.norms.2.weight", "net.stack.0.ln2.weight"),
        ("encoder.blocks.3.upper.weight", "net.encoder.blocks.3.upper.weight"),
        ("encoder.other", "net.encoder.other"),
        ("pooler.weight", "net.pool.weight"),
        ("heads.mlm.bias", "out.bias"),
        ("heads.mlm.biases", "heads.mlm.biases"),
        ("heads.multilabel.dense.weight", "score.first.weight"),
        ("heads.value.classifier.bias", "classifier.bias"),
        ("heads.span.classifier.bias", "qa_outputs.bias"),
        ("heads.mine.weight", "heads.mine.weight"),
    ],
)
def test_names_in_a_folder(name: str, stored: str) -> None:
    assert NAMES.to_folder(name) == stored


@pytest.mark.parametrize(
    ("name", "current"),
    [
        ("net.embed.table.weight", "net.embed.table.weight"),
        ("embed.table.weight", "net.embed.table.weight"),
        ("old.stack.1.ln.weight", "net.stack.1.ln.weight"),
        ("stack.1.LayerNorm.gamma", "net.stack.1.LayerNorm.weight"),
        ("stack.1.LayerNorm.beta", "net.stack.1.LayerNorm.bias"),
        ("pool.weight", "net.pool.weight"),
        ("out.bias", "out.bias"),
        ("optimizer.step", "optimizer.step"),
        ("net.embeddings.position_ids", ""),
        ("net.stack.0.rotary_emb.inv_freq", ""),
    ],
)
def test_names_in_older_files(name: str, current: str) -> None:
    assert NAMES.current(name) == current


def test_copies_of_tied_tensors() -> None:
    assert NAMES.tied == {"out.weight": "net.embed.table.weight"}  # the bias of the decoder is that of the head
    assert dataclasses.replace(NAMES, decoder="lm").tied == {
        "lm.weight": "net.embed.table.weight",
        "lm.bias": "out.bias",
    }
    assert dataclasses.replace(NAMES, decoder="").tied == {}


@pytest.mark.parametrize("block", FAMILIES)
@pytest.mark.parametrize("head", ["mlm", "label", "tag", "span", "choice"])
def test_every_parameter_has_a_name_of_its_own(block: str, head: str) -> None:
    family = FAMILIES[block]
    shape = EncoderConfig(vocabulary=90, hidden=32, intermediate=48, positions=40, block=block, pad=1)
    with torch.device("meta"):
        model = build_model(family.complete(shape), {head: 3 if head in ("label", "tag") else 0}, pooler=False)
    names = [family.names.to_folder(name) for name, _ in model.named_parameters()]
    assert len(names) == len({*names})
    assert not [name for name in names if name.startswith(("encoder.", "heads.")) or ".encoder.blocks." in name]
    assert [family.names.current(name) for name in names] == names
    inside = [name for name in names if name.startswith(family.names.prefix)]
    assert [family.names.current(name.removeprefix(family.names.prefix)) for name in inside] == inside
