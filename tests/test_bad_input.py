"""Input that cannot be used, from the command line to the message: one line, an exit code, nothing left behind; and
input that can be used for the greater part, counted."""

import bz2
import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import one_line
from json_lines import predict

from lambert import pretrain
from lambert.core.errors import UsageError
from lambert.core.shards import Split
from lambert.tasks import TaskConfig, learn
from lambert.text.tokenizers import tokenizer as tokenizers

Lambert = Callable[..., Any]

SENTENCE = "the old king found a river near the bright road and walked from the house to the garden"
DUMP = f"<mediawiki><page><title>A</title><ns>0</ns><revision><text>{SENTENCE}</text></revision></page></mediawiki>"


def squad(*questions: dict[str, Any], context: object = "the king found a river") -> bytes:
    paragraph = {"context": context, "qas": list(questions)}
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}).encode()


def question(number: str = "q", text: str = "a river", start: object = 15) -> dict[str, Any]:
    return {"id": number, "question": "what", "answers": [{"text": text, "answer_start": start}]}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in question().items() if name != key}


# --- raw text ---


@pytest.mark.parametrize(
    ("name", "content", "code", "parts"),
    [
        ("empty.txt", b"", 3, ["empty"]),
        ("blank.txt", b" \n\n \t\n", 3, ["empty"]),
        ("latin.txt", "é ".encode("latin-1") * 50, 3, ["latin.txt", "UTF-8", "line 1"]),
        ("cut.txt.gz", gzip.compress(SENTENCE.encode() * 300, mtime=0)[:40], 3, ["cut.txt.gz"]),
        ("no.txt.gz", b"\xff\0" + SENTENCE.encode(), 3, ["no.txt.gz"]),
        ("rows.jsonl", b'{"text": "the king"}\n{"text": \n', 3, ["rows.jsonl", "line 2"]),
        ("rows.jsonl", b'{"txt": "the king found a river near the road"}\n', 3, ["rows.jsonl", "'text'"]),
        ("page.txt", b"<!DOCTYPE html><html><p>The king</p></html>", 3, ["page.txt", "HTML page", "--format text"]),
        ("t.conll", b"Rome NNP B-LOC\nfell VBD O\n", 3, ["t.conll looks like CoNLL", "--format text"]),
        ("t.data", b"-DOCSTART- -X- O\n\nRome NNP B-LOC\n", 3, ["t.data looks like CoNLL", "--format text"]),
        (
            "train.csv",
            b"body,label\nthe king,a\n",
            3,
            ["(columns: body, label)", "a table (CSV)", "--format text"],
        ),
        ("train.txt", b"text\tlabel\n" + b"the king\ta\n" * 9, 3, ["train.txt looks like a table (TSV)"]),
        ("train.TSV.bz2", bz2.compress(b"the king\ta\n"), 3, ["train.TSV.bz2 has no column 'text'", "a table (TSV)"]),
        ("wide.txt", SENTENCE.encode("utf-16-le"), 3, ["wide.txt looks like UTF-16LE", "iconv -f UTF-16LE -t UTF-8"]),
        ("dump.xml.bz2", bz2.compress(b"<mediawiki><page/></mediawiki>"), 3, ["dump.xml.bz2", "0 usable documents"]),
        ("dump.xml.bz2", bz2.compress(b"<mediawiki><page><title>"), 3, ["dump.xml.bz2, page 1, has no </page>"]),
        (
            "dump.xml.bz2",
            bz2.compress(DUMP.encode("utf-16"))[:-20],
            3,
            ["dump.xml.bz2, line 1, is damaged or truncated"],
        ),
        ("texts.zip", b"PK\x03\x04", 3, ["texts.zip is an archive", "Unpack it"]),
        ("picture.png", b"\x89PNG\r\n\x1a\n\0\0", 3, ["picture.png"]),
    ],
)
def test_a_corpus_of_nothing_usable(
    name: str, content: bytes, code: int, parts: list[str], tmp_path: Path, lambert: Lambert
) -> None:
    (tmp_path / name).write_bytes(content)
    called = lambert("prepare", input=tmp_path / name, out=tmp_path / "corpus", vocabulary=100, workers=1)
    one_line(called, code, *parts)
    assert {path.name for path in tmp_path.iterdir()} == {name}


