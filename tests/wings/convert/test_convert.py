"""In from Hugging Face and out to it, bit for bit, and nothing that a file could do to the reader."""

import errno
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import one_line
from safetensors.torch import load_file, save_file

from lambert.core.batch import flat_batch
from lambert.model import weights

Lambert = Callable[..., Any]
SHAPE = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip
TEXTS = ["the old king found a river near the road", "a bird, never seen!", "window"]


@pytest.fixture(params=["pretrained", "classify", "pair", "regress", "squad", "tag"])
def folder(request: pytest.FixtureRequest, pretrained: Path, tuned: Callable[[str], Path]) -> Path:
    """The model folder of every kind of run."""
    return (pretrained if request.param == "pretrained" else tuned(request.param)) / "model"


def test_out_and_in_again_is_the_same(folder: Path, tmp_path: Path, lambert: Lambert) -> None:
    out = lambert("export", model=folder, out=tmp_path / "deep" / "hf", format="hf")
    assert (out.code, out.err) == (0, "")
    back = lambert("import", "--from", tmp_path / "deep" / "hf", out=tmp_path / "back")
    assert back.code == 0
    assert "reads back bit for bit; largest difference from transformers" in back.out
    first, last = load_file(folder / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in first.items()} == {n: tensor.shape for n, tensor in last.items()}
    assert all(first[name].equal(last[name]) for name in first)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert json.loads((tmp_path / "back" / name).read_text()) == json.loads((folder / name).read_text())
    assert (tmp_path / "back" / "vocab.txt").read_text() == (folder / "vocab.txt").read_text()


