"""Google's checkpoints: what is read is what was written, bit for bit, and what cannot be read is one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow_checkpoints as written
import torch
from commands import one_line
from safetensors.torch import load_file

Lambert = Callable[..., Any]
SLOTS = {
    "global_step": torch.tensor(8),
    "beta1_power": torch.tensor(0.5),
    "bert/embeddings/word_embeddings/adam_m": torch.zeros(3),
    "bert/encoder/layer_0/output/dense/kernel/adam_v": torch.full((2,), float("nan")),
}


def imported(lambert: Lambert, source: Path, out: Path, *flags: str) -> Any:
    done = lambert("import", "--from", source, *flags, out=out)
    assert done.code == 0, done.err
    assert "reads back bit for bit; largest difference from transformers" in done.out
    return done


@pytest.mark.parametrize("kind", ["pretrained", "classify", "regress", "squad"])
@pytest.mark.parametrize("options", [{}, {"shards": 3, "per_block": 4, "snappy": True}])
def test_every_weight_comes_back(
    kind: str, options: dict[str, Any], pretrained: Path, tuned: Callable[[str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    model = (pretrained if kind == "pretrained" else tuned(kind)) / "model"
    written.google_folder(model, tmp_path / "google", more=SLOTS, **options)
    done = imported(lambert, tmp_path / "google", tmp_path / "out")
    assert "ignored" not in done.out
    assert "fresh" not in done.out
    expected, found = load_file(model / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert expected.keys() == found.keys()
    assert all(expected[name].equal(found[name]) for name in expected)
    theirs, ours = (json.loads((folder / "config.json").read_text()) for folder in (model, tmp_path / "out"))
    for key in ("architectures", "num_hidden_layers", "layer_norm_eps", "hidden_act"):
        assert theirs[key] == ours[key]
    assert ours.get("problem_type") == ("regression" if kind == "regress" else None)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == (model / "tokenizer.json").read_text()


def test_an_imported_classifier_predicts_the_same(
    tuned: Callable[[str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    """Without the names of its labels, which a checkpoint does not have."""
    model = tuned("classify") / "model"
    imported(lambert, written.google_folder(model, tmp_path / "google"), tmp_path / "out")
    text = '{"text": "the king found a river near the old road"}\n'
    theirs, ours = (lambert("predict", model=folder, stdin=text) for folder in (model, tmp_path / "out"))
    assert (theirs.code, ours.code) == (0, 0), ours.err
    names = json.loads((model / "config.json").read_text())["id2label"]
    expected, found = json.loads(theirs.out), json.loads(ours.out)
    assert names[found["label"].removeprefix("LABEL_")] == expected["label"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_become_float32(dtype: torch.dtype, pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    source = written.google_folder(pretrained / "model", tmp_path / "google")
    tensors = {name: tensor.to(dtype) for name, tensor in written.google_tensors(pretrained / "model").items()}
    written.write(source / "bert_model.ckpt", tensors)
    imported(lambert, source, tmp_path / "out")
    expected, found = (
        load_file(pretrained / "model" / "model.safetensors"),
        load_file(tmp_path / "out/model.safetensors"),
    )
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        assert tensor.equal(expected[name].to(dtype).float())


@pytest.mark.parametrize("name", ["model.ckpt-20", "model.ckpt-20.index", "model.ckpt-20.data-00000-of-00001"])
def test_one_of_several_checkpoints(name: str, pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    source = written.google_folder(pretrained / "model", tmp_path / "google", "model.ckpt-20")
    written.write(source / "model.ckpt-10", {"a": torch.zeros(1)})
    one_line(
        lambert("import", "--from", source, out=tmp_path / "out"), 2, "2 checkpoints: model.ckpt-10, model.ckpt-20."
    )
    imported(lambert, source / name, tmp_path / "out")


def test_other_variables_are_named(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    more = {"crf_loss/transitions": torch.zeros(2, 2), "cls/other/kernel": torch.zeros(2, 2)}
    source = written.google_folder(pretrained / "model", tmp_path / "google", more=more)
    done = imported(lambert, source, tmp_path / "out")
    assert "ignored: cls.other.weight, crf_loss/transitions" in done.out


@pytest.mark.parametrize(
    ("folder", "flags", "lowercase"),
    [
        ("uncased_L-2_H-32", (), True),
        ("mine", (), True),
        ("cased_L-2_H-32", ("--lowercase",), True),
        ("mine", ("--no-lowercase",), False),
        ("multi_cased_L-2_H-32", (), None),
    ],
)
def test_lower_case(
    folder: str, flags: tuple[str, ...], lowercase: bool | None, pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    """The vocabulary of the fixture has no capitals."""
    source = written.google_folder(pretrained / "model", tmp_path / folder)
    if lowercase is None:
        refused = lambert("import", "--from", source, *flags, out=tmp_path / "out")
        one_line(refused, 2, "has no pieces with capitals", "its folder says cased. Set --lowercase or --no-lowercase")
        assert not (tmp_path / "out").exists()
        (source / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    imported(lambert, source, tmp_path / "out", *flags)
    saved = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert saved["do_lower_case"] == bool(lowercase)


# --- refused ---


def renamed(**changes: str) -> Callable[[Path], None]:
    """Replaces the beginnings of names."""

    def damage(source: Path) -> None:
        tensors = {}
        for name, tensor in written.google_tensors(source.parent / "model").items():
            begins = next((old for old in changes if name.startswith(old.replace("__", "/"))), None)
            new = name if begins is None else changes[begins] + name[len(begins.replace("__", "/")) :]
            tensors[new] = tensor
        written.write(source / "bert_model.ckpt", tensors)

    return damage


def with_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def damage(source: Path) -> None:
        tensors = written.google_tensors(source.parent / "model")
        written.write(source / "bert_model.ckpt", tensors | {name: change(tensors[name])})

    return damage


def without(part: str) -> Callable[[Path], None]:
    return lambda source: next(source.glob(f"*{part}*")).unlink()


def with_key(key: str, value: object) -> Callable[[Path], None]:
    def damage(source: Path) -> None:
        path = source / "bert_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return damage


def cut(part: str) -> Callable[[Path], None]:
    def damage(source: Path) -> None:
        path = next(source.glob(f"*{part}*"))
        path.write_bytes(path.read_bytes()[:-20])

    return damage


def flipped(source: Path) -> None:
    path = source / "bert_model.ckpt.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def objects(source: Path) -> None:
    name = "model/layer_with_weights-0/embeddings/.ATTRIBUTES/VARIABLE_VALUE"
    written.write(source / "bert_model.ckpt", {"_CHECKPOINTABLE_OBJECT_GRAPH": torch.zeros(1), name: torch.zeros(2, 2)})


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[0, 0] = float("nan")
    return tensor


QUERY = "bert/encoder/layer_0/attention/self/query/kernel"


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (cut(".index"), ["bert_model.ckpt.index", "cut short"]),
        (cut(".data"), ["bert_model.ckpt.data-00000-of-00001", "cut short"]),
        (flipped, ["bert_model.ckpt.data-00000-of-00001 is damaged", "does not have the CRC-32C"]),
        (without(".data"), ["bert_model.ckpt.data-00000-of-00001 is missing", "Fetch all files"]),
        (without(".index"), ["bert_model.ckpt.index is missing", "Fetch all files"]),
        (without("bert_config"), ["no config.json or bert_config.json"]),
        (without("vocab"), ["No tokenizer", "vocab.txt"]),
        (objects, ["bert_model.ckpt.index is a checkpoint of the objects of TensorFlow 2"]),
        (renamed(bert__encoder__layer_0="bert/encoder/transformer/group_0/inner_group_0"), ["of ALBERT"]),
        (renamed(bert="electra"), ["of ELECTRA"]),
        (renamed(bert="tower"), ["without bert/embeddings/word_embeddings", "cls/predictions/output_bias"]),
        (renamed(bert__encoder__layer_0__output="bert/encoder/layer_0/other"), ["lacks bert.encoder.layer.0.output"]),
        (with_key("hidden_size", 64), ["word_embeddings", "32]", "64]"]),
        (with_key("intermediate_size", 48), ["intermediate.dense.weight", "[64, 32]", "[48, 32]"]),
        (with_key("num_hidden_layers", 2), ["lacks bert.encoder.layer.1"]),
        (with_key("vocab_size", 90), ["word_embeddings", "[90, 32] in the model"]),
        (with_tensor(QUERY, with_nan), ["query.weight are NaN or infinite"]),
        (with_tensor(QUERY, torch.Tensor.double), [f"{QUERY} is of float64; only float32"]),
    ],
)
def test_checkpoints_that_cannot_be_read(
    damage: Callable[[Path], object], parts: list[str], pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    shutil.copytree(pretrained / "model", tmp_path / "model")
    source = written.google_folder(tmp_path / "model", tmp_path / "google")
    damage(source)
    one_line(lambert("import", "--from", source, out=tmp_path / "out"), 3, *parts)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "google"}


def test_more_layers_than_bert_config_says(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    more = {"bert/encoder/layer_1/output/dense/kernel": torch.zeros(2, 2)}
    source = written.google_folder(pretrained / "model", tmp_path / "google", more=more)
    refused = lambert("import", "--from", source, out=tmp_path / "out")
    one_line(
        refused, 3, "holds bert.encoder.layer.1.output.dense.weight", "bert_config.json describes a model without it"
    )


def test_other_verbs_say_how_to_convert(
    corpus: Path, pretrained: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    source, out = written.google_folder(pretrained / "model", tmp_path / "google"), tmp_path / "out"
    parts = ["is a TensorFlow checkpoint. Convert it first: lambert import --from ", "--out FOLDER"]
    for init in (source, source / "bert_model.ckpt"):
        one_line(lambert("finetune", init=init, data=labelled("classify", "train"), out=out), 3, str(init), *parts)
    one_line(lambert("pretrain", init=source, corpus=corpus, out=out, train__steps=1), 3, *parts)
    one_line(lambert("predict", model=source, stdin='{"text": "a"}\n'), 3, *parts)
    one_line(lambert("export", model=source, out=out), 3, *parts)
    assert not out.exists()