@pytest.mark.parametrize("name", ["rows.csv.gz", "rows.tsv", "rows.txt.gz"])
def test_tables_that_a_glob_matches(name: str, texts: Path, tmp_path: Path, lambert: Lambert) -> None:
    table = b"body,label\n" + b"the king,a\n" * 9
    (tmp_path / name).write_bytes(gzip.compress(table) if name.endswith(".gz") else table)
    flags = {"out": tmp_path / "corpus", "vocabulary": 100, "workers": 1}
    called = lambert("prepare", "--input", f"{tmp_path}/rows.*", texts, **flags)
    one_line(called, 3, name, "looks like a table (", "--format text")
    done = lambert("prepare", "--input", f"{tmp_path}/rows.*", texts, "--format=text", **flags)
    assert done.code == 0, done.err


def test_a_vocabulary_without_mask(texts: Path, tmp_path: Path, lambert: Lambert) -> None:
    pieces = tmp_path / "vocab.txt"
    pieces.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\na\n")
    called = lambert("prepare", input=texts, out=tmp_path / "corpus", documents="line", tokenizer=pieces)
    one_line(called, 3, "[MASK]", str(pieces))
    assert not (tmp_path / "corpus").exists()


def test_odd_text_is_counted_and_trained_on(
    texts: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    stories = texts.read_text().splitlines()
    for number, story in enumerate(stories[:20]):
        (folder / f"{number:02d}.txt").write_text(story)
    (folder / "a-bom.txt").write_bytes(b"\xef\xbb\xbf" + stories[20].encode())
    (folder / "b-crlf.txt").write_bytes(stories[21].replace(". ", ".\r\n").encode())
    (folder / "c-nul.txt").write_bytes(stories[22].replace(" ", " \0").encode())
    (folder / "d-line.txt").write_text((SENTENCE + " ") * (5_000_000 // len(SENTENCE)))
    (folder / "e-empty.txt").touch()
    (folder / "f-latin.txt").write_bytes("é ".encode("latin-1") * 50)
    (folder / "g-cut.txt.gz").write_bytes(gzip.compress(SENTENCE.encode() * 300, mtime=0)[:40])
    (folder / "h-again.txt").write_text(stories[0])
    done = lambert("prepare", input=folder, out=tmp_path / "corpus", vocabulary=160, heldout=0.2, max_bad=0.2)
    assert done.code == 0, done.err
    documents = json.loads((tmp_path / "corpus" / "manifest.json").read_text())["documents"]
    assert (documents["read"], documents["kept"]) == (28, 24)
    assert {reason: count for reason, count in documents["dropped"].items() if count} == {
        "empty": 1, "duplicate": 1, "unreadable": 2,
    }  # fmt: skip
    assert "24 kept of 28; dropped: 1 empty" in re.sub(r"dropped: .*(1 empty)", r"dropped: \1", done.out)
    assert "f-latin.txt" in done.out
    assert "g-cut.txt.gz" in done.out
    trained = lambert("pretrain", corpus=tmp_path / "corpus", out=tmp_path / "run", **small, train__steps=2)
    assert trained.code == 0, trained.err


def test_a_prepared_corpus_that_was_damaged_afterwards(
    texts: Path, small: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "run"
    assert lambert("prepare", input=texts, out=corpus, documents="line", vocabulary=100, heldout=0.2).code == 0
    shard = next((corpus / "train").glob("*.bin"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-2])
    one_line(lambert("pretrain", corpus=corpus, out=out, **small, train__steps=1), 3, shard.name, "prepare it again")
    shard.write_bytes(whole)
    manifest = (corpus / "manifest.json").read_text()
    (corpus / "manifest.json").write_text(manifest[:100])
    one_line(lambert("pretrain", corpus=corpus, out=out, **small, train__steps=1), 3, "manifest.json", "JSON")
    (corpus / "manifest.json").unlink()
    way_out = f"Run `lambert prepare --input {corpus} --out prepared` first."
    one_line(lambert("pretrain", corpus=corpus, out=out, **small, train__steps=1), 3, "No prepared corpus", way_out)
    assert not out.exists()


# --- labelled text ---


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (squad(question(), question()), ["'q'", "qas[0]", "qas[1]"]),
        (squad(question(), without("id")), ["qas[1]", "'id' is missing"]),
        (squad(without("question")), ["qas[0]", "'question' is missing"]),
        (squad(without("answers")), ["qas[0]", "answers"]),
        (squad(question(start="fifteen")), ["answers[0]", "answer_start"]),
        (squad(question(), context=None), ["paragraphs[0]", "'context'"]),
        (squad(question(text="a bird")), ["the answer 'a bird' is not in its paragraph, and so it is"]),
        (b'{"version": "1.1"}', ["'data' is missing"]),
        (b"[]", ["train.json"]),
        (b'{"data"', ["train.json", "JSON"]),
        (b'{"data": "\xff"}', ["train.json", "UTF-8"]),
    ],
)
def test_squad_files(content: bytes, parts: list[str], pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    path = tmp_path / "train.json"
    path.write_bytes(content)
    flags = {"task__name": "squad", "task__max_length": 64, "task__squad__max_query": 16, "train__steps": 1}
    one_line(lambert("finetune", data=path, init=pretrained, out=tmp_path / "run", **flags), 3, *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("start", [0, -4, 21, 10_000])
def test_wrong_offsets_are_put_right_and_counted(
    start: int, pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    path = tmp_path / "train.json"
    path.write_bytes(squad(question("right"), question("wrong", start=start)))
    flags = {"task__name": "squad", "task__max_length": 64, "task__squad__max_query": 16, "train__steps": 1}
    done = lambert("finetune", data=path, init=pretrained, out=tmp_path / "run", **flags)
    assert done.code == 0, done.err
    assert "1 offset corrected" in done.out


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("rows.tsv", b"text\tlabel\nthe king\tx\n\xff\ty\n", ["rows.tsv:3", "UTF-8"]),
        ("rows.csv", b'text,label\n"the king,x\n', ["rows.csv"]),
        ("rows.jsonl", b'{"text": "the king", "label": 1}\n{"text"\n', ["rows.jsonl:2"]),
        ("rows.jsonl", b'{"text": "\\ud800", "label": 1}\n{"text": "a", "label": 2}\n', ["rows.jsonl:1", "surrogate"]),
        ("rows.jsonl", b'{"text": "the king", "label": ["x", "y"]}\n', ["rows.jsonl:1", "a list", "multilabel"]),
        ("rows.tsv", b"text\tlabel\nthe king\t1\na road\tlabel\n", ["rows.tsv:3", "'label'", "'1'", "rows.tsv:2"]),
        ("rows.jsonl", b'{"tokens": ["king"], "tags": ["O"]}\n', ["rows.jsonl:1", "--task.name tag"]),
        ("rows.txt", b"-DOCSTART- -X- -X- O\n\nking NN B-NP O\n", ["rows.txt:1", "CoNLL", "--task.name tag"]),
        ("rows.parquet", b"PAR1 and no more", ["rows.parquet", "Parquet"]),
        ("rows.tsv.gz", gzip.compress(b"text\tlabel\nthe king\tx\na road\ty\n" * 50, mtime=0)[:30], ["rows.tsv.gz"]),
    ],
)
def test_tables(
    name: str, content: bytes, parts: list[str], pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    (tmp_path / name).write_bytes(content)
    flags = {"init": pretrained, "out": tmp_path / "run", "task__max_length": 64, "train__steps": 1}
    one_line(lambert("finetune", data=tmp_path / name, **flags), 3, *parts)
    assert not (tmp_path / "run").exists()


def test_a_bom_crlf_and_nul_bytes_in_a_table_are_read(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    path = tmp_path / "rows.tsv"
    path.write_bytes(b"\xef\xbb\xbftext\tlabel\r\nthe \0king\twater\r\na road\tland\r\n\r\n")
    flags = {"init": pretrained, "out": tmp_path / "run", "task__max_length": 64, "train__steps": 1}
    done = lambert("finetune", data=path, **flags)
    assert done.code == 0, done.err
    kept = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert kept["id2label"] == {"0": "land", "1": "water"}


def without_piece(model: Path, folder: Path, piece: str) -> Path:
    """A model folder whose vocabulary has a piece under another name."""
    shutil.copytree(model, folder)
    for name in ("tokenizer.json", "vocab.txt"):
        path = folder / name
        path.write_text(path.read_text().replace(piece, "[ODD]"))
    (folder / "SHA256SUMS").unlink()
    return folder


def test_a_model_whose_vocabulary_lacks_a_mask_token(
    pretrained: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    model = without_piece(pretrained / "model", tmp_path / "odd", "[MASK]")
    said = f"{model / 'tokenizer.json'} has no mask token such as [MASK]"
    one_line(lambert("predict", model=model, stdin='{"text": "the [MASK]"}'), 3, said)
    imported = lambert("import", out=tmp_path / "imported", **{"from": model})
    assert imported.code == 0, imported.err
    assert "note: the tokenizer has no mask token" in imported.out
    flags = {"data": labelled("classify", "train"), "init": model, "out": tmp_path / "run", "train__steps": 1}
    assert lambert("finetune", **flags, task__max_length=64).code == 0  # which a classification does without
    refused = lambert("prepare", input=model / "README.md", tokenizer=model, out=tmp_path / "corpus")
    one_line(refused, 3, "has no mask token such as [MASK]")


def test_text_that_looks_special_has_the_same_ids_everywhere(
    texts: Path, labelled: Callable[[str, str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    """From raw text to the shard, to a labelled file's sequences and to the lines of predict."""
    odd = "the [SEP] king [MASK] found\x0b a\x0c river\x85 near\x1c the [CLS] old [PAD] road [UNK] stone"
    raw = tmp_path / "odd.jsonl"
    rows = [{"text": text} for text in [odd, *texts.read_text().splitlines()]]
    raw.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = lambert("prepare", input=raw, out=tmp_path / "corpus", vocabulary=160, heldout=0, workers=1)
    assert done.code == 0, done.err
    tokenizer = tokenizers.load(tmp_path / "corpus")
    shards = Split(tmp_path / "corpus")
    expected = tokenizer.encode(odd, add_special_tokens=False).ids
    specials = {tokenizer.token_to_id(piece) for piece in ("[SEP]", "[CLS]", "[PAD]", "[MASK]")}
    assert not specials & set(expected)
    first = int(shards.ends[shards.documents == 0].max())
    assert shards.take(0, first).tolist() == expected
    table = tmp_path / "rows.jsonl"
    table.write_text(json.dumps({"text": odd, "label": "a"}) + "\n" + json.dumps({"text": "the", "label": "b"}) + "\n")
    task, source = learn(TaskConfig(max_length=200), tokenizer, table)
    cls, sep = (tokenizer.token_to_id(piece) for piece in ("[CLS]", "[SEP]"))
    assert source.collate([0], [0]).ids_T.tolist() == [cls, *expected, sep]
    given: list[list[int]] = []

    def outputs_of(data: Any) -> Any:
        given.append(data.collate([0], [0]).ids_T.tolist())
        yield {"label": torch.zeros(1, 2)}

    assert len(list(predict(task, outputs_of, [json.dumps({"text": odd})]))) == 1
    assert given == [[cls, *expected, sep]]


@pytest.mark.parametrize(
    "content", ["text,label\na b,x\n", '{"text": "a", "label": "b"}\n', '{\n  "a": "b"\n}\n', "notes"]
)
def test_files_of_others_are_not_replaced(pretrained: Path, tmp_path: Path, content: str, lambert: Lambert) -> None:
    precious = tmp_path / "mine"
    precious.write_text(content)
    data = {"model": pretrained, "data": tmp_path / "no such data", "predictions": precious}
    one_line(lambert("evaluate", **data), 2, str(precious), "did not write it")
    one_line(lambert("report", pretrained, out=precious), 2, str(precious), "did not write it")
    one_line(lambert("bench", size="mini", profile=precious), 2, str(precious), "did not write it")
    assert precious.read_text() == content


def test_a_corpus_is_no_text(corpus: Path, tmp_path: Path, lambert: Lambert) -> None:
    one_line(
        lambert("prepare", input=corpus, out=tmp_path / "out"), 3, str(corpus), "is a corpus that `lambert prepare`"
    )


def test_the_text_is_not_the_label(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    columns = {"task__columns__text": "label", "init": pretrained, "out": tmp_path / "out", "data": "x.csv"}
    one_line(lambert("finetune", **columns), 2, "the column 'label' is both text and label")


def test_a_table_is_not_set_to_a_value(tmp_path: Path, lambert: Lambert) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("masking = 0.5\n")
    one_line(lambert("pretrain", recipe), 2, "masking is a table of settings, not 0.5")
    one_line(lambert("pretrain", "--model=5"), 2, "--model is a table of settings", "--model.layers")
    one_line(lambert("prepare", "--input=x", "--out", ""), 2, "prepare requires --out")
    one_line(lambert("prepare", "--input=x", "--out=y", "--work", ""), 2, "--work is empty")
    with pytest.raises(UsageError, match="model is a table of settings, not 5"):
        pretrain(model=5, corpus="x", out="y")