def test_transformers_reads_it_and_computes_the_same(folder: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    tokenizer, net = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    model = weights.load(folder)[0].eval()
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    flat, lengths = [piece for row in ids for piece in row], [len(row) for row in ids]
    batch = flat_batch(torch.tensor(flat).numpy(), torch.zeros(len(flat)).long().numpy(), torch.tensor(lengths).numpy())
    with torch.inference_mode():
        ours = model.encoder(batch).split(lengths)
        for row, states_TD in zip(ids, ours, strict=True):
            theirs = net(input_ids=torch.tensor([row])).last_hidden_state[0]
            assert float((states_TD - theirs).abs().max()) <= 2e-5


def test_transformers_cuts_text_into_the_same_pieces(folder: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in [*TEXTS, "Naïve CAFÉ don't 1914 \u4e2d", ""]:
        assert theirs(text)["input_ids"] == ours.encode(text).ids
    pair = theirs(TEXTS[0], TEXTS[1])
    assert pair["input_ids"] == ours.encode(TEXTS[0], TEXTS[1]).ids
    assert pair["token_type_ids"] == ours.encode(TEXTS[0], TEXTS[1]).type_ids


def test_legacy_files_are_read(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    legacy = tmp_path / "legacy"
    shutil.copytree(pretrained / "model", legacy)
    tensors = load_file(legacy / "model.safetensors")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    torch.save(renamed | {"unheard.of": torch.zeros(1)}, legacy / "pytorch_model.bin")
    (legacy / "model.safetensors").unlink()
    (legacy / "SHA256SUMS").unlink()  # of files that are others now
    done = lambert("import", "--from", legacy, out=tmp_path / "model")
    assert done.code == 0, done.err
    assert "ignored: unheard.of" in done.out
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert set(found) == set(tensors)
    assert all(found[name].equal(tensors[name]) for name in tensors)


# --- refused ---


class Bomb:
    """Executes when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def armed(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"bert": Bomb(folder / "executed")}))


def armed_in_torchs_form(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"bert": Bomb(folder / "executed")}, folder / "pytorch_model.bin")


def without_separator(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text((folder / "vocab.txt").read_text().replace("[SEP]", "[SOUP]"))


def of_another_vocabulary(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with (folder / "vocab.txt").open("a") as file:
        file.writelines(f"word{number}\n" for number in range(200))


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("bert.encoder.layer.0.output.dense.weight")
    save_file(tensors, folder / "model.safetensors")


def of_another_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))


def of_another_kind(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "deberta-v2"}))


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (cut, ["model.safetensors", "cut short"]),
        (armed, ["pytorch_model.bin", "unsafe"]),
        (armed_in_torchs_form, ["pytorch_model.bin", "unsafe"]),
        (without_separator, ["vocab.txt", "[SEP]"]),
        (of_another_vocabulary, ["vocabulary does not match the weights"]),
        (without_a_tensor, ["bert.encoder.layer.0.output.dense.weight"]),
        (of_another_shape, ["intermediate.dense.weight", "[64, 32]", "[48, 32]"]),
        (of_another_kind, ["model_type", "deberta-v2"]),
        (lambda folder: (folder / "config.json").unlink(), ["config.json"]),
        (lambda folder: (folder / "config.json").write_text("{"), ["config.json", "JSON"]),
        (lambda folder: (folder / "model.safetensors").unlink(), ["No weights"]),
        (shutil.rmtree, ["No such folder"]),
    ],
)
def test_folders_that_cannot_be_read(
    damage: Callable[[Path], Any], parts: list[str], pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    source = tmp_path / "source"
    shutil.copytree(pretrained / "model", source)
    damage(source)
    one_line(lambert("import", "--from", source, out=tmp_path / "out"), 3, *parts)
    assert not (tmp_path / "out").exists()
    assert not (source / "executed").exists()


@pytest.mark.parametrize("verb", ["import", "export"])
def test_what_is_there_is_left_alone(verb: str, pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    name = "--from" if verb == "import" else "--model"
    for out in (tmp_path / "folder", tmp_path / "file"):
        if out.name == "folder":
            out.mkdir()
            (out / "mine").write_text("mine")
        else:
            out.write_text("mine")
        refused = lambert(verb, name, pretrained / "model", out=out)
        assert refused.code == 2
        assert f"{out} exists already" in refused.err
    assert (tmp_path / "folder" / "mine").read_text() == (tmp_path / "file").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file"}
    wrong = lambert("export", model=pretrained / "model", out=tmp_path / "new", format="onyx")
    assert wrong.code == 2
    assert "Did you mean 'onnx'?" in wrong.err


@pytest.mark.parametrize(
    ("verb", "settings"),
    [
        ("import", {}),
        ("export", {"precision": "bfloat16"}),
        ("export", {"format": "onnx"}),
        ("extend", {"words": 1, "min_count": 1}),
    ],
)
def test_a_folder_that_cannot_be_written_has_its_own_name(
    verb: str,
    settings: dict[str, Any],
    pretrained: Path,
    tmp_path: Path,
    lambert: Lambert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Path.mkdir

    def refused(path: Path, *arguments: Any, **options: Any) -> None:
        if path.name.startswith(".tmp-new"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        original(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refused)
    if verb == "extend":
        (tmp_path / "text.txt").write_text("The barouche and the phaeton.\n" * 9)
        arguments, settings = [verb, pretrained], settings | {"input": tmp_path / "text.txt"}
    else:
        arguments, settings = [verb], settings | {"from" if verb == "import" else "model": pretrained / "model"}
    done = lambert(*arguments, out=tmp_path / "out", **settings)
    said = f"lambert: {tmp_path / 'out'} cannot be written: Read-only file system. Choose another output folder."
    assert (done.code, done.err.splitlines()[-1:]) == (2, [said])


def test_a_run_folder_is_exported(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    done = lambert("export", model=pretrained, out=tmp_path / "out")
    assert done.code == 0, done.err
    weights = [folder / "model.safetensors" for folder in (pretrained / "model", tmp_path / "out")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert lambert("export", model=tmp_path / "none", out=tmp_path / "new").code == 3


# --- a folder that transformers wrote ---


def saved_by_transformers(folder: Path, model: Path, **changes: int) -> Path:
    """A folder as transformers' BertModel writes it, with the shape of `model` but for these changes."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    described = json.loads((model / "config.json").read_text())
    shape = {name: described[name] for name in SHAPE} | changes
    BertModel(BertConfig(**shape)).save_pretrained(folder)
    shutil.copy(model / "vocab.txt", folder)
    return folder


def test_an_encoder_keeps_its_pooler_until_a_task_is_learnt(
    tmp_path: Path, pretrained: Path, labelled: Callable[[str, str], Path], lambert: Lambert
) -> None:
    """Imported, exported, and fine-tuned with a rate of almost 0."""
    from transformers import BertModel

    first = load_file(saved_by_transformers(tmp_path / "theirs", pretrained / "model") / "model.safetensors")
    done = lambert("import", "--from", tmp_path / "theirs", out=tmp_path / "ours")
    assert done.code == 0, done.err
    assert "ignored" not in done.out
    assert "pooler" not in done.out
    assert lambert("export", model=tmp_path / "ours", out=tmp_path / "again").code == 0
    net = BertModel.from_pretrained(tmp_path / "again")
    for name, tensor in first.items():
        assert torch.equal(net.state_dict()[name], tensor)
    flags = {"data": labelled("classify", "train"), "task__max_length": 32, "train__steps": 1, "optim__lr": 1e-12}
    tuned = lambert("finetune", init=tmp_path / "ours", out=tmp_path / "tuned", **flags)
    assert tuned.code == 0, tuned.err
    assert "the pooler starts with random" not in tuned.out
    learnt = load_file(tmp_path / "tuned" / "model" / "model.safetensors")
    for name in ("pooler.dense.weight", "pooler.dense.bias"):
        assert float((learnt[f"bert.{name}"] - first[name]).abs().max()) < 1e-9
    del first["pooler.dense.weight"], first["pooler.dense.bias"]
    save_file(first, tmp_path / "theirs" / "model.safetensors", metadata={"format": "pt"})
    without = lambert("finetune", init=tmp_path / "theirs", out=tmp_path / "without", **flags)
    assert "note: the pooler starts with random weights: the encoder's folder has none." in without.out


def test_the_length_of_a_task_is_limited_by_the_positions_of_the_encoder(
    tmp_path: Path, pretrained: Path, labelled: Callable[[str, str], Path], lambert: Lambert
) -> None:
    """Sentences of 9 words are longer than 10 tokens, with [CLS] and [SEP]."""
    theirs = saved_by_transformers(tmp_path / "theirs", pretrained / "model", max_position_embeddings=10)
    assert lambert("import", "--from", theirs, out=tmp_path / "ours").code == 0
    flags = {"data": labelled("classify", "train"), "train__steps": 1}
    for init in (theirs, tmp_path / "ours"):
        out = tmp_path / f"{init.name}-tuned"
        refused = lambert("finetune", init=init, out=out, **flags, task__max_length=11)
        one_line(refused, 2, "task.max_length = 11 exceeds the model's 10 positions. Use --task.max-length 10 or less.")
        assert not out.exists()
        done = lambert("finetune", init=init, out=out, **flags)
        assert done.code == 0, done.err
        assert "determined from the model and the data: task.max_length = 10, " in done.out
        assert "48 examples, 48 longer than 10 tokens were cut" in done.out
        answered = lambert("predict", model=out, stdin='{"text": "the king found a river near the old road"}\n')
        assert answered.code == 0, answered.err
        assert json.loads(answered.out)["label"] in ("water", "land")
