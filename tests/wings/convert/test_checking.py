"""What Lambert computes from a folder is compared with the library that made it, which computes by itself."""

import importlib.util
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Called, one_line
from exported import saved
from safetensors.torch import load_file, save_file

import lambert as library
from lambert.core.errors import DataError, UsageError
from lambert.wings.convert import checking, source_library
from lambert.wings.convert.checking import check
from lambert.wings.convert.sample import TEXTS

Command = Callable[..., Called]
pytest.importorskip("sentence_transformers")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Texts in several scripts, one of them with the name of a special token."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*TEXTS[:5], "", "a [SEP] in a text"]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries compute in this process, where they are imported already."""

    def compute(job: Mapping[str, Any]) -> Any:
        facts, arrays = source_library.LIBRARIES[job["library"]](json.loads(json.dumps(job)))
        return json.loads(json.dumps(facts)) | {"version": "of the test"}, arrays

    monkeypatch.setattr(checking, "compute", compute)


@pytest.mark.parametrize(
    ("kind", "head", "what"),
    [
        ("bert", "", "states"),
        ("bert", "mlm", "log of the sum of exponentials"),
        ("bert", "label", "logits"),
        ("bert", "multilabel", "logits"),
        ("bert", "value", "logits"),
        ("bert", "choice", "logits"),
        ("bert", "tag", "logits"),
        ("bert", "span", "end_logits"),
        ("roberta", "tag", "logits"),
        ("distilbert", "mlm", "logits"),
        ("electra", "span", "start_logits"),
        ("modernbert", "label", "logits"),
    ],
)
@pytest.mark.usefixtures("here")
def test_every_head_beside_transformers(kind: str, head: str, what: str, texts: Path, tmp_path: Path) -> None:
    folder = saved(kind, head, tmp_path / "model")
    found = check(folder, folder, texts)
    assert found.library == "transformers of the test"
    assert found.problem() == ""
    rows = {one.what: one for one in found.table}
    assert "token ids" in rows
    assert rows[what].difference is not None
    assert rows[what].difference <= rows[what].bound
    assert ("labels in their order" in rows) == (head in ("label", "multilabel", "tag"))
    assert ("token ids, cut at 192" in rows) == (head in ("label", "multilabel", "value"))
    assert "1 rows with the names of special tokens" in " ".join(found.notes)


@pytest.mark.parametrize(("kind", "head"), [("bert", "vector"), ("modernbert", "first_vector")])
@pytest.mark.usefixtures("here")
def test_vectors_and_prompts_beside_sentence_transformers(kind: str, head: str, texts: Path, tmp_path: Path) -> None:
    folder = saved(kind, head, tmp_path / "model")
    found = check(folder, folder, texts)
    assert found.problem() == ""
    whole = {one.what for one in found.table}
    assert {"token ids, cut at 64", "vectors", "vectors as encode gives them", "prompt of queries"} <= whole
    # Another prompt in the folder that was imported
    source = shutil.copytree(folder, tmp_path / "source")
    settings = json.loads((source / "config_sentence_transformers.json").read_text())
    settings["prompts"] = {"query": "find: ", "passage": "read: "}
    (source / "config_sentence_transformers.json").write_text(json.dumps(settings))
    assert "prompt of queries is 'find: '" in check(source, folder, texts).problem()
    # Another length
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": false}')
    problem = check(source, folder, texts).problem()
    assert "token ids, cut at 16, of " in problem
    assert "differ: " in problem


