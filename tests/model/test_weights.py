"""Model folders: round trips with Hugging Face, older formats, and what is refused."""

import errno
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import scipy.stats
import torch
import transformers
from flat import make_batch, padded

from lambert.core.errors import DataError, MachineError, UsageError
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.families import family_of
from lambert.model.folder import model_folder, read_config
from lambert.model.heads import Model

CONFIG = EncoderConfig(vocabulary=90, hidden=32, intermediate=48, positions=40)
KINDS = {
    "BertForPreTraining": {"mlm": 0, "nsp": 0},
    "BertForMaskedLM": {"mlm": 0},
    "BertForNextSentencePrediction": {"nsp": 0},
    "BertForSequenceClassification": {"label": 3},
    "BertForTokenClassification": {"tag": 4},
    "BertForQuestionAnswering": {"span": 0},
}


def scattered(heads: dict[str, int], config: EncoderConfig = CONFIG) -> Model:
    """A model whose biases and norms are not at their initial values."""
    model = weights.draw(config, heads, seed=1)
    draw = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=draw)
    return model.eval()


def equal(one: Model, two: Model) -> bool:
    mine, yours = one.state_dict(), two.state_dict()
    return mine.keys() == yours.keys() and all(torch.equal(mine[name], yours[name]) for name in mine)


