"""SQuAD as a task: its files, their versions, scores, predictions files and rows of questions."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from json_lines import predict
from squads import SETTINGS, one, outputs_of, write
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from lambert.core.errors import DataError, UsageError
from lambert.tasks import SquadConfig, TaskConfig, create, learn, parse_task
from lambert.tasks.scores.examples import shorten
from lambert.tasks.scores.formulas import value
from lambert.tasks.squad.answers import Answer, Candidate
from lambert.tasks.squad.text import read_squad
from lambert.tasks.task import is_predictions
from lambert.wings.corpus.tokens.vocabulary import train_bytes


def test_a_perfect_model_scores_a_hundred(golden: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path) -> None:
    for file in golden["files"]:
        path = write(tmp_path, file)
        task, train = learn(TaskConfig(name="squad", max_length=160), tokenizer, path)
        outputs = []
        for s in range(train.size(0)):
            batch = train.collate(np.zeros(1, dtype=np.int64), np.array([s]))
            logits = torch.zeros(batch.tokens, 2)
            start, end = batch.targets["span"].labels_N[0].tolist()
            logits[start, 0] = logits[end, 1] = 10.0 if start else 1.0
            outputs.append({"span": logits})
        data = task.read(path)
        predictions = task.predictions(data, outputs)
        scores = task.score(data, predictions)
        assert scores["exact_match"] > 97.0  # an answer may be a part of a word
        assert scores["f1"] >= scores["exact_match"]
        if file["version"] == "2.0":
            assert scores["best_f1"] >= scores["f1"]
            assert scores["no_answer_exact_match"] == 100.0


TEXT = "他说他来了。 In Rome, near Rome (Rome-rome)\tand\n Rome\u3000 他了。"
"""Answers that are parts of words, that occur several times in a word, and among several kinds of white space."""


def xlm_r() -> Tokenizer:
    """A tokenizer of XLM-R's kind, in which "来了" has the mark of a word's beginning if it is encoded alone."""
    pieces = ["▁", "来了", "▁in", "Rome", "▁near", *sorted({*TEXT} - {" "})]
    scores = [("<s>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((piece, -9.0 - len(piece)) for piece in pieces)]
    tokenizer = Tokenizer(models.Unigram(scores, 2))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer


UNUSUAL = {
    "unigram": xlm_r,
    "bytes": lambda: train_bytes(["in Rome, in Rome"] * 9, vocabulary=270, lowercase=False),
    "lower": lambda: train_bytes(["in Rome, in Rome"] * 9, vocabulary=270, lowercase=True),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["wordpiece", *UNUSUAL])
@pytest.mark.parametrize("answer", ["他", "来了", "Rome", "rome", "说他", "Rome (", "near Rome", "。"])
def test_answers_are_learnt_and_found_where_they_are(
    kind: str, answer: str, wordpiece: Callable[[list[str]], Tokenizer], tmp_path: Path
) -> None:
    pieces = ["[UNK]", "[CLS]", "[SEP]", *"他说来了。,()-", "in", "near", "rome", "and"]
    tokenizer = wordpiece(pieces) if kind == "wordpiece" else UNUSUAL[kind]()
    starts = [match.start() for match in re.finditer(re.escape(answer), TEXT)]
    assert starts
    for start in starts:
        path = write(tmp_path, one(TEXT, [{"text": answer, "answer_start": start}]))
        task, train = learn(TaskConfig(name="squad", max_length=160), tokenizer, path)
        batch = train.collate(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
        first, last = batch.targets["span"].labels_N[0].tolist()
        logits = torch.zeros(batch.tokens, 2)
        logits[first, 0] = logits[last, 1] = 10.0
        (row,) = task.rows(train, task.predictions(train, [{"span": logits}]))
        assert (row["answer"], row["start"], row["end"]) == (answer, start, start + len(answer))


def test_a_span_of_white_space_is_no_answer() -> None:
    task = create(TaskConfig(name="squad", max_length=160), UNUSUAL["bytes"]())
    data = task.parse([{"question": "?", "context": "  Rome \n"}], ["line 1"])
    logits = torch.zeros(int(data.lengths_S[0]), 2)
    logits[int(data.first.lengths_S[0]) + 2] = 10.0  # the space at the beginning
    assert task.rows(data, task.predictions(data, [{"span": logits}]))[0]["answer"] == "Rome"
    for context in ("", " \n "):
        with pytest.raises(DataError, match="line 1: 'context' is empty"):
            task.parse([{"question": "?", "context": context}], ["line 1"])


def test_writes_the_official_file_and_rows(golden: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path) -> None:
    task = create(SETTINGS["narrow"], tokenizer)
    data = task.read(write(tmp_path, golden["files"][1]))
    predictions = task.predictions(data, outputs_of(data))
    out = tmp_path / "deep" / "predictions.json"
    files = task.write(out, data, predictions)
    assert all(is_predictions(file.read_bytes()) for file in files)
    assert [file.name for file in files] == ["predictions.json", "predictions.nbest.json", "predictions.null_odds.json"]
    assert list(json.loads(out.read_text(encoding="utf-8")).items()) == [
        (question.id, answer.choose(-30.0).text) for question, answer in zip(data.questions, predictions, strict=True)
    ]
    odds = json.loads(files[2].read_text(encoding="utf-8"))
    texts = json.loads(out.read_text(encoding="utf-8"))
    assert all((texts[name] == "") == (odds[name] > -30.0) for name in odds)
    assert not list(out.parent.glob(".*"))


def test_predicts_rows_like_the_file(golden: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = golden["files"][0]
    stored = learn(SETTINGS["narrow"], tokenizer, write(tmp_path, file))[0].model_config()
    task = create(parse_task(json.loads(json.dumps(stored))), tokenizer)
    data = task.read(write(tmp_path, file))
    texts = [answer.choose(-30.0).text for answer in task.predictions(data, outputs_of(data))]
    lines = [
        json.dumps({"id": qa["id"], "question": qa["question"], "context": paragraph["context"]})
        for paragraph in file["data"][0]["paragraphs"]
        for qa in paragraph["qas"]
    ]
    rows = list(predict(task, outputs_of, iter(lines), chunk=16))
    assert [row["answer"] for row in rows] == texts
    assert [row["id"] for row in rows] == [question.id for question in data.questions]
    for row, line in zip(rows, lines, strict=True):
        assert json.loads(line)["context"][row["start"] : row["end"]].split() == row["answer"].split()
        assert 0.0 < row["probability"] <= 1.0


def test_a_threshold_found_on_dev_stays_with_the_model(
    golden: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = write(tmp_path, golden["files"][1])
    squad = SquadConfig(stride=32, max_query=24, null_threshold="best")
    task, _ = learn(TaskConfig(name="squad", max_length=96, squad=squad), tokenizer, path)
    data = task.read(path)
    predictions = task.predictions(data, outputs_of(data))
    scores = task.score(data, predictions)
    again = create(parse_task(json.loads(json.dumps(task.tune(data, predictions).model_config()))), tokenizer)
    assert again.config.squad.null_threshold == scores["best_f1_threshold"] != 0.0
    assert again.score(data, predictions) == scores
    assert scores["f1"] == pytest.approx(scores["best_f1"])
    assert again.tune(data, predictions) is again
    texts = [row["answer"] for row in again.rows(data, predictions)]
    assert [row["prediction"] for row in again.examples(data, predictions).rows] == [shorten(text) for text in texts]
    files = again.write(tmp_path / "out.json", data, predictions)
    assert list(json.loads(files[0].read_text()).values()) == texts
    fixed = create(replace(again.config, squad=replace(squad, version="2.0", null_threshold=0.0)), tokenizer)
    assert fixed.score(data, predictions)["f1"] < scores["f1"]
    assert [row["answer"] for row in task.rows(data, predictions)] == [
        row["answer"] for row in fixed.rows(data, predictions)
    ]


def test_the_best_threshold_needs_questions_without_an_answer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    best = SquadConfig(null_threshold="best")
    with pytest.raises(
        UsageError, match=r"task\.squad\.null_threshold = .best. is for version 2\.0, and .*squad\.json"
    ):
        learn(TaskConfig(name="squad", squad=best), tokenizer, write(tmp_path, one("1895", [GOOD])))


GOOD = {"text": "1895", "answer_start": 0}
BAD = [
    ([1, 2], r"is a JSON list, a SQuAD file is an object"),
    ({"version": "1.1"}, r"'data' is missing. Keys found: version"),
    ({"data": {}}, r"'data' is a object"),
    ({"data": []}, r"holds no questions"),
    ({"data": ["x"]}, r"data\[0\] is a text, not an object"),
    ({"data": [{"paragraphs": [{"qas": []}]}]}, r"data\[0\]\.paragraphs\[0\]: 'context' is missing"),
    ({"data": [{"paragraphs": [{"context": "x"}]}]}, r"data\[0\]\.paragraphs\[0\]: 'qas' is missing"),
    ({"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "a", "question": "?"}]}]}]}, r"qas\[0\]: 'answers'"),
    ({"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "a", "answers": []}]}]}]}, r"qas\[0\]: 'question'"),
    ({"data": [{"paragraphs": [{"context": "x", "qas": [{"question": "?", "answers": []}]}]}]}, r"qas\[0\]: 'id' is"),
    (one("x", [{"answer_start": 0}]), r"qas\[0\]\.answers\[0\]: 'text' is missing"),
    (one("x", [{"text": "x", "answer_start": "0"}]), r"answers\[0\]: 'answer_start' is a text"),
    (one("x", [], is_impossible=False), r"qas\[0\]: neither answers nor"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "message"), BAD)
def test_malformed_files(tokenizer: Tokenizer, tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        create(TaskConfig(name="squad"), tokenizer).read(write(tmp_path, value))
    assert "squad.json" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_duplicate_ids_name_both_places(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = one("1895", [GOOD])
    file["data"].append(one("1895", [GOOD])["data"][0])
    with pytest.raises(DataError, match=r"data\[1\]\.paragraphs\[0\]\.qas\[0\]: id 'q1' is already that of data\[0\]"):
        create(TaskConfig(name="squad"), tokenizer).read(write(tmp_path, file))


def test_not_json_or_not_there(tokenizer: Tokenizer, tmp_path: Path) -> None:
    task = create(TaskConfig(name="squad"), tokenizer)
    path = tmp_path / "squad.json"
    for content in (b"{", b"\xff\x00", b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is not a JSON file in UTF-8"):
            task.read(path)
    with pytest.raises(DataError, match="No such file"):
        task.read(tmp_path / "other.json")
    with pytest.raises(DataError, match=r"x\.tsv\.gz is a table, .* set --task.name classify"):
        task.read(tmp_path / "x.tsv.gz")


def test_versions(tokenizer: Tokenizer, tmp_path: Path) -> None:
    impossible = write(tmp_path, one("1895", [], is_impossible=True))
    with pytest.raises(DataError, match=r'q?as\[0\] has no answer: set task\.squad\.version = "2\.0"'):
        learn(TaskConfig(name="squad", squad=SquadConfig(version="1.1")), tokenizer, impossible)
    task, data = learn(TaskConfig(name="squad"), tokenizer, impossible)
    assert task.config.squad.version == "2.0"
    batch = data.collate(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    assert batch.targets["span"].labels_N.tolist() == [[0, 0]]
    assert (
        learn(TaskConfig(name="squad"), tokenizer, write(tmp_path, one("1895", [GOOD])))[0].config.squad.version
        == "1.1"
    )


def test_settings_that_cannot_be() -> None:
    for wrong in (
        {"stride": 0},
        {"max_query": 0},
        {"max_answer": 0},
        {"best": 0},
        {"version": "3"},
        {"bad_answers": "no"},
        {"language": "fr"},
        {"null_threshold": "bets"},
        {"null_threshold": float("nan")},
    ):
        with pytest.raises(UsageError, match=rf"task\.squad\.{next(iter(wrong))} = "):
            SquadConfig(**wrong)


ROWS = [
    {"id": "a", "question": "Who?", "context": "Ann lives here.", "answers": {"text": ["Ann"], "answer_start": [0]}},
    {"id": "b", "question": "What?", "context": "Bob.", "answers": {"text": ["Bob", "B"], "answer_start": [0, 0]}},
    {"id": "c", "question": "Why?", "context": "Ann lives here.", "answers": {"text": [], "answer_start": []}},
]
"""Questions as the data sets squad and squad_v2 of the Hugging Face Hub have them."""


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.parquet", "set"])
@pytest.mark.parametrize("count", [2, 3])
def test_rows_of_questions(name: str, count: int, tmp_path: Path) -> None:
    path, rows = tmp_path / name, ROWS[:count]
    if path.suffix in (".jsonl", ".json"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        arrow = pytest.importorskip("pyarrow")
        table = arrow.Table.from_pylist(rows)
        if path.suffix:
            pytest.importorskip("pyarrow.parquet").write_table(table, path)
        else:
            path.mkdir()
            (path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
            with (path / "data.arrow").open("wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)
    found = read_squad(path)
    assert found.contexts == ["Ann lives here.", "Bob."]
    assert [question.paragraph for question in found.questions] == [0, 1, 0][:count]
    assert [question.id for question in found.questions] == ["a", "b", "c"][:count]
    assert found.questions[1].answers == (("Bob", 0), ("B", 0))
    assert (found.version, found.questions[-1].impossible) == (("1.1", False) if count == 2 else ("2.0", True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": {"text": ["Ann"], "answer_start": [0, 1]}}, "x.jsonl:1: 'answers' has 1 texts and another number"),
        ({"answers": {"start": [0]}}, "x.jsonl:1: 'answers': 'text' is missing"),
        ({"answers": "Ann"}, "x.jsonl:1: 'answers' is a text"),
        ({"context": 7}, "x.jsonl:1: 'context' is a number"),
        ({"id": "b"}, "x.jsonl:2: id 'b' is already that of "),
        ({"question": None}, "x.jsonl:1: 'question' is a null"),
        ({"is_impossible": "perhaps"}, "x.jsonl:1: 'is_impossible' is 'perhaps', not true or false"),
    ],
)
def test_malformed_rows(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ({**ROWS[0], **change}, ROWS[1])))
    with pytest.raises(DataError, match=message):
        read_squad(path)


def test_an_array_of_rows_and_truth_values_of_tables(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    given = ["False", float("nan"), 1.0]
    rows = [{**row, "is_impossible": value} for row, value in zip(ROWS, given, strict=True)]
    path.write_text(json.dumps(rows))
    assert [question.impossible for question in read_squad(path).questions] == [False, False, True]


def test_answers_that_are_not_in_the_paragraph(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    wrong = [{**ROWS[0], "id": str(n), "answers": {"text": [f"Eve {n}"], "answer_start": [0]}} for n in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*wrong, ROWS[1]]))
    _, data = learn(TaskConfig(name="squad"), tokenizer, path)
    assert data.counts["answers_not_found"] == 5
    assert list(data.notes) == [
        f"left out: {path}:{n + 1}: the answer 'Eve {n}' is not in its paragraph" for n in range(3)
    ]
    strict = TaskConfig(name="squad", squad=SquadConfig(bad_answers="stop"))
    with pytest.raises(
        DataError, match=r"x\.jsonl:1: the answer 'Eve 0' is not in its paragraph \(and 4 more\)\. Correct"
    ):
        learn(strict, tokenizer, path)


def test_scores_of_another_language(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    row = {
        "id": "a",
        "question": "?",
        "context": "他在四川省成都市。",
        "answers": {"text": ["四川省成都市"], "answer_start": [2]},
    }
    path.write_text(json.dumps(row) + "\n")
    for language, f1 in (("en", 0.0), ("zh", 200 / 3)):
        config = TaskConfig(name="squad", squad=SquadConfig(language=language))
        task, data = learn(config, tokenizer, path)
        candidate = Candidate("成都市", 1.0, 0.0, 0.0, (5, 8))
        answers = [Answer(candidate, None, [candidate])]
        assert task.score(data, answers)["f1"] == pytest.approx(f1)
        kept = task.examples(data, answers)
        assert value(kept.rows, kept.formulas["f1"]) == pytest.approx(f1)
