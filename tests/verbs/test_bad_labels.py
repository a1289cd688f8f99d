"""Labelled files that cannot be used: one line, with the exit code of docs/errors.md, and no run folder. What can be
used for the greater part is counted in the first lines of the output."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import one_line

Lambert = Callable[..., Any]
TABLE = "text\tlabel\nthe king\tx\na road\ty\n"
UTF8 = "is not UTF-8 text (byte 0xff): it may be in Windows-1252"


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def squad(*questions: tuple[str, str]) -> str:
    """Questions with these ids and texts about one paragraph."""
    answers = [{"text": "a river", "answer_start": 15}]
    asked = [{"id": number, "question": text, "answers": answers} for number, text in questions]
    paragraphs = [{"context": "the king found a river", "qas": asked}]
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})


REFUSED: dict[str, tuple[str, str, str | bytes, str | None, int, str]] = {
    "a column with another name": (
        "classify", "x.tsv", TABLE.replace("text", "texts"), None, 3,
        "x.tsv:1: no column 'text' (task.columns.text). Did you mean 'texts'?",
    ),
    "no column that is named": (
        "classify", "x.tsv", "a\tb\nc\td\n", None, 3,
        "x.tsv:1: no columns 'text' (task.columns.text) and 'label' (task.columns.label). Columns found: a, b.",
    ),
    "a column that only dev lacks": (
        "classify", "x.tsv", TABLE, TABLE.replace("text", "texts"), 3, "dev.tsv:1: no column 'text'",
    ),
    "no choices": (
        "choice", "x.jsonl", jsonl({"text": "a", "choice": ["b", "c"], "label": 0}), None, 3,
        "x.jsonl:1: no column 'choices' (task.columns.choices). Did you mean 'choice'?",
    ),
    "no texts for vectors": (
        "embed", "x.jsonl", jsonl({"texts": "a"}), None, 3, "x.jsonl:1: no column 'text'. Did you mean 'texts'?",
    ),
    "no tags": (
        "tag", "x.jsonl", jsonl({"tokens": ["a"], "tag": ["O"]}), None, 3, "x.jsonl:1: 'tags' is not a list of texts",
    ),
    "an unseen label": (
        "classify", "x.tsv", TABLE, "text\tlabel\na\tz\n", 3,
        "dev.tsv:2: label 'z' is not among the labels of the training file: x, y.",
    ),
    "an unseen label among several": (
        "multilabel", "x.tsv", TABLE, "text\tlabel\na\tx,z\n", 3, "dev.tsv:2: label 'z' is not among the labels",
    ),
    "an unseen tag": (
        "tag", "x.conll", "a O\nb X\n", "a O\nb Z\n", 3, "dev.conll has a tag that is not among the labels",
    ),
    "empty texts alone": (
        "classify", "x.tsv", "text\tlabel\n\tx\n \ty\n", None, 3,
        "x.tsv: every text (column 'text') is empty. Set task.columns.text to another column.",
    ),
    "pairs with an empty text": (
        "embed", "x.jsonl", jsonl({"text": ""}, {"text": " "}), None, 3, "every example has an empty text",
    ),
    "latin-1 in JSON": ("classify", "x.jsonl", b'{"text": "\xff", "label": "a"}\n', None, 3, f"x.jsonl:1 {UTF8}"),
    "latin-1 in CSV": ("classify", "x.csv", b'text,label\n"\xff",a\n', None, 3, f"x.csv:2 {UTF8}"),
    "latin-1 in CoNLL": ("tag", "x.conll", b"a O\n\xff X\n", None, 3, f"x.conll:2 {UTF8}"),
    "UTF-16": (
        "classify", "x.tsv", TABLE.encode("utf-16-le"), None, 3, "x.tsv looks like UTF-16LE without a byte-order mark",
    ),
    "an id twice in dev": (
        "squad", "x.json", squad(("q", "what")), squad(("q", "what"), ("q", "who")), 3,
        "dev.json: data[0].paragraphs[0].qas[1]: id 'q' is already that of data[0].paragraphs[0].qas[0].",
    ),
    "one class": (
        "classify", "x.tsv", TABLE.replace("y\n", "x\n"), None, 3,
        "x.tsv: every label (column 'label') is 'x'. Training needs at least two labels.",
    ),
    "one tag": ("tag", "x.conll", "a O\nb O\n", None, 3, "x.conll has fewer than two different tags."),
    "numbers and texts as labels": (
        "classify", "x.jsonl", jsonl({"text": "a", "label": 1}, {"text": "b", "label": "x"}), None, 3,
        "x.jsonl:2: label 'x' is not a whole number, and label '1' (x.jsonl:1) is one. Correct the file, or if all",
    ),
    "NaN as a label": ("classify", "x.jsonl", '{"text": "a", "label": NaN}\n', None, 3, "x.jsonl:1: the label (column"),
    "NaN as a value": (
        "regress", "x.tsv", "text\tlabel\na\t1\nb\tnan\n", None, 3,
        "x.tsv:3: column 'label' holds 'nan', not a finite number.",
    ),
    "no value": ("regress", "x.jsonl", '{"text": "a", "label": null}\n', None, 3, "holds None, not a finite number."),
    "NaN as a similarity": (
        "embed", "x.jsonl", '{"sentence1": "a", "sentence2": "b", "score": NaN}\n', None, 3, "holds nan, not a finite",
    ),
    "a broken tag": (
        "tag", "x.conll", "a B_PER\nb O\nc B-LOC\n", None, 3, "x.conll:1: the tag 'B_PER' does not have the form B-",
    ),
    "mixed columns": (
        "tag", "x.conll", "a NN O\nb O\nc NN B-LOC\n", None, 3, "x.conll:2 has 2 columns, and most lines have 3.",
    ),
    "a batch of one pair": (
        "embed", "x.jsonl", jsonl({"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d"}), None, 2,
        "train.batch_size = 1 is too small: the texts of an example are compared with those of the other examples",
    ),
    "one pair": (
        "embed", "x.jsonl", jsonl({"anchor": "a", "positive": "b"}), None, 3,
        "x.jsonl has 1 example, and the texts of an example are compared with those of the others: it needs 2 or more.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_is_refused_in_one_line(case: str, pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    task, name, content, dev, code, said = REFUSED[case]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    flags: dict[str, object] = {"data": path, "init": pretrained, "out": tmp_path / "run", "task__name": task}
    flags |= {"task__max_length": 64, "task__squad__max_query": 16, "train__steps": 1, "train__batch_size": 2}
    if dev is not None:
        flags["dev"] = tmp_path / f"dev{path.suffix}"
        (tmp_path / f"dev{path.suffix}").write_text(dev)
    if case == "a batch of one pair":
        flags["train__batch_size"] = 1
    done = lambert("finetune", **flags)
    shown = type(done)(done.code, done.out, done.err.replace(f"{tmp_path}/", ""))
    one_line(shown, code, said)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("task", "name", "content", "dev", "said"),
    [
        ("classify", "x.tsv", f"{TABLE}\tx\n", "text\tlabel\na\tx\n", "x.tsv has an empty text."),
        ("classify", "x.tsv", TABLE, "text\tlabel\na\tx\n", "note: no row of dev.tsv has the label 'y'."),
        ("tag", "x.conll", "a I-PER\nb O\nc B-LOC\nd I-PER\n", None, "1 example, 1 span that breaks IOB1"),
        ("squad", "x.json", squad(("q", "what " * 80)), None, "1 question longer than 16 tokens was cut"),
    ],
)
def test_what_is_read_for_the_greater_part_is_counted(
    task: str, name: str, content: str, dev: str | None, said: str, pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    path = tmp_path / name
    path.write_text(content)
    flags: dict[str, object] = {"data": path, "init": pretrained, "out": tmp_path / "run", "task__name": task}
    flags |= {"task__max_length": 64, "task__squad__max_query": 16, "train__steps": 1, "train__batch_size": 2}
    if dev is not None:
        flags["dev"] = tmp_path / "dev.tsv"
        (tmp_path / "dev.tsv").write_text(dev)
    done = lambert("finetune", **flags)
    assert done.code == 0, done.err
    assert said in done.out.replace(f"{tmp_path}/", "")


def test_a_recipe_for_another_task(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    path = tmp_path / "x.tsv"
    path.write_text(TABLE)
    recipe = Path(__file__).parents[2] / "recipes" / "squad-v1.1.toml"
    done = lambert("finetune", recipe, data=path, init=pretrained, out=tmp_path / "run")
    one_line(done, 3, "x.tsv is a table, and questions are read from SQuAD JSON", "set --task.name classify")
    assert not (tmp_path / "run").exists()