def settings(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def change(folder: Path, **keys: object) -> None:
    """Other settings in a folder's config.json; None takes one away."""
    merged = settings(folder) | keys
    kept = {name: value for name, value in merged.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    weights.save(scattered({"mlm": 0, "nsp": 0}), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_reads_ours_and_we_read_its(kind: str, tmp_path: Path) -> None:
    model = scattered(KINDS[kind])
    weights.save(model, tmp_path / "ours")
    assert settings(tmp_path / "ours")["architectures"] == [kind]
    theirs, info = getattr(transformers, kind).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info

    batch = make_batch([5, 12, 2], 90)
    inside = padded(batch)["attention_mask"].bool()
    with torch.no_grad():
        states = theirs.eval().bert(**padded(batch)).last_hidden_state[inside]
        torch.testing.assert_close(model.encoder(batch), states, rtol=0, atol=2e-5)

    theirs.save_pretrained(tmp_path / "theirs")
    back, report = weights.load(tmp_path / "theirs")
    assert report == weights.Report((), ())
    assert back.labels == model.labels
    assert equal(back, model)
    with (tmp_path / "theirs" / "model.safetensors").open("rb") as file:
        their_names = set(safetensors.torch.load(file.read()))
    assert their_names == set(weights.state(model))


def test_auto_model_gives_the_same_states(folder: Path) -> None:
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    batch = make_batch([7, 40], 90)
    with torch.no_grad():
        wanted = theirs(**padded(batch)).last_hidden_state[padded(batch)["attention_mask"].bool()]
        torch.testing.assert_close(weights.load(folder)[0].eval().encoder(batch), wanted, rtol=0, atol=2e-5)


def test_regression_is_told_from_classes(tmp_path: Path) -> None:
    weights.save(scattered({"value": 0}), tmp_path)
    assert settings(tmp_path)["problem_type"] == "regression"
    assert weights.load(tmp_path)[0].labels == {"value": 0}
    assert transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).num_labels == 1


def test_labels_and_other_keys_are_kept(tmp_path: Path) -> None:
    names = {"id2label": {"0": "no", "1": "yes", "2": "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}
    weights.save(scattered({"label": 3}), tmp_path, names | {"task": "opinion"})
    loaded = transformers.AutoConfig.from_pretrained(tmp_path)
    assert loaded.id2label == {0: "no", 1: "yes", 2: "maybe"}
    assert loaded.task == "opinion"


def test_the_file_has_no_decoder_and_says_its_format(folder: Path) -> None:
    with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert not [name for name in file.keys() if "decoder" in name]  # noqa: SIM118


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_settings_survive(activation: str, tmp_path: Path) -> None:
    config = EncoderConfig(
        layers=1, hidden=24, heads=3, intermediate=20, vocabulary=50, positions=9, segment_types=3,
        activation=activation, dropout=0.2, attention_dropout=0.3, norm_eps=1e-7, init_range=0.05,
    )  # fmt: skip
    weights.save(weights.draw(config, {"mlm": 0}), tmp_path)
    assert weights.load(tmp_path)[0].config == config


@pytest.mark.parametrize("legacy_zip", [False, True])
def test_legacy_files_load(folder: Path, legacy_zip: bool) -> None:
    model = weights.load(folder)[0]
    old = {}
    for name, tensor in weights.state(model).items():
        renamed = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        old[renamed] = tensor
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"]
    old["bert.embeddings.position_ids"] = torch.arange(40)[None]
    (folder / "model.safetensors").unlink()
    torch.save(old, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy_zip)
    change(folder, architectures=None, model_type=None, layer_norm_eps=None, pad_token_id=None)
    back, report = weights.load(folder)
    assert report == weights.Report((), ())
    assert back.labels == {"mlm": 0, "nsp": 0}
    assert equal(back, model)


def test_backbone_only_files_load_with_fresh_heads(folder: Path) -> None:
    model = weights.load(folder)[0]
    bare = {n.removeprefix("bert."): t for n, t in weights.state(model).items() if n.startswith("bert.")}
    safetensors.torch.save_file(bare, folder / "model.safetensors")
    back, report = weights.load(folder, {"label": 3}, seed=4)
    assert report == weights.Report(("classifier.weight", "classifier.bias"), ())
    assert torch.equal(back.encoder.blocks[1].up.weight, model.encoder.blocks[1].up.weight)
    assert torch.equal(
        back.heads["label"].classifier.weight,
        weights.draw(CONFIG, {"label": 3}, seed=4).heads["label"].classifier.weight,
    )


@pytest.mark.parametrize(("block", "deviation", "truncated"), [("bert", 0.02, False), ("modernbert", 1 / 8, True)])
def test_new_heads_begin_as_those_of_transformers(
    block: str, deviation: float, truncated: bool, tmp_path: Path
) -> None:
    given = EncoderConfig(block=block, vocabulary=50, hidden=64, layers=1, heads=2, intermediate=96, init_range=0.02)
    config = family_of(given).complete(given)
    weights.save(weights.draw(config, {"mlm": 0}), tmp_path / "model")
    found = weights.load(tmp_path / "model", {"label": 500})[0].heads["label"].classifier.weight.detach()
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model", num_labels=500)
    for weight in (found, theirs.classifier.weight.detach()):
        assert float(weight.std()) == pytest.approx((0.88 if truncated else 1.0) * deviation, rel=0.02)
        assert (float(weight.abs().max()) <= 2 * deviation) == truncated


def test_heads_that_are_promised_and_lacking_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForSequenceClassification"]}))
    with pytest.raises(DataError, match=r"lacks classifier\.weight, a head that architectures"):
        weights.load(folder)
    assert weights.load(folder, {"label": 2})[1].missing == ("classifier.weight", "classifier.bias")


def test_other_heads_are_left_aside_and_reported(folder: Path) -> None:
    report = weights.load(folder, {"span": 0})[1]
    assert set(report.missing) == {"qa_outputs.weight", "qa_outputs.bias"}
    assert "cls.predictions.bias" in report.unexpected
    assert "bert.pooler.dense.weight" in report.unexpected


def test_a_masked_model_without_pooler_may_become_a_classifier(tmp_path: Path) -> None:
    weights.save(scattered({"mlm": 0}), tmp_path)
    report = weights.load(tmp_path, {"label": 2})[1]
    assert set(report.missing) == {
        "bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias",
    }  # fmt: skip


def test_rows_that_pad_the_vocabulary_are_kept(tmp_path: Path) -> None:
    model = scattered({"mlm": 0}, EncoderConfig(vocabulary=128, hidden=32, intermediate=48))
    weights.save(model, tmp_path)
    read = weights.load(tmp_path, vocabulary=90)[0]
    assert read.config.vocabulary == 128
    assert torch.equal(read.encoder.words.weight, model.encoder.words.weight)


def test_fresh_weights_are_a_function_of_seed_and_name() -> None:
    one, two, other = (weights.draw(CONFIG, {"mlm": 0}, seed=seed) for seed in (3, 3, 4))
    assert equal(one, two)
    assert not equal(one, other)
    more = weights.draw(CONFIG, {"mlm": 0, "nsp": 0, "label": 5}, seed=3)
    assert torch.equal(more.encoder.words.weight, one.encoder.words.weight)
    assert not torch.equal(one.encoder.blocks[0].key.weight, one.encoder.blocks[0].query.weight)


def test_fresh_weights_are_truncated_normal() -> None:
    model = weights.draw(EncoderConfig(vocabulary=2000), {"mlm": 0, "nsp": 0})
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert parameter.unique().tolist() == [0.0 if name.endswith("bias") else 1.0]
        elif name.endswith("bias"):
            assert not parameter.any()
        else:
            assert float(parameter.detach().abs().max()) <= 0.04
    words = model.encoder.words.weight.detach()
    # standard deviation of a normal truncated at two of its own: 0.8796 of it
    assert float(words.std()) == pytest.approx(0.8796 * 0.02, rel=0.01)
    assert float(words.mean()) == pytest.approx(0, abs=1e-4)
    expected = scipy.stats.truncnorm(-2, 2, scale=0.02)
    assert scipy.stats.kstest(words.flatten()[:100_000].numpy(), expected.cdf).pvalue > 1e-3


def test_fresh_weights_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EncoderConfig(vocabulary=3000, layers=2, hidden=64, heads=2, intermediate=128)
    monkeypatch.setattr(weights, "_CHUNK", 1 << 14)  # several for the table
    found = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(weights.draw(config, {"mlm": 0}, seed=5))
    finally:
        torch.set_num_threads(threads)
    assert equal(*found)
    words = found[0].encoder.words.weight.detach()
    assert len(words.unique()) > 0.95 * words.numel()  # no part is drawn twice


def test_a_full_disk_keeps_the_old_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="No space left"):
        weights.save(scattered({"span": 0}), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("keep", [0, 4, 200, -1, 0.5])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_truncated_files_are_refused(folder: Path, name: str, keep: float) -> None:
    if name == "pytorch_model.bin":
        torch.save(weights.state(weights.load(folder)[0]), folder / name)
        (folder / "model.safetensors").unlink()
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(len(data) * keep) if keep == 0.5 else int(keep)])
    with pytest.raises(DataError, match=f"{name} is cut short, damaged"):
        weights.load(folder)


class Trap:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (Path(self.path),)  # type: ignore[return-value]


@pytest.mark.parametrize("plain", [False, True])
def test_code_in_a_file_is_not_run(folder: Path, plain: bool) -> None:
    sprung = folder / "sprung"
    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        content = {"bert.embeddings.LayerNorm.weight": Trap(sprung)}
        pickle.dump(content, file, protocol=2) if plain else torch.save(content, file)
    with pytest.raises(DataError, match="damaged or unsafe"):
        weights.load(folder)
    assert not sprung.exists()


def test_a_file_without_tensors_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"step": 3}, folder / "pytorch_model.bin")
    with pytest.raises(DataError, match="is not a state dict"):
        weights.load(folder)


