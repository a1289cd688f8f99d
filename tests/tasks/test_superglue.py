"""COPA, WiC and MultiRC of SuperGLUE: their files in both forms, the texts of the model, and the official scores."""

import json
import re
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from json_lines import predict
from sklearn.metrics import f1_score
from tokenizers import Tokenizer

from lambert.core.errors import DataError, UsageError
from lambert.tasks import Columns, TaskConfig, create, learn, parse_task, resolve, score_predictions
from lambert.tasks.reading.table import answer_rows, read_rows
from lambert.tasks.reading.templates import columns_of, fill, is_template

Build = Callable[[list[str]], Tokenizer]
# In the form of the official files (Roemmele et al. 2011; Pilehvar and Camacho-Collados 2019; Khashabi et al. 2018).
COPA = [
    {
        "premise": "My body cast a shadow over the grass.", "choice1": "The sun was rising.",
        "choice2": "The grass was cut.", "question": "cause", "label": 0, "idx": 0,
    },
    {
        "premise": "The man turned on the faucet.", "choice1": "The toilet filled with water.",
        "choice2": "Water flowed from the spout.", "question": "effect", "label": 1, "idx": 1,
    },
]  # fmt: skip
WIC = [
    {
        "word": "place", "sentence1": "Do you want to come over to my place later?",
        "sentence2": "A political system with no place for the less prominent groups.", "idx": 0, "label": False,
        "start1": 31, "start2": 27, "end1": 36, "end2": 32, "version": 1.1,
    },
    {
        "word": "hold", "sentence1": "The general ordered the colonel to hold his position at all costs.",
        "sentence2": "Hold the taxi.", "idx": 3, "label": True, "start1": 35, "start2": 0, "end1": 39, "end2": 4,
        "version": 1.1,
    },
]  # fmt: skip
MULTIRC = [
    {
        "idx": 0, "version": 1.1,
        "passage": {
            "text": "Susan wanted to have a birthday party. She called all of her friends.",
            "questions": [
                {
                    "question": "What did Susan want?", "idx": 0,
                    "answers": [{"text": "A party", "idx": 0, "label": 1}, {"text": "Sleep", "idx": 1, "label": 0}],
                },
                {
                    "question": "Whom did she call?", "idx": 1,
                    "answers": [
                        {"text": "Nobody", "idx": 2, "label": 0}, {"text": "Her friends", "idx": 3, "label": 1},
                        {"text": "All of her friends", "idx": 4, "label": 1},
                    ],
                },
            ],
        },
    },
    {
        "idx": 1, "version": 1.1,
        "passage": {
            "text": "The sky is blue.",
            "questions": [{"question": "Colour?", "idx": 1, "answers": [{"text": "Red", "idx": 0, "label": 0}]}],
        },
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def characters(wordpiece: Build) -> Tokenizer:
    """A vocabulary that keeps every letter of the texts."""
    letters = "abcdefghijklmnopqrstuvwxyz12.?:"
    return wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)])


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(name: str, path: Path, tokenizer: Tokenizer) -> tuple[Any, Any]:
    return learn(resolve(TaskConfig(name=name), path), tokenizer, path)


def texts(data: Any, tokenizer: Tokenizer) -> list[str]:
    """What the model reads, without spaces."""
    every = np.arange(data.size(0))
    batch = data.collate(np.zeros_like(every), every)
    bounds = batch.bounds_S1.tolist()
    pieces = [tokenizer.id_to_token(number).removeprefix("##") for number in batch.ids_T.tolist()]
    return ["".join(pieces[low:high]) for low, high in pairwise(bounds)]


def plain(text: str) -> str:
    """The text as the model reads it, without spaces."""
    return re.sub(r"\[(cls|sep)\]", lambda found: found[0].upper(), "".join(text.lower().split()))


def test_copa(characters: Tokenizer, tmp_path: Path) -> None:
    task, data = read("superglue/copa", written(tmp_path / "train.jsonl", COPA), characters)
    assert (task.config.name, task.config.metrics, data.truth_N.tolist()) == ("choice", ("accuracy",), [0, 1])
    cause, effect = "What was the cause of this?", "What happened as a result?"
    assert texts(data, characters) == [
        plain(f"[CLS] {row['premise']} [SEP] {question} {row[choice]} [SEP]")
        for row, question in zip(COPA, (cause, effect), strict=True)
        for choice in ("choice1", "choice2")
    ]
    hub = [{**row, "label": ("choice1", "choice2")[row["label"]]} for row in COPA]  # as a ClassLabel names them
    assert task.read(written(tmp_path / "hub.jsonl", hub)).truth_N.tolist() == [0, 1]
    again = create(parse_task(json.loads(json.dumps(task.model_config()))), characters)
    assert again.config == task.config
    unlabelled = [{key: row[key] for key in ("premise", "choice1", "choice2", "question")} for row in COPA]
    assert texts(again.parse(unlabelled, ["1", "2"]), characters) == texts(data, characters)
    with pytest.raises(DataError, match=r"x\.jsonl:1: column 'question' holds 'why', not cause or effect\.$"):
        again.read(written(tmp_path / "x.jsonl", [{**COPA[0], "question": "why"}]))


