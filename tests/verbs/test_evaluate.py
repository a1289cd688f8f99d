"""Scores and predictions files of fine-tuned models."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import one_line

from lambert.tasks.scores import examples

Lambert = Callable[..., Any]
Labelled = Callable[[str, str], Path]


@pytest.mark.parametrize("task", ["classify", "pair", "regress", "squad", "tag"])
def test_it_reproduces_the_scores_of_fine_tuning(
    task: str, tuned: Callable[[str], Path], labelled: Labelled, lambert: Lambert
) -> None:
    done = lambert("evaluate", "--json", model=tuned(task) / "model", data=labelled(task, "dev"))
    assert (done.code, done.err) == (0, "")
    before = json.loads((tuned(task) / "scores.json").read_text())
    assert json.loads(done.out) == pytest.approx(before, rel=1e-6, abs=1e-7)
    by_run = lambert("evaluate", "--json", model=tuned(task), data=labelled(task, "dev"), inference__micro_tokens=40)
    # Equal texts get values that differ by rounding when they are batched otherwise, which unties their ranks.
    untied = {name: value for name, value in json.loads(by_run.out).items() if not name.startswith("spearman")}
    assert untied == pytest.approx({name: before[name] for name in untied}, rel=1e-5, abs=1e-5)


def test_the_table_has_every_score_with_its_error(
    tuned: Callable[[str], Path], labelled: Labelled, lambert: Lambert
) -> None:
    shown = lambert("evaluate", model=tuned("classify"), data=labelled("classify", "dev")).out
    for name, value in json.loads((tuned("classify") / "scores.json").read_text()).items():
        line = next(line for line in shown.splitlines() if line.startswith(f"{name.removesuffix('_se')} "))
        assert (f"{value:.4f}" if name != "examples" else " 16") in line
    assert "16.0" not in shown


def test_the_json_has_the_notes_about_rows(tuned: Callable[[str], Path], tmp_path: Path, lambert: Lambert) -> None:
    rows = [{"text": "the river", "spans": []}, {"text": "a", "spans": [{"start": 0, "end": 9, "label": "X"}]}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = lambert("evaluate", "--json", model=tuned("tag"), data=tmp_path / "x.jsonl")
    assert done.code == 0, done.err
    assert any("1 of 2 rows left out" in note for note in json.loads(done.out)["notes"])


def test_the_training_file_is_recognised(tuned: Callable[[str], Path], labelled: Labelled, lambert: Lambert) -> None:
    done = lambert("evaluate", model=tuned("classify"), data=labelled("classify", "train"))
    assert f"note: the model was trained on rows of {labelled('classify', 'train')}" in done.out, done.err
    assert "trained on" not in lambert("evaluate", model=tuned("classify"), data=labelled("classify", "dev")).out


def test_a_file_that_was_divided_is_recognised_from_any_folder(
    pretrained: Path, labelled: Labelled, tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all.tsv").write_bytes(labelled("classify", "train").read_bytes())
    monkeypatch.chdir(tmp_path)
    done = lambert(
        "finetune", "--train.steps=1", "--train.batch-size=4", init=pretrained, data="all.tsv", dev=0.25, out="run"
    )
    assert done.code == 0, done.err
    monkeypatch.chdir("/")
    shown = lambert("evaluate", model=tmp_path / "run", data=tmp_path / "all.tsv").out
    assert "note: the model was trained on most rows of" in shown
    (part,) = tmp_path.glob("run-rows/*/train.jsonl")
    assert "note: the model was trained on rows of" in lambert("evaluate", model=tmp_path / "run", data=part).out


@pytest.mark.parametrize("flag", ["columns", "task.columns"])
def test_a_file_may_have_other_columns(
    flag: str, tuned: Callable[[str], Path], labelled: Labelled, tmp_path: Path, lambert: Lambert
) -> None:
    """The flag that the refusal names is one of evaluate and predict."""
    data, renamed = labelled("classify", "dev"), tmp_path / "renamed.tsv"
    renamed.write_text(data.read_text().replace("text\tlabel\n", "body\tkind\n", 1))
    refused = lambert("evaluate", model=tuned("classify"), data=renamed)
    assert (refused.code, "(--columns.label)" in refused.err) == (3, True), refused.err
    flags = [f"--{flag}.text=body", f"--{flag}.label=kind"]
    done, usual = (
        lambert("evaluate", "--json", *more, model=tuned("classify"), data=path)
        for path, more in ((renamed, flags), (data, []))
    )
    assert (done.code, done.out) == (0, usual.out), done.err
    answered = lambert("predict", flags[0], model=tuned("classify"), stdin='{"body": "the river"}\n')
    assert (answered.code, '"label"' in answered.out) == (0, True), answered.err


MISMATCHED = [
    ("classify", "x.tsv", "text\tkind\nthe river\tcalm\n", r"no column 'label' \(--columns\.label\)"),
    ("classify", "x.csv", "body,kind\nthe river,calm\n", r"by number, such as --columns\.text 1 --columns\.label 2\."),
    ("classify", "x.conll", "Rome B-LOC\n", r"is a CoNLL file, .*: use a model that was fine-tuned for the task tag\."),
    ("classify", "x.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n', r"are for tagging: use a model that was .* tag\."),
    ("classify", "x.jsonl", '{"text": "a", "label": ["b"]}\n', r"is a list, .* use a model .* the task multilabel;"),
    ("pair", "x.jsonl", '{"first": "a", "label": "b"}\n', r"\(--columns\.text-b\)"),
    ("tag", "x.conll", "the king\tx\na bird\ty\n", r"of several words, .*use a model that .* the task classify\."),
    ("tag", "x.jsonl", '{"text": "a", "label": "b"}\n', r"'tokens' is not a list of texts"),
    ("tag", "x.jsonl", '{"tokens": ["a"], "tags": ["X-Y"]}\n', r"'X-Y' .* or use a model that was .* with it\."),
    ("squad", "x.tsv", "text\tlabel\na\tb\n", r"For texts with labels use a model that .* the task classify\."),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "text", "message"), MISMATCHED)
def test_refusals_name_what_the_user_of_a_model_can_do(
    task: str, name: str, text: str, message: str, tuned: Callable[[str], Path], tmp_path: Path, lambert: Lambert
) -> None:
    (tmp_path / name).write_text(text)
    refused = lambert("evaluate", model=tuned(task), data=tmp_path / name)
    one_line(refused, 3)
    assert re.search(message, refused.err), refused.err
    assert not re.search(r"task\.(name|columns|labels)", refused.err)


def test_refusals_of_predict(tuned: Callable[[str], Path], lambert: Lambert) -> None:
    refused = lambert("predict", model=tuned("tag"), stdin='{"question": "a", "context": "b"}\n')
    one_line(refused, 3, "use a model that was fine-tuned for the task squad.")


def test_the_official_predictions_of_squad(
    tuned: Callable[[str], Path], labelled: Labelled, tmp_path: Path, lambert: Lambert
) -> None:
    path = tmp_path / "new" / "predictions.json"
    done = lambert("evaluate", model=tuned("squad"), data=labelled("squad", "dev"), predictions=path)
    assert done.code == 0
    assert str(path) in done.out
    answers, best = json.loads(path.read_text()), json.loads((path.parent / "predictions.nbest.json").read_text())
    paragraphs = json.loads(labelled("squad", "dev").read_text())["data"][0]["paragraphs"]
    contexts = {question["id"]: entry["context"] for entry in paragraphs for question in entry["qas"]}
    assert list(answers) == list(best) == list(contexts)
    assert all(answer in contexts[number] for number, answer in answers.items())


@pytest.mark.parametrize(("task", "name"), [("classify", "p.jsonl"), ("classify", "p.tsv"), ("tag", "p.jsonl")])
def test_predictions_are_a_row_an_example(
    task: str, name: str, tuned: Callable[[str], Path], labelled: Labelled, tmp_path: Path, lambert: Lambert
) -> None:
    path = tmp_path / name
    for _ in range(2):  # its own output is replaced
        assert lambert("evaluate", model=tuned(task), data=labelled(task, "dev"), predictions=path).code == 0
    assert len(path.read_text().splitlines()) == 16 + (path.suffix == ".tsv")


def test_the_scored_examples_are_those_of_the_run(
    tuned: Callable[[str], Path], labelled: Labelled, tmp_path: Path, lambert: Lambert
) -> None:
    path, data = tmp_path / "new" / "examples.jsonl", labelled("classify", "dev")
    for _ in range(2):  # its own output is replaced
        done = lambert("evaluate", model=tuned("classify"), data=data, examples=path)
        assert (done.code, f"examples  {path}" in done.out) == (0, True), done.err
    ours, theirs = (examples.read(file) for file in (path, tuned("classify") / "examples.jsonl"))
    assert (ours.formulas, ours.data_sha256) == (theirs.formulas, theirs.data_sha256)
    for one, other in zip(ours.rows, theirs.rows, strict=True):
        numbers = {name: value for name, value in other.items() if isinstance(value, float)}
        assert {name: one[name] for name in numbers} == pytest.approx(numbers, rel=1e-5, abs=1e-7)
        assert {**one, **numbers} == other
    path.write_text("mine\n")
    one_line(lambert("evaluate", model=tuned("classify"), data=data, examples=path), 2, "did not write it")
    one_line(
        lambert("evaluate", model=tuned("classify"), data=data, examples=tmp_path), 2, "is a folder", "(--examples)"
    )


def test_a_hugging_face_folder_with_a_head(
    tuned: Callable[[str], Path], labelled: Labelled, tmp_path: Path, lambert: Lambert
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder, model = tmp_path / "hf", tuned("classify") / "model"
    AutoModelForSequenceClassification.from_pretrained(model).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    kept = json.loads((folder / "config.json").read_text())
    kept.pop("lambert", None)
    (folder / "config.json").write_text(json.dumps(kept))
    data = labelled("classify", "dev")
    ours, theirs = (json.loads(lambert("evaluate", "--json", model=m, data=data).out) for m in (model, folder))
    assert theirs == pytest.approx(ours, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "code", "parts"),
    [
        ({"task": "squad"}, 2, ["'classify'", "'squad'"]),
        ({"model": "nowhere"}, 3, ["No such model folder: nowhere"]),
        ({"data": "nowhere.tsv"}, 3, ["nowhere.tsv"]),
        ({"data": "pyproject.toml"}, 3, ["pyproject.toml", ".tsv"]),
        ({"predictions": "."}, 2, [". is a folder: name the predictions file"]),
        ({"inference__micro_tokens": 0}, 2, ["micro_tokens = 0"]),
        ({"inference__device": "warp"}, 2, ["warp"]),
    ],
)
def test_what_does_not_fit(
    change: dict[str, object], code: int, parts: list[str], tuned: Callable[[str], Path], labelled: Labelled,
    lambert: Lambert,
) -> None:  # fmt: skip
    settings = {"model": tuned("classify"), "data": labelled("classify", "dev"), **change}
    one_line(lambert("evaluate", **settings), code, *parts)


def test_a_pretrained_model_has_nothing_to_be_scored_on(pretrained: Path, labelled: Labelled, lambert: Lambert) -> None:
    refused = lambert("evaluate", model=pretrained, data=labelled("classify", "dev"))
    assert refused.code == 2
    assert "not fine-tuned" in refused.err


def test_predictions_that_cannot_be_written(
    tuned: Callable[[str], Path], labelled: Labelled, tmp_path: Path, lambert: Lambert
) -> None:
    (tmp_path / "file").write_text("mine")
    path = tmp_path / "file" / "p.jsonl"
    refused = lambert("evaluate", model=tuned("classify"), data=labelled("classify", "dev"), predictions=path)
    assert refused.code == 2
    assert f"{path} cannot be written" in refused.err
    assert (tmp_path / "file").read_text() == "mine"