def test_a_wrong_shape_is_named(folder: Path) -> None:
    change(folder, intermediate_size=64)
    with pytest.raises(
        DataError, match=r"intermediate\.dense\.weight is \[48, 32\] in .*model\.safetensors, \[64, 32\] in the model"
    ):
        weights.load(folder)


def test_the_settings_that_contradict_the_table_of_words_are_named(folder: Path) -> None:
    change(folder, vocab_size=80)
    with pytest.raises(DataError, match=r"word_embeddings\.weight is \[90, 32\] in .*, \[80, 32\] in the model"):
        weights.load(folder, vocabulary=90)


def test_a_table_of_words_without_rows_is_refused(folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("word_embeddings.weight"))
    safetensors.torch.save_file(tensors | {name: torch.tensor(1.0)}, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"word_embeddings\.weight is \[\]"):
        weights.load(folder, vocabulary=90)


def test_another_familys_architecture_needs_a_model_type(folder: Path) -> None:
    change(folder, model_type=None, architectures=["ModernBertForMaskedLM"])
    with pytest.raises(DataError, match=r'has no model_type.*Add "model_type": "modernbert"'):
        weights.load(folder)


@pytest.mark.parametrize("vocabulary", [40, 91, 30522])
def test_another_vocabulary_is_refused(folder: Path, vocabulary: int) -> None:
    with pytest.raises(DataError, match=f"vocabulary does not match the weights.*{vocabulary} pieces.*has 90"):
        weights.load(folder, vocabulary=vocabulary)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "albert", "model_type = 'albert'.*share their weights.*take a BERT"),
        ("model_type", "deberta-v2", "model_type = 'deberta-v2'.*one of these families: bert"),
        ("model_type", "new", "model_type = 'new'.*take the same model in that form, such as alibaba-nlp-community"),
        ("model_type", "modern_bert", "Did you mean 'modernbert'"),
        ("hidden_act", "relu", "hidden_act = 'relu'"),
        ("position_embedding_type", "relative_key", "position_embedding_type = 'relative_key'"),
        ("is_decoder", True, "is_decoder = True"),
        ("is_causal", True, "is_causal = True; only False is supported"),
        ("transformers_weights", "other.safetensors", "= 'other.safetensors', .* Lambert reads model.safetensors"),
        (
            "quantization_config",
            {"quant_method": "fp8"},
            r"config\.json has quantization_config = {'quant_method': 'fp8'}",
        ),
        ("tie_word_embeddings", False, "tie_word_embeddings = False"),
        ("architectures", ["BertGenerationDecoder"], "BertGenerationDecoder"),
        ("architectures", "BertModel", "architectures = 'BertModel'; it must be a list"),
        ("hidden_size", None, "config.json lacks hidden_size"),
        ("hidden_size", "32", "hidden_size = '32'"),
        ("hidden_size", 2**31 - 2, r"word_embeddings\.weight is \[90, 32\] in .*, \[90, 2147483646\] in the model"),
        ("num_hidden_layers", 3, r"lacks bert\.encoder\.layer\.2"),
        ("num_attention_heads", 5, r"config\.json.*heads = 5 does not divide"),
    ],
)
def test_other_models_are_refused(folder: Path, key: str, value: object, message: str) -> None:
    change(folder, **{key: value})
    with pytest.raises(DataError, match=message):
        weights.load(folder)