def test_wic(characters: Tokenizer, tmp_path: Path) -> None:
    task, data = read("superglue/wic", written(tmp_path / "train.jsonl", WIC), characters)
    assert (task.config.labels, task.config.metrics, data.truth_N.tolist()) == (
        ("False", "True"),
        ("accuracy",),
        [0, 1],
    )
    assert texts(data, characters) == [
        plain(f"[CLS] sentence1: {row['sentence1']} sentence2: {row['sentence2']} word: {row['word']} [SEP]")
        for row in WIC
    ]  # fmt: skip
    hub = [{**row, "label": int(bool(row["label"]))} for row in WIC]
    assert task.read(written(tmp_path / "hub.jsonl", hub)).truth_N.tolist() == [0, 1]


def test_multirc_in_both_forms(characters: Tokenizer, tmp_path: Path) -> None:
    path = written(tmp_path / "train.jsonl", MULTIRC)
    task, data = read("superglue/multirc", path, characters)
    assert (task.config.labels, data.truth_N.tolist()) == (("False", "True"), [1, 0, 0, 1, 1, 0])
    assert data.groups_N.tolist() == [0, 0, 1, 1, 1, 2]
    assert (data.counts["examples"], data.counts["groups"]) == (6, 3)
    first = "[CLS] Susan wanted to have a birthday party. She called all of her friends. [SEP] What did Susan want?"
    assert texts(data, characters)[1] == plain(f"{first} Sleep [SEP]")
    rows = [row for _, row in read_rows(path, Columns())]
    assert rows[4] == {
        "paragraph": MULTIRC[0]["passage"]["text"], "question": "Whom did she call?", "answer": "All of her friends",
        "idx": {"paragraph": 0, "question": 1, "answer": 4}, "label": 1,
    }  # fmt: skip
    hub, data_hub = read("superglue/multirc", written(tmp_path / "hub.jsonl", rows), characters)
    assert hub.config == task.config
    assert texts(data_hub, characters) == texts(data, characters)
    assert (data_hub.truth_N.tolist(), data_hub.groups_N.tolist()) == (data.truth_N.tolist(), data.groups_N.tolist())
    assert [place for place, _ in read_rows(path, Columns())] == [f"{path}:1"] * 5 + [f"{path}:2"]


def test_the_question_of_a_long_paragraph_is_not_cut(characters: Tokenizer, tmp_path: Path) -> None:
    path = written(tmp_path / "train.jsonl", MULTIRC)
    _, data = learn(resolve(TaskConfig(name="superglue/multirc", max_length=60), path), characters, path)
    assert data.lengths_S.max() == 60
    assert texts(data, characters)[1].endswith(plain("[SEP] What did Susan want? Sleep [SEP]"))


def test_official_scores_of_multirc(characters: Tokenizer, tmp_path: Path) -> None:
    """F1a is the F1 of all answers, and exact match counts the questions without a wrong answer, by the numbers of
    paragraph and question: Khashabi et al. 2018, section 4.2, and the scorer of SuperGLUE."""
    draw = np.random.default_rng(5)
    rows = [
        {
            "paragraph": "a", "question": "b", "answer": "c", "label": int(draw.integers(2)),
            "idx": {"paragraph": paragraph, "question": question, "answer": answer},
        }
        for paragraph in range(12) for question in range(1 + paragraph % 3) for answer in range(1 + question)
    ]  # fmt: skip
    order = draw.permutation(len(rows))
    task, data = read("superglue/multirc", written(tmp_path / "x.jsonl", [rows[n] for n in order]), characters)
    for right in (0.5, 0.8, 1.0):
        kept = draw.random(len(rows)) < right
        said = [row["label"] if keep else 1 - row["label"] for row, keep in zip(rows, kept, strict=True)]
        questions = groupby(
            zip(rows, said, strict=True), lambda pair: (pair[0]["idx"]["paragraph"], pair[0]["idx"]["question"])
        )
        matches = [all(row["label"] == answer for row, answer in pairs) for _, pairs in questions]
        scores = score_predictions(task, data, [np.eye(2)[said[n]] for n in order])
        names = ["f1", "f1_se", "exact_match", "exact_match_se"]
        assert [name for name in scores if name in names] == [name for name in names if right < 1 or name != "f1_se"]
        assert scores["f1"] == pytest.approx(f1_score([row["label"] for row in rows], said))
        assert scores["exact_match"] == pytest.approx(np.mean(matches))
        if right < 1:
            assert scores["exact_match_se"] == pytest.approx(np.std(matches) / np.sqrt(len(matches)))