def renamed(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    settings["id2label"] = {"0": "LABEL_1", "1": "LABEL_0", "2": "LABEL_2"}
    (folder / "config.json").write_text(json.dumps(settings))


def cased(folder: Path) -> None:
    values = json.loads((folder / "tokenizer.json").read_text())
    values["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(values))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"do_lower_case": False}))


def bent(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.bias"][1] += 1e-3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def sharper(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"layer_norm_eps": 1e-3}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed, "label 0 is 'LABEL_1' .* 'LABEL_0'"),
        (cased, r"token ids of .*texts.txt:1 \('The meeting was .*token 1 is 1 \('\[UNK\]'\) .*\('t'\)"),
        (bent, r"logits of .*texts.txt:1 \(.* differ by 1.0e-03, more than"),
        (sharper, r"logits of .*texts.txt:1 \(.* differ by "),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_differs_is_named(change: Callable[[Path], None], message: str, texts: Path, tmp_path: Path) -> None:
    folder = saved("bert", "label", tmp_path / "model")
    change(shutil.copytree(folder, tmp_path / "source"))
    found = check(tmp_path / "source", folder, texts)
    with pytest.raises(DataError, match=message):
        raise DataError(found.problem())
    assert any("DIFFERENT" in line for line in found.lines())


@pytest.mark.usefixtures("here")
def test_nothing_is_written_if_they_differ(
    texts: Path, tmp_path: Path, lambert: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = saved("bert", "label", tmp_path / "source")
    compute = checking.compute

    def other(job: Mapping[str, Any]) -> Any:
        facts, arrays = compute(job)
        return facts, {**arrays, "2/logits": arrays["2/logits"] + 1e-3}

    done = lambert("import", "--from", source, out=tmp_path / "right", check=texts)
    assert done.code == 0, done.err
    assert "transformers of the test" in done.out
    monkeypatch.setattr(checking, "compute", other)
    done = lambert("import", "--from", source, out=tmp_path / "wrong", check=texts)
    one_line(done, 3, "transformers", "texts.txt:3", "nothing was written")
    assert "1.0e-03 DIFFERENT" in done.out
    assert not (tmp_path / "wrong").exists()
    only = lambert("import", "--from", source, check=texts)
    one_line(only, 3, "texts.txt:3")
    assert "nothing was written" not in only.err


@pytest.mark.usefixtures("here")
def test_a_model_that_amplifies_rounding_is_compared_with_float64(texts: Path, tmp_path: Path) -> None:
    """Large equal parts in the rows of a matrix, which a norm subtracts: as in tests/model/test_publish.py."""
    folder = saved("bert", "", tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.0.attention.output.dense.weight"] += 10_000
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    found = check(folder, folder, texts)
    (states,) = (one for one in found.table if one.what == "states")
    assert states.difference is not None
    assert states.difference > 1e-4
    assert states.problem == ""
    tensors["bert.encoder.layer.1.output.LayerNorm.bias"][0] += 0.2
    source = shutil.copytree(folder, tmp_path / "source")
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    assert "states of " in check(source, folder, texts).problem()


@pytest.mark.slow
def test_the_library_computes_in_another_process(texts: Path, tmp_path: Path) -> None:
    """Also from a folder with modules that have the names of others."""
    folder = saved("bert", "label", tmp_path / "model")
    for name in ("json.py", "transformers.py", "modeling.py"):
        (folder / name).write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    result = library.import_model(folder, out=tmp_path / "out", check=texts)
    assert [one.what for one in result.checks] == [
        "token ids", "token ids, cut at 192", "labels in their order", "logits",
    ]  # fmt: skip
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert not (tmp_path / "run").exists()


def test_a_library_that_fails_or_is_missing(
    texts: Path, tmp_path: Path, lambert: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved("bert", "label", tmp_path / "model")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "transformers" else find(name, *rest)
    )
    done = lambert("import", "--from", folder, out=tmp_path / "out", check=texts)
    assert done.code == 0, done.err
    assert "note: transformers is not installed, so token ids, lengths, prompts" in done.out
    assert "pip install transformers" in done.out
    one_line(lambert("import", "--from", folder, check=texts), 2, "Nothing was compared", "pip install transformers")
    monkeypatch.undo()
    monkeypatch.setattr(checking, "compute", lambda job: ({"unsupported": "transformers 1 has no X"}, {}))
    assert check(folder, folder, texts).notes[-1] == "transformers 1 has no X, so nothing was compared with it."
    monkeypatch.undo()
    monkeypatch.setattr(source_library, "__file__", str(tmp_path / "nothing.py"))
    with pytest.raises(DataError, match=r"transformers ended while it computed .*nothing\.py"):
        check(folder, folder, texts)


def test_texts_that_cannot_be_compared(texts: Path, tmp_path: Path, lambert: Command) -> None:
    folder = saved("bert", "label", tmp_path / "model")
    none = "holds no texts"
    for content, message in {"": none, "\n \n": none, "a [CLS]\n": "the name of a special token"}.items():
        texts.write_text(content)
        with pytest.raises(DataError, match=message):
            check(folder, folder, texts)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"body": "a"}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:1: 'text' is not a text. .* found: body."):
        check(folder, folder, rows)
    texts.write_text("a\n")
    with pytest.raises(UsageError, match=r"has no modules\.json\. Use --against transformers"):
        check(folder, folder, texts, "sentence-transformers")
    one_line(lambert("import", "--from", folder), 2, "import requires --out", "--check")


@pytest.mark.usefixtures("here")
def test_pairs_of_rows_and_of_lines(tmp_path: Path) -> None:
    folder = saved("bert", "span", tmp_path / "model")
    for name, content in {
        "pairs.jsonl": '{"question": "who left", "context": "the king left"}\n',
        "pairs.csv": "text,text_b\nwho left,the king left\n",
        "pairs.tsv": "sentence1\tsentence2\nwho left\tthe king left\n",
    }.items():
        path = tmp_path / name
        path.write_text(content)
        found = check(folder, folder, path)
        assert (found.problem(), found.notes) == ("", [])
    (tmp_path / "lines.txt").write_text("who left\nthe king left\n")
    found = check(folder, folder, tmp_path / "lines.txt")
    assert found.problem() == ""
    assert "each text was compared with the one after it" in found.notes[0]


def test_only_the_first_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MOST", 3)
    (tmp_path / "texts.txt").write_text("\ufeffa\r\n\nb\nc\nd\n", encoding="utf-8")
    rows, more = checking.read_texts(tmp_path / "texts.txt")
    assert ([row.texts for row in rows], more) == ([("a",), ("b",), ("c",)], True)
    assert [row.place.rpartition(":")[2] for row in rows] == ["1", "3", "4"]


def test_numbers_that_are_not_finite_differ() -> None:
    found = checking.Check("x")
    found.close("logits", [("row 1", [1.0], [float("nan")])], "rows", lambda row: [1.0])
    found.close("logits", [("row 1", [1.0], [1.0, 2.0])], "rows", lambda row: [1.0])
    assert [bool(one.problem) for one in found.table] == [True, True]
    assert "have the shape [1]" in found.table[1].problem
    assert torch.finfo(torch.float32).eps < found.table[0].bound


@pytest.mark.parametrize(
    ("head", "activation"),
    [
        ("value", "activation.Sigmoid"), ("value", "linear.Identity"), ("label", "linear.Identity"),
        ("label", "activation.Softmax"), ("multilabel", "linear.Identity"), ("multilabel", "activation.Sigmoid"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.usefixtures("here")
def test_cross_encoders(head: str, activation: str, texts: Path, tmp_path: Path) -> None:
    """The marks of versions up to 5.3: a key of config.json; of one label, the scores pass through the activation."""
    folder = saved("bert", head, tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    settings["sentence_transformers"] = {"activation_fn": f"torch.nn.modules.{activation}", "version": "4.1.0"}
    (folder / "config.json").write_text(json.dumps(settings))
    result = library.import_model(folder, out=tmp_path / "out", check=texts)
    scores = result.checks[-1]
    assert (scores.what, scores.problem) == ("scores", "")
    again = check(tmp_path / "out", tmp_path / "out", texts)
    assert again.problem() == ""
    assert again.library == "sentence-transformers of the test"


@pytest.mark.usefixtures("here")
def test_the_limit_of_the_tokenizer_is_kept(tmp_path: Path) -> None:
    folder = saved("roberta", "label", tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 24}))
    (tmp_path / "pairs.jsonl").write_text(
        json.dumps({"text": TEXTS[0], "text_b": TEXTS[1]}) + "\n" + json.dumps({"text": "a", "text_b": "b"}) + "\n"
    )
    result = library.import_model(folder, out=tmp_path / "out", check=tmp_path / "pairs.jsonl")
    assert "token ids, cut at 24" in [one.what for one in result.checks]
    assert check(folder, tmp_path / "out", tmp_path / "pairs.jsonl").problem() == ""


@pytest.mark.parametrize("head", ["", "vector"])
@pytest.mark.usefixtures("here")
def test_a_head_that_is_named_and_not_there(head: str, texts: Path, tmp_path: Path) -> None:
    """all-mpnet-base-v2 names MPNetForMaskedLM, and has no such head: transformers would draw a random one."""
    folder = saved("bert", head, tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "architectures": ["BertForMaskedLM"]}))
    found = check(folder, folder, texts, "transformers")
    assert found.problem() == ""
    assert [one.what for one in found.table] == ["token ids", "states"]
