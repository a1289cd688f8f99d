"""Data sets of SuperGLUE and thresholds of labels from the command line: fine-tuning, scores and predictions agree."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import one_line
from sklearn.metrics import f1_score

from lambert.core.errors import DataError, UsageError
from lambert.inference.text_model import load

Lambert = Callable[..., Any]
FLAGS = {
    "optim__name": "adamw", "optim__lr": 3e-3, "train__batch_size": 8, "train__steps": 30, "train__threads": 1,
    "task__max_length": 48, "train__save_every": 50,
}  # fmt: skip
CALM, WILD = ("the sea was calm", "the king slept"), ("the storm broke the ship", "the wind rose over the stone")


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lines(called: Any) -> list[dict[str, Any]]:
    assert called.code == 0, called.err
    return [json.loads(line) for line in called.out.splitlines()]


def copa() -> list[Any]:
    return [
        {
            "premise": (CALM, WILD)[n % 2][n % 3 % 2], "choice1": CALM[n % 2], "choice2": WILD[n % 2],
            "question": ("cause", "effect")[n % 3 % 2], "label": n % 2, "idx": n,
        }
        for n in range(24)
    ]  # fmt: skip


def multirc() -> list[Any]:
    answers = [
        [{"text": text, "idx": n, "label": int(text in WILD)} for n, text in enumerate((*CALM, *WILD))][k:]
        for k in (0, 1)
    ]
    return [
        {
            "idx": n, "version": 1.1,
            "passage": {
                "text": f"the ship left the harbour {CALM[n % 2]}",
                "questions": [{"question": f"what happened {k}?", "idx": k, "answers": answers[k]} for k in (0, 1)],
            },
        }
        for n in range(8)
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "rows", "size"), [("copa", copa(), 24), ("multirc", multirc(), 56)])
def test_a_data_set_of_superglue_end_to_end(
    name: str, rows: list[Any], size: int, pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    path, out = written(tmp_path / "train.jsonl", rows), tmp_path / "run"
    (recipe := tmp_path / "recipe.toml").write_text('[task]\nname = "classify"\n')
    done = lambert("finetune", recipe, data=path, dev=path, init=pretrained, out=out, task=f"superglue/{name}", **FLAGS)
    assert done.code == 0, done.err
    scores = json.loads((out / "scores.json").read_text())
    (again,) = lines(lambert("evaluate", "--json", model=out, data=path, predictions=tmp_path / "p.jsonl"))
    again.pop("notes", None)
    assert again == pytest.approx(scores, rel=1e-6, abs=1e-7)
    assert scores["examples"] == size
    said = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    if name == "copa":
        assert scores["accuracy"] == np.mean([row["choice"] == n % 2 for n, row in enumerate(said)])
        asked, key = [{key: row[key] for key in row if key != "label"} for row in rows], "choice"
    else:
        asked = [
            {"paragraph": row["passage"]["text"], "question": question["question"], "answer": answer["text"]}
            for row in rows for question in row["passage"]["questions"] for answer in question["answers"]
        ]  # fmt: skip
        key, truth = "label", [answer["answer"] in WILD for answer in asked]
        right = [(row["label"] == "True") == true for row, true in zip(said, truth, strict=True)]
        assert scores["f1"] == pytest.approx(f1_score(truth, [row["label"] == "True" for row in said]))
        assert scores["exact_match"] == np.mean(
            [all(part) for n in range(0, 56, 7) for part in (right[n : n + 4], right[n + 4 : n + 7])]
        )
        assert list(scores)[:3] == ["f1", "f1_se", "exact_match"]
    found = lines(lambert("predict", model=out, stdin="".join(json.dumps(row) + "\n" for row in asked)))
    assert [row[key] for row in found] == [row[key] for row in said]


def test_a_model_of_several_columns_reads_rows(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    rows = [{"title": CALM[n % 2], "body": WILD[n % 2], "label": "ab"[n % 2]} for n in range(8)]
    flags = {**FLAGS, "train__steps": 1, "task__columns__text": "{title}: {body}"}
    out = tmp_path / "run"
    path = written(tmp_path / "train.jsonl", rows)
    assert lambert("finetune", data=path, init=pretrained, out=out, **flags).code == 0
    model = load(out)
    assert model(rows)[0]["label"] in ("a", "b")
    with pytest.raises(UsageError, match="text 1 is a text, and the model reads the columns title, body: give a row"):
        model("the sea")
    with pytest.raises(DataError, match=r"text 1: no column 'body' \(--columns\.text\)"):
        model({"title": "the sea"})
    joined = [{"text": f"{row['title']}: {row['body']}"} for row in rows]
    plain = lambert(
        "predict", "--columns.text=text", model=out, stdin="".join(json.dumps(row) + "\n" for row in joined)
    )
    assert [row["probability"] for row in lines(plain)] == pytest.approx([row["probability"] for row in model(rows)])


def test_data_sets_that_are_refused(pretrained: Path, tmp_path: Path, lambert: Lambert) -> None:
    path = written(tmp_path / "train.jsonl", [{"text": "a", "target": {}, "label": True}])
    done = lambert("finetune", data=path, init=pretrained, out=tmp_path / "run", task__name="superglue/wsc")
    one_line(done, 2, "task.name = 'superglue/wsc' is not supported: the data set asks about two places of a text")
    assert not (tmp_path / "run").exists()


def test_thresholds_of_labels_are_chosen_on_dev_and_used_later(
    pretrained: Path, tmp_path: Path, lambert: Lambert
) -> None:
    draw = np.random.default_rng(3)
    rows = [
        {"text": f"{CALM[n % 2]} and {WILD[n % 2]}", "label": [label for label in "abc" if draw.random() < 0.4]}
        for n in range(40)
    ]
    path, dev = written(tmp_path / "train.jsonl", rows[:24]), written(tmp_path / "dev.jsonl", rows[24:])
    flags = {**FLAGS, "task__name": "multilabel", "task__label_thresholds": "best", "train__steps": 4}
    refused = lambert("finetune", data=path, init=pretrained, out=tmp_path / "run", **flags)
    one_line(refused, 2, 'task.label_thresholds = "best" is chosen on dev: name the dev file')
    out = tmp_path / "run"
    assert lambert("finetune", data=path, dev=dev, init=pretrained, out=out, **flags).code == 0
    scores = json.loads((out / "scores.json").read_text())
    task = json.loads((out / "model" / "config.json").read_text())["lambert"]["task"]
    limits_L = np.array(task["label_thresholds"])
    assert limits_L.shape == (3,)
    (again,) = lines(lambert("evaluate", "--json", model=out, data=dev))
    again.pop("notes", None)
    assert again == pytest.approx(scores, rel=1e-6, abs=1e-7)
    found = lines(lambert("predict", model=out, stdin=dev.read_text()))
    chances_NL = np.array([[row["probabilities"][label] for label in "abc"] for row in found])
    truth_NL = np.array([[label in row["label"] for label in "abc"] for row in rows[24:]])
    best = [
        max(f1_score(truth_N, chances_N >= value, zero_division=0.0) for value in chances_N)
        for truth_N, chances_N in zip(truth_NL.T, chances_NL.T, strict=True)
    ]
    assert scores["f1_macro"] == pytest.approx(np.mean(best))
    assert [set(row["labels"]) for row in found] == [
        {label for label, has in zip("abc", has_L, strict=True) if has} for has_L in chances_NL >= limits_L
    ]
    kept = [json.loads(line)["prediction"] for line in (out / "examples.jsonl").read_text().splitlines()[1:]]
    assert kept == [row["labels"] for row in found]