def test_predictions_of_multirc(characters: Tokenizer, tmp_path: Path) -> None:
    task, _ = read("superglue/multirc", written(tmp_path / "x.jsonl", MULTIRC), characters)
    seen: list[str] = []

    def outputs_of(source: Any) -> Any:
        seen.extend(texts(source, characters))
        return [{"label": torch.tensor([[0.0, 1.0]]).repeat(source.size(0), 1)}]

    line = json.dumps({"paragraph": "The sky", "question": "What?", "answer": "Sky", "id": 7})
    (row,) = predict(task, outputs_of, [line])
    assert (row["id"], row["label"], seen) == (7, "True", [plain("[CLS] The sky [SEP] What? Sky [SEP]")])


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"passage": {"questions": [{"question": "a", "idx": 0, "answers": [{"idx": 0}]}], "text": "b"}}, "'text'"),
        ({"passage": {"questions": [{"question": "a", "idx": 0}], "text": "b"}}, "'answers'"),
        ({"passage": {"questions": 7, "text": "b"}}, "not iterable"),
    ],
)
def test_damaged_paragraphs(changed: dict[str, Any], missing: str) -> None:
    with pytest.raises(DataError, match=rf"x:3 is not a paragraph of MultiRC as in SuperGLUE: .*{missing}"):
        list(answer_rows({**MULTIRC[0], **changed}, "x:3"))


def test_texts_of_several_columns(characters: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("title\tbody\tlabel\nA b\tc d\tx\ne\tf\ty\n")
    _, data = learn(TaskConfig(columns=Columns(text="{title}: {body}")), characters, path)
    assert texts(data, characters) == ["[CLS]ab:cd[SEP]", "[CLS]e:f[SEP]"]
    path.write_text("A b\tc d\tx\ne\tf\ty\n")
    _, data = learn(TaskConfig(columns=Columns(text="{2}? {1}", label="3")), characters, path)
    assert texts(data, characters)[0] == "[CLS]cd?ab[SEP]"
    rows = [{"of": {"text": "a"}, "n": 3, "label": "x"}, {"of": {"text": "b"}, "n": 4, "label": "y"}]
    _, data = learn(TaskConfig(columns=Columns(text="of.text")), characters, written(tmp_path / "x.jsonl", rows))
    assert texts(data, characters)[1] == "[CLS]b[SEP]"
    with pytest.raises(DataError, match=r"x\.jsonl:1: no column 'of\.title' \(task\.columns\.text\)"):
        learn(TaskConfig(columns=Columns(text="{of.title}")), characters, tmp_path / "x.jsonl")
    with pytest.raises(DataError, match=r"no columns 'a' \(task\.columns\.text\) and 'b' \(task\.columns\.text\)\."):
        learn(TaskConfig(columns=Columns(text="{a}{b}")), characters, tmp_path / "x.jsonl")
    with pytest.raises(DataError, match=r"x\.jsonl:1: column 'of' holds \{'text': 'a'\}, not text"):
        learn(TaskConfig(columns=Columns(text="{of} {n}")), characters, tmp_path / "x.jsonl")
    for name in ("tag", "squad", "embed"):
        with pytest.raises(UsageError, match=rf"task\.columns\.text with braces is for .*, not for '{name}'"):
            TaskConfig(name=name, columns=Columns(text="{a} {b}"))
    with pytest.raises(UsageError, match=r"task\.columns\.group = 'q' is for classify, not for 'regress'"):
        TaskConfig(name="regress", columns=Columns(group="q"))


def test_templates() -> None:
    assert columns_of("text") == ["text"]
    assert columns_of("") == []
    assert columns_of("{a}: {b.c} {d|x=1|y=2}") == ["a", "b.c", "d"]
    assert [is_template(name) for name in ("text", "a {b}", "{}")] == [False, True, False]
    assert fill("{a}, {b|x=one|=none}!", {"a": "{b}", "b": ""}.__getitem__, "f:1") == "{b}, none!"
