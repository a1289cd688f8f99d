"""Files of predictions: every form gives the same scores, which are those of scikit-learn, and errors name the row."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from squads import one

from lambert.core.errors import DataError, UsageError
from lambert.tasks import Columns, TaskConfig
from lambert.tasks.reading.files import digest
from lambert.tasks.reading.table import answer_rows
from lambert.tasks.scores.examples import Examples
from lambert.tasks.scores.formulas import Formula, value
from lambert.tasks.scores.predictions import score_file, task_of

LABELS = ("land", "sea", "air")
TRUTH = [LABELS[n] for n in np.random.default_rng(1).integers(0, 3, 40)]
FOUND = [LABELS[n] for n in np.random.default_rng(2).integers(0, 3, 40)]
CLASSIFY = TaskConfig(name="classify", labels=LABELS)
FORMULAS = {
    "accuracy": Formula("mean", ("correct",)), "f1_macro": Formula("f1_macro"), "matthews": Formula("matthews"),
    "loss": Formula("mean", ("loss",), lower_is_better=True),
}  # fmt: skip


@pytest.fixture
def gold(tmp_path: Path) -> Path:
    path = tmp_path / "dev.tsv"
    path.write_text("text\tlabel\n" + "".join(f"a\t{label}\n" for label in TRUTH))
    return path


def like(gold: Path, truth: Sequence[Any] = TRUTH, formulas: dict[str, Formula] = FORMULAS) -> Examples:
    return Examples([{"text": "a", "truth": one, "loss": 1.0} for one in truth], formulas, "x", str(gold), digest(gold))


def scores(found: Examples) -> dict[str, float]:
    return {name: value(found.rows, formula) for name, formula in found.formulas.items()}


def lines(rows: Sequence[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


NUMBERED = [*enumerate(FOUND)]
FORMS: dict[str, tuple[str, str]] = {
    "a label a line": (".txt", "".join(f"{label}\n" for label in FOUND)),
    "with a header": (".tsv", "prediction\n" + "".join(f"{label}\n" for label in FOUND)),
    "of GLUE": (".tsv", "index\tprediction\n" + "".join(f"{n}\t{label}\n" for n, label in NUMBERED)),
    "numbers": (".tsv", "index\tprediction\n" + "".join(f"{n}\t{LABELS.index(label)}\n" for n, label in NUMBERED)),
    "ids in another order": (".csv", "label,id\n" + "".join(f'"{label}",{n}\n' for n, label in NUMBERED[::-1])),
    "two columns": (".tsv", "".join(f"{n}\t{label}\n" for n, label in NUMBERED[::-1])),
    "JSON lines": (".jsonl", lines([{"label": label, "probability": 0.5} for label in FOUND])),
    "JSON lines with ids": (".jsonl", lines([{"id": str(n), "prediction": label} for n, label in NUMBERED[::-1]])),
    "JSON lines as .json": (".json", lines([{"label": label} for label in FOUND])),
    "an object": (".json", json.dumps({str(n): label for n, label in NUMBERED[::-1]})),
    "a list": (".json", json.dumps(FOUND)),
    "a list of objects": (".json", json.dumps([{"label": label} for label in FOUND])),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packed", [False, True])
def test_every_form_gives_the_scores_of_scikit_learn(form: str, packed: bool, gold: Path, tmp_path: Path) -> None:
    ending, text = FORMS[form]
    path = tmp_path / f"predictions{ending}{'.gz' * packed}"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    found = score_file(path, gold, CLASSIFY, like(gold))
    expected = {
        "accuracy": accuracy_score(TRUTH, FOUND), "f1_macro": f1_score(TRUTH, FOUND, average="macro"),
        "matthews": matthews_corrcoef(TRUTH, FOUND),
    }  # fmt: skip
    assert scores(found) == pytest.approx(expected)  # and no loss, which needs probabilities
    assert [row["truth"] for row in found.rows] == TRUTH
    assert (found.data, found.data_sha256) == (str(gold), digest(gold))


def test_rows_are_matched_by_their_numbers_as_in_the_files_of_glue(tmp_path: Path) -> None:
    gold = tmp_path / "qqp.tsv"
    gold.write_text("id\ttext\tlabel\n" + "".join(f"{900 - n}\ta\t{label}\n" for n, label in enumerate(TRUTH)))
    path = tmp_path / "found.tsv"
    path.write_text("index\tprediction\n" + "".join(f"{n}\t{label}\n" for n, label in reversed([*enumerate(FOUND)])))
    assert scores(score_file(path, gold, CLASSIFY, like(gold)))["accuracy"] == accuracy_score(TRUTH, FOUND)


def test_the_index_is_the_number_of_the_row_though_ids_are_numbers_too(tmp_path: Path) -> None:
    gold, path = tmp_path / "dev.tsv", tmp_path / "found.tsv"
    shuffled = [*range(1, len(TRUTH)), 0]
    gold.write_text("id\ttext\tlabel\n" + "".join(f"{n}\ta\t{one}\n" for n, one in zip(shuffled, TRUTH, strict=True)))
    path.write_text("index\tprediction\n" + "".join(f"{n}\t{label}\n" for n, label in enumerate(FOUND)))
    assert scores(score_file(path, gold, CLASSIFY, like(gold)))["accuracy"] == accuracy_score(TRUTH, FOUND)


def test_rows_are_matched_by_the_ids_of_the_labelled_file(tmp_path: Path) -> None:
    gold, path = tmp_path / "dev.jsonl", tmp_path / "p.jsonl"
    gold.write_text(lines([{"id": f"q{n}", "text": "a", "label": label} for n, label in enumerate(TRUTH)]))
    path.write_text(lines([{"id": f"q{n}", "label": label} for n, label in enumerate(TRUTH)][::-1]))
    assert scores(score_file(path, gold, CLASSIFY, like(gold)))["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("name", "truth", "found", "expected"),
    [
        ("multilabel", [["a", "b"], [], ["c"]], [["b"], ["a"], "c"], {"f1_micro": 4 / 6, "exact_match": 1 / 3}),
        ("multilabel", [["a", "b"], [], ["c"]], ["b,a", "", "c"], {"f1_micro": 1.0, "exact_match": 1.0}),
        ("regress", [1.0, 2.0, 4.0], [1, "2.5", 3.5], {"mse": 0.5 / 3, "pearson": 0.953821}),
        ("choice", ["0", "1", "2"], [0, "B", "1"], {"accuracy": 2 / 3}),
    ],
)  # fmt: skip
def test_other_tasks(name: str, truth: list[Any], found: list[Any], expected: dict[str, float], tmp_path: Path) -> None:
    gold, path = tmp_path / "dev.jsonl", tmp_path / "p.jsonl"
    gold.write_text(lines([{"text": "a"}] * 3))
    path.write_text(lines([{"prediction": one} for one in found]))
    formulas = {
        "f1_micro": Formula("f1_of_sums", ("labels_correct", "labels_true", "labels_predicted")),
        "exact_match": Formula("mean", ("correct",)), "accuracy": Formula("mean", ("correct",)),
        "mse": Formula("mean", ("squared_error",)), "pearson": Formula("pearson"),
    }  # fmt: skip
    kept = like(gold, truth, {metric: formulas[metric] for metric in expected})
    assert scores(score_file(path, gold, TaskConfig(name=name), kept)) == pytest.approx(expected)


MULTILABEL = [["a", "b"], [], ["c"], []]


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (".txt", "b,a\n\nc\n\n"),
        (".tsv", "prediction\nb,a\n\nc\n\n"),
        (".csv", 'labels\n"b,a"\n\nc\n\n'),
        (".tsv", "index\tprediction\n0\tb,a\n1\t\n2\tc\n3\t\n"),
        (".jsonl", '{"labels": ["a", "b"]}\n{"labels": []}\n{"labels": ["c"]}\n{"labels": []}\n'),
    ],
)
def test_a_text_without_a_label(ending: str, text: str, tmp_path: Path) -> None:
    gold, path = tmp_path / "dev.jsonl", tmp_path / f"p{ending}"
    gold.write_text(lines([{"text": "a", "label": labels} for labels in MULTILABEL]))
    kept = like(gold, MULTILABEL, {"exact_match": Formula("mean", ("correct",))})
    path.write_text(text)
    assert scores(score_file(path, gold, TaskConfig(name="multilabel"), kept)) == {"exact_match": 1.0}
    if ending == ".txt":
        path.write_text(text + "\n")
        with pytest.raises(DataError, match=r"numbers of rows differ: 5 in .*, 4 in "):
            score_file(path, gold, TaskConfig(name="multilabel"), kept)


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("columns", [Columns(), Columns("1", label="2"), Columns("1", label="2", header=False)])
def test_the_header_of_the_labelled_file_is_recognised(header: bool, columns: Columns, tmp_path: Path) -> None:
    """The settings of a run, or the lack of them beside a file of scored examples, may say otherwise."""
    gold, path = tmp_path / "dev.tsv", tmp_path / "p.txt"
    gold.write_text("text\tlabel\n" * header + "".join(f"{label}\t{label}\n" for label in TRUTH))
    path.write_text("".join(f"{label}\n" for label in FOUND))
    config = TaskConfig(name="classify", labels=LABELS, columns=columns)
    assert scores(score_file(path, gold, config, like(gold)))["accuracy"] == accuracy_score(TRUTH, FOUND)


def test_numbers_need_the_order_of_the_labels(gold: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("".join(f"{LABELS.index(label)}\n" for label in FOUND))
    with pytest.raises(DataError, match=r"p\.txt:1: label '\d' is a number, and .* name the run folder instead\.$"):
        score_file(path, gold, TaskConfig(name="classify"), like(gold))


PARAGRAPHS = [
    {"idx": number, "passage": {"text": "p", "questions": [
        {"question": "q", "idx": 2 * number + question, "answers": [
            {"text": "a", "idx": 4 * number + 2 * question + answer, "label": (number + answer) % 2}
            for answer in range(2)
        ]} for question in range(2)
    ]}} for number in range(3)
]  # fmt: skip


def test_answers_of_multirc(tmp_path: Path) -> None:
    """Rows in order, rows with the numbers of the answers in any order, and the file of predictions for SuperGLUE."""
    gold, path = tmp_path / "val.jsonl", tmp_path / "p.jsonl"
    gold.write_text(lines(PARAGRAPHS))
    config = TaskConfig(name="classify", labels=("False", "True"), columns=Columns("paragraph", "{question} {answer}"))
    rows = [row for paragraph in PARAGRAPHS for row in answer_rows(paragraph, "x")]
    truth = [config.labels[row["label"]] for row in rows]
    kept = like(gold, truth, {"accuracy": Formula("mean", ("correct",))})
    said = [{"idx": row["idx"], "label": 1 - row["label"] if n == 5 else row["label"]} for n, row in enumerate(rows)]
    bare = json.loads(json.dumps(PARAGRAPHS))
    bare[1]["passage"]["questions"][0]["answers"][1]["label"] = said[5]["label"]
    for paragraph in bare:
        del paragraph["passage"]["text"]
        for question in paragraph["passage"]["questions"]:
            del question["question"]
    for found in (
        [{"label": str(bool(row["label"])), "probability": 0.5} for row in said], said, said[::-1], bare, bare[::-1],
    ):  # fmt: skip
        path.write_text(lines(found))
        assert [row["correct"] for row in score_file(path, gold, config, kept).rows] == [n != 5 for n in range(12)]
    path.write_text(lines(said[1:]))
    with pytest.raises(DataError, match="no prediction for the id 'answer 0, paragraph 0, question 0' of"):
        score_file(path, gold, config, kept)


CONLL = "Ann B-PER\nlives O\n\nRome B-LOC\nfell O\n"


@pytest.mark.parametrize(
    ("ending", "text", "f1"),
    [
        (".conll", CONLL, 1.0),
        (".conll", CONLL.replace("B-LOC", "O"), 2 / 3),
        (".conll", CONLL.replace("fell O", "fell I-LOC"), 0.5),
        (".jsonl", lines([{"tags": ["B-PER", None]}, {"tags": ["B-ORG", "O"]}]), 0.5),
    ],
)
def test_tags(ending: str, text: str, f1: float, tmp_path: Path) -> None:
    gold, path = tmp_path / "dev.conll", tmp_path / f"p{ending}"
    gold.write_text(CONLL)
    path.write_text(text)
    assert scores(score_file(path, gold, task_of(gold), None))["span_f1"] == pytest.approx(f1)


def test_answers(tmp_path: Path) -> None:
    gold, path = tmp_path / "dev.json", tmp_path / "p.json"
    gold.write_text(json.dumps(one("Ann was born in 1895.", [{"text": "in 1895", "answer_start": 13}])))
    path.write_text('{"q1": "1895"}')
    found = score_file(path, gold, task_of(gold), None)
    assert scores(found) == pytest.approx({"f1": 200 / 3, "exact_match": 0.0})
    for text, part in (
        ("{}", "no prediction for the id 'q1'"),
        ('{"q1": "a", "q2": "b"}', "a prediction for the id 'q2', which"),
        ('{"q1": 1}', "not an object of answers"),
        ("[", "not a JSON file"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=part):
            score_file(path, gold, task_of(gold), None)


@pytest.mark.parametrize(
    ("ending", "change", "part"),
    [
        (".txt", lambda rows: rows[1:], r"numbers of rows differ: 39 in .*p.txt, 40 in .*dev.tsv\."),
        (".tsv", lambda rows: ["index\tprediction\n", *rows[:1] * 2], "the id '0' occurs twice"),
        (".tsv", lambda rows: ["index\tprediction\n", *rows[1:]], "no prediction for the id '0'"),
        (".tsv", lambda rows: [*rows, "40\tsea\n"], "a prediction for the id '40', which"),
        (".tsv", lambda rows: [*rows[:-1], "39\tsee\n"], ":40: label 'see' is not among"),
        (".tsv", lambda rows: [row.replace("\t", "\tx\t") for row in rows], "has 3 columns"),
        (".jsonl", lambda rows: ['{"text": "a"}\n'] * 40, "no column 'prediction'"),
    ],
)
def test_wrong_predictions_are_named(
    ending: str, change: Callable[[list[str]], list[str]], part: str, gold: Path, tmp_path: Path
) -> None:
    path, own = tmp_path / f"p{ending}", ending == ".txt"
    path.write_text("".join(change([f"{label}\n" if own else f"{n}\t{label}\n" for n, label in NUMBERED])))
    with pytest.raises(DataError, match=part):
        score_file(path, gold, CLASSIFY, like(gold))


def test_an_id_that_two_labelled_rows_have_is_named(gold: Path, tmp_path: Path) -> None:
    ids = [0, *range(len(TRUTH) - 1)]
    gold.write_text("id\ttext\tlabel\n" + "".join(f"{n}\ta\t{label}\n" for n, label in zip(ids, TRUTH, strict=True)))
    path = tmp_path / "p.tsv"
    path.write_text("id\tprediction\n" + "".join(f"{n}\tsea\n" for n in ids[1:]))
    with pytest.raises(DataError, match=r"dev\.tsv: the id '0' occurs twice"):
        score_file(path, gold, CLASSIFY, like(gold))


def test_wrong_tags_are_named(tmp_path: Path) -> None:
    gold, path = tmp_path / "dev.conll", tmp_path / "p.conll"
    gold.write_text(CONLL)
    for text, part in (
        (CONLL[: CONLL.index("\n\n") + 1], "sentences differ: 1 in .*p.conll, 2 in"),
        (CONLL + "x O\n", "has 3 tags, and"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=part):
            score_file(path, gold, task_of(gold), None)


def test_what_a_file_does_not_say(gold: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name also a run"):
        task_of(gold)
    with pytest.raises(UsageError, match="not for 'embed'"):
        score_file(gold, gold, TaskConfig(name="embed", columns=Columns()), None)