def test_layers_that_are_not_used_are_said(folder: Path) -> None:
    assert weights.load(folder)[1].unused == ()
    change(folder, num_hidden_layers=1)
    _, report = weights.load(folder)
    line = "note: the weights have 2 layers, and config.json num_hidden_layers = 1: the others are not used."
    assert report.unused == (line,)
    assert line in report.warnings()


@pytest.mark.parametrize("labels", ["two", 0, None])
def test_a_number_of_labels_that_is_none_is_named(folder: Path, labels: object) -> None:
    config = settings(folder) | {"architectures": ["BertForTokenClassification"], "num_labels": labels}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(DataError, match=f"num_labels = {labels!r}"):
        weights.load(folder)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"No weights in {tmp_path / 'nowhere'}"):
        weights.load(tmp_path / "nowhere")
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"config\.json is not JSON"):
        weights.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(DataError, match=r"no config\.json"):
        weights.load(folder)


@pytest.mark.parametrize(
    ("paths", "inner"),
    [
        (("checkpoint-9", "checkpoint-10", "checkpoint-best"), "checkpoint-10"),
        (("snapshots/0a", "snapshots/0b"), "snapshots/0b"),
        (("snapshots/0a", "snapshots/0b", "refs/main"), "snapshots/0a"),
    ],
)
def test_the_model_folder_in_another_folder_is_named(paths: tuple[str, ...], inner: str, tmp_path: Path) -> None:
    """In the output of transformers' Trainer, and in the cache of the Hub."""
    for path in paths:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        if path == "refs/main":
            (tmp_path / path).write_text("0a\n")
        else:
            weights.save(weights.draw(CONFIG, {}), tmp_path / path)
    with pytest.raises(DataError, match=f"Give the model folder in it: {tmp_path / inner}\\."):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "what"), [("model.onnx", "ONNX"), ("openvino_model.xml", "OpenVINO"), ("model.pt2", "a program of torch")]
)
def test_an_export_is_recognised(name: str, what: str, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(DataError, match=rf"is an export to {what} \({name}\).*: give the model folder"):
        weights.load(folder)


def test_two_heads_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choice and tag"):
        weights.save(scattered({"label": 2, "tag": 3}), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_folder_may_say_an_initial_range_of_0(tmp_path: Path) -> None:
    """Its weights are not drawn; a head that it lacks begins at 0, and a fresh model is refused."""
    model = weights.draw(CONFIG, {"mlm": 0})
    weights.save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"initializer_range": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "SHA256SUMS").unlink(missing_ok=True)
    loaded = weights.load(tmp_path, {"tag": 3})[0]
    assert loaded.config.init_range == 0
    assert all(not value.any() for name, value in weights.state(loaded).items() if name.startswith("classifier."))
    with pytest.raises(UsageError, match="init_range = 0"):
        weights.draw(loaded.config, {"mlm": 0})


def renamed(folder: Path, name_of: Any) -> dict[str, torch.Tensor]:
    """Gives the tensors of a folder other names, and returns them by their former names."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    safetensors.torch.save_file(
        {name_of(name): tensor for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "SHA256SUMS").unlink(missing_ok=True)
    return tensors


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda name: f"module.{name}",
        lambda name: f"_orig_mod.module.{name}",
        lambda name: name.replace("encoder.layer", "encoder._orig_mod.layer"),
        lambda name: f"0.auto_model.{name.removeprefix('bert.')}",
    ],
)
def test_names_of_a_wrapped_model_are_read(wrapped: Any, folder: Path) -> None:
    bare, _ = weights.load(folder, {})
    renamed(folder, wrapped)
    found, report = weights.load(folder, {})
    assert equal(bare, found)
    assert "names of a wrapped model" in " ".join(report.warnings())


def test_a_tensor_that_two_wrappers_have_is_named(folder: Path) -> None:
    tensors = renamed(folder, lambda name: name)
    safetensors.torch.save_file(
        tensors | {f"_orig_mod.{name}": value.clone() for name, value in tensors.items()}, folder / "model.safetensors"
    )
    with pytest.raises(DataError, match=r"embeddings.* twice"):
        weights.load(folder, {})


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma"),
        ("bert.pooler.dense.bias", "pooler.dense.bias"),
    ],
)
def test_two_tensors_of_one_name_must_be_equal(name: str, other: str, folder: Path) -> None:
    tensors = renamed(folder, lambda name: name)
    twice = tensors | {other: tensors[name].clone()}
    safetensors.torch.save_file(twice, folder / "model.safetensors")
    weights.load(folder, {})
    safetensors.torch.save_file(twice | {other: tensors[name] + 1}, folder / "model.safetensors")
    with pytest.raises(DataError, match=f"model.safetensors has .*{other}.*, two names of one tensor, with different"):
        weights.load(folder, {})


def test_a_tensor_of_another_name_is_named(folder: Path) -> None:
    renamed(folder, lambda name: name.replace("intermediate.dense", "intermediate.dense_act"))
    with pytest.raises(DataError, match=r"It has bert\.encoder\.layer\.0\.intermediate\.dense_act"):
        weights.load(folder, {})


def test_a_decoder_of_its_own_is_refused_where_it_predicts(folder: Path) -> None:
    tensors = renamed(folder, lambda name: name)
    words = tensors["bert.embeddings.word_embeddings.weight"]
    safetensors.torch.save_file(tensors | {"cls.predictions.decoder.weight": words + 1}, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"a decoder .* that is not tied"):
        weights.load(folder)
    weights.load(folder, {"label": 3})


def test_an_adapter_is_named(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(DataError, match="an adapter of peft"):
        model_folder(folder)
