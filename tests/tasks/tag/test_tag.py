"""Tagging: labels of words, spans, texts, and files that cannot be read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gemma import gemma
from json_lines import predict
from tokenizers import Tokenizer

from lambert.core.errors import DataError, UsageError
from lambert.tasks import TaskConfig, create, learn, parse_task
from lambert.tasks.config import TagConfig
from lambert.tasks.task import is_predictions

Build = Callable[[list[str]], Tokenizer]


@pytest.fixture(scope="module")
def words(wordpiece: Build) -> Tokenizer:
    return wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ann", "lives", "in", "rome", "##s", ".", "a"])


TAGGED = [(["Ann", "lives", "in", "Romes", "."], ["PER", "O", "O", "LOC", "O"]), (["\u200b", "Rome"], ["O", "LOC"])]


def tagged(path: Path, rows: list[tuple[list[str], list[str]]]) -> Path:
    path.write_text("".join(json.dumps({"tokens": tokens, "tags": tags}) + "\n" for tokens, tags in rows))
    return path


def test_tagging(words: Tokenizer, tmp_path: Path) -> None:
    path = tagged(tmp_path / "x.jsonl", TAGGED)
    task, data = learn(TaskConfig(name="tag"), words, path)
    assert (task.head, task.labels, task.config.labels) == ("tag", 3, ("LOC", "O", "PER"))
    batch = data.collate(np.zeros(2, np.int64), np.array([1, 0]))
    target = batch.targets["tag"]
    pieces = [words.id_to_token(int(batch.ids_T[at])) for at in target.at_N]
    assert pieces == ["rome", "ann", "lives", "in", "rome", "."]  # first pieces only; a word of no piece is left out
    assert target.labels_N.tolist() == [0, 2, 1, 1, 0, 1]

    def outputs(data: Any) -> list[dict[str, torch.Tensor]]:
        batch = data.collate(np.zeros(data.size(0), np.int64), np.arange(data.size(0)))
        logits = torch.zeros(batch.tokens, 3)
        logits[:, 1] = 1.0
        logits[batch.ids_T == 8, 0] = 2.0
        return [{"tag": logits[:3]}, {"tag": logits[3:]}]

    predictions = task.predictions(data, outputs(data))
    assert predictions == [[1, 1, 1, 0, 1], [None, 0]]
    scores = task.score(data, predictions)
    assert scores["accuracy"] == pytest.approx(5 / 7)
    assert scores["f1"] == pytest.approx(2 * 2 / (3 + 2))  # three true names, two predicted
    again = create(parse_task(json.loads(json.dumps(task.model_config()))), words)
    rows = list(predict(again, outputs, [json.dumps({"tokens": tokens}) for tokens, _ in TAGGED]))
    assert rows == [{"tags": ["O", "O", "O", "LOC", "O"]}, {"tags": [None, "LOC"]}]
    again.write(tmp_path / "out.jsonl", data, predictions)
    assert is_predictions((tmp_path / "out.jsonl").read_bytes())
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == rows


def logits_of(task: Any, tags: dict[str, str]) -> Any:
    """Outputs by which each piece has its tag, "O" if it has none."""

    def outputs(data: Any) -> list[dict[str, torch.Tensor]]:
        batch = data.collate(np.zeros(data.size(0), np.int64), np.arange(data.size(0)))
        pieces = [task.tokenizer.id_to_token(number) for number in batch.ids_T.tolist()]
        numbers = torch.tensor([task.config.labels.index(tags.get(piece, "O")) for piece in pieces])
        return [{"tag": torch.nn.functional.one_hot(numbers, task.labels).float()}]

    return outputs


def test_no_word_of_a_long_sentence_is_lost(words: Tokenizer, tmp_path: Path) -> None:
    rows = [(["a", "rome", "ann"] * 9, ["O", "LOC", "PER"] * 9), (["ann"], ["PER"])]
    task, data = learn(TaskConfig(name="tag", max_length=8), words, tagged(tmp_path / "x.jsonl", rows))
    assert data.counts == {"examples": 2, "divided_into_windows": 1}
    assert data.lengths_S.max() == 8
    targets = data.collate(np.zeros(data.size(0), np.int64), np.arange(data.size(0))).targets["tag"]
    assert torch.bincount(targets.labels_N).tolist() == [9, 9, 10]  # each word is learnt once
    outputs = logits_of(task, {"rome": "LOC", "ann": "PER"})
    assert [row["tags"] for row in task.rows(data, task.predictions(data, outputs(data)))] == [tags for _, tags in rows]


SPANNED = [(["Ann", "Romes", "lives", "."], ["B-PER", "I-PER", "O", "O"]), (["Rome", "Ann"], ["B-LOC", "I-PER"])]
PIECES = {"ann": "B-PER", "rome": "I-PER"}


def test_an_empty_word_has_no_piece(words: Tokenizer, tmp_path: Path) -> None:
    rows = [(["he", "", "ran"], ["A", "B", "C"]), (["ran", "he", ""], ["C", "A", "B"])]
    _, data = learn(TaskConfig(name="tag"), words, tagged(tmp_path / "x.jsonl", rows))
    assert data.lengths_S.tolist() == [4, 4]


def test_spans_of_words_and_of_characters(words: Tokenizer, tmp_path: Path) -> None:
    task, data = learn(TaskConfig(name="tag"), words, tagged(tmp_path / "x.jsonl", SPANNED))
    assert (task.config.tag.scheme, data.counts["spans_that_break_IOB2"]) == ("IOB2", 1)
    again = create(parse_task(json.loads(json.dumps(task.model_config()))), words)
    assert again.config.tag == task.config.tag
    text = " Ann Romes  lives\u200b in:Rome."
    lines = [json.dumps(row) for row in ({"tokens": SPANNED[0][0]}, {"text": text, "id": 3}, {"text": " "})]
    of_tokens, of_text, empty = predict(again, logits_of(again, PIECES), lines)
    span = {"label": "PER", "start": 0, "end": 2, "text": "Ann Romes"}
    assert of_tokens == {"tags": ["B-PER", "I-PER", "O", "O"], "spans": [span]}
    assert (
        of_text["tokens"]
        == ["Ann", "Romes", "lives", "in", ":", "Rome", "."]
        == [text[begin:end] for begin, end in of_text["offsets"]]
    )
    assert of_text["tags"] == ["B-PER", "I-PER", "O", "O", "O", "I-PER", "O"]
    assert [(span["start"], span["end"], span["text"]) for span in of_text["spans"]] == [
        (1, 10, "Ann Romes"),
        (text.index("Rome."), text.index("Rome.") + 4, "Rome"),
    ]
    assert empty == {"tokens": [], "offsets": [], "tags": [], "spans": []}
    assert is_predictions(json.dumps(of_tokens).encode())


def test_texts_are_divided_alike_whatever_the_tokenizer() -> None:
    """A tokenizer of Gemma's kind does not divide a text, and its spaces belong to its pieces."""
    text = "Ann  lives\tin 北京, 3rd-rate."
    tokenizer = gemma([text], 300)
    task = create(TaskConfig(name="tag", labels=("O", "X")), tokenizer)
    data = task.parse([{"text": text}], ["line 1"])
    words = ["Ann", "lives", "in", "北", "京", ",", "3rd", "-", "rate", "."]
    assert data.sentences == [words] == [[text[begin:end] for begin, end in data.texts[0][1]]]
    of_words = task.parse([{"tokens": words}], ["line 1"])
    assert data.first.ids.tolist() == of_words.first.ids.tolist()
    assert data.words_N.tolist() == [*range(len(words))]


def test_spans_are_scored_if_the_tags_mark_spans(words: Tokenizer, tmp_path: Path) -> None:
    path = tagged(tmp_path / "x.jsonl", SPANNED)
    task, data = learn(TaskConfig(name="tag"), words, path)
    scores = task.score(data, task.predictions(data, logits_of(task, PIECES)(data)))
    # True: PER 0-1, LOC 0, PER 1. Predicted: PER 0-1; in the second sentence PER 0 and PER 1, as "ann" is B-PER.
    assert (scores["span_precision"], scores["span_recall"], scores["span_f1"]) == pytest.approx((2 / 3,) * 3)
    assert scores["strict_span_f1"] == pytest.approx(2 * 1 / (2 + 2))
    assert (scores["span_f1_LOC"], scores["span_f1_PER"]) == pytest.approx((0, 2 * 2 / (2 + 3)))
    assert scores["accuracy"] == pytest.approx(4 / 6)
    assert {"span_f1_se", "span_f1_PER_se", "f1", "f1_se"} <= set(scores)
    plain, data = learn(TaskConfig(name="tag", tag=TagConfig("none")), words, path)
    scores = plain.score(data, [[0] * 4, [0] * 2])
    assert not any("span" in name for name in scores)
    assert "spans" not in next(predict(plain, logits_of(plain, PIECES), [json.dumps({"tokens": ["a"]})]))


def test_the_scheme_can_be_set(words: Tokenizer, tmp_path: Path) -> None:
    path = tagged(tmp_path / "x.jsonl", SPANNED)
    _, data = learn(TaskConfig(name="tag", tag=TagConfig("IOB1")), words, path)
    assert data.counts["spans_that_break_IOB1"] == 2  # both spans that B begins
    with pytest.raises(UsageError, match=r"task\.tag\.scheme = 'iob' is unknown\. Did you mean 'IOB[12]'\?"):
        TagConfig("iob")
    path.write_text(path.read_text().replace("B-LOC", "B_LOC"))
    with pytest.raises(DataError, match=r"x\.jsonl:2: the tag 'B_LOC' does not have the form B-LABEL, I-LABEL or O"):
        learn(TaskConfig(name="tag"), words, path)
    assert learn(TaskConfig(name="tag", tag=TagConfig("none")), words, path)[0].config.labels[0] == "B-PER"


def test_a_folder_of_other_origin_has_the_scheme_of_its_labels(words: Tokenizer) -> None:
    names = {str(number): label for number, label in enumerate(("O", "B-X", "I-X"))}
    found = parse_task({"architectures": ["BertForTokenClassification"], "id2label": names})
    task = create(found, words)
    (row,) = predict(task, logits_of(task, {"ann": "B-X"}), ['{"tokens": ["Ann", "lives"]}'])
    assert row["spans"] == [{"label": "X", "start": 0, "end": 1, "text": "Ann"}]


def test_tags_that_training_lacks_are_listed(words: Tokenizer, tmp_path: Path) -> None:
    task, _ = learn(TaskConfig(name="tag"), words, tagged(tmp_path / "x.jsonl", SPANNED))
    path = tmp_path / "dev.conll"
    path.write_text("Ann B-PER\n\nRome B-MISC\n. I-LOC\nRome B-MISC\n")
    with pytest.raises(DataError) as raised:
        task.read(path)
    assert str(raised.value) == (
        f"{path} has 2 tags that are not among the labels of the training file: 'B-MISC' (2 words, first in line 3), "
        "'I-LOC' (1 word, first in line 4). Correct them, or fine-tune with task.labels that list them."
    )
    path.write_text("".join(f"Ann B-{number}\n" for number in range(120)))
    with pytest.raises(DataError, match=r"has 120 tags .* 'B-99' \(1 word, first in line 100\) and 20 more\. Correct"):
        task.read(path)


@pytest.mark.parametrize("form", ["IOE2", "suffix"])
def test_marks_of_ends_and_marks_that_are_last(form: str, words: Tokenizer, tmp_path: Path) -> None:
    tags = {"IOE2": ["I-PER", "E-PER", "O", "E-LOC"], "suffix": ["PER-B", "PER-I", "O", "LOC-B"]}[form]
    path = tagged(tmp_path / "x.jsonl", [(["Ann", "Romes", "in", "Rome"], tags)])
    task, data = learn(TaskConfig(name="tag"), words, path)
    scheme, suffix = {"IOE2": ("IOE2", False), "suffix": ("IOB2", True)}[form]
    assert task.config.tag == TagConfig(scheme, suffix)
    assert data.counts[f"spans_that_break_{scheme}"] == 0
    again = create(parse_task(json.loads(json.dumps(task.model_config()))), words)
    assert again.config == task.config
    assert again.score(data, [data.truth_W.tolist()])["strict_span_f1"] == 1.0
    outputs = logits_of(again, {"ann": tags[0], "rome": tags[1]})
    (row,) = predict(again, outputs, ['{"text": "Ann Romes"}'])
    assert [(span["label"], span["text"]) for span in row["spans"]] == [("PER", "Ann Romes")]
    conll = tmp_path / "x.conll"
    conll.write_text(
        "".join(f"{tag}\t{word}\n" for word, tag in zip(["Ann", "Romes", "in", "Rome"], tags, strict=True))
    )
    assert again.read(conll).truth_W.tolist() == data.truth_W.tolist()


def test_whether_marks_are_last_can_be_set(words: Tokenizer, tmp_path: Path) -> None:
    path = tagged(tmp_path / "x.jsonl", [(["Ann", "Rome"], ["PER-B", "O"])])
    assert learn(TaskConfig(name="tag"), words, path)[0].reader is None
    task, _ = learn(TaskConfig(name="tag", tag=TagConfig(suffix=True)), words, path)
    assert task.reader is not None
    assert (task.reader.scheme, task.reader.labels) == ("IOB2", ["PER"])


def test_conll_is_the_same_data_as_json(words: Tokenizer, tmp_path: Path) -> None:
    rows = [(tokens, tags) for tokens, tags in TAGGED if "\u200b" not in tokens]
    path = tmp_path / "x.conll"
    path.write_text("".join(f"{word}\t{tag}\n" for pair in rows for word, tag in zip(*pair, strict=True)) + "\n")
    (task, ours), (same, theirs) = (
        learn(TaskConfig(name="tag"), words, file) for file in (path, tagged(tmp_path / "x.jsonl", rows))
    )
    assert task.config == same.config
    for one, other in ((ours.first.ids, theirs.first.ids), (ours.firsts.ids, theirs.firsts.ids)):
        assert one.tolist() == other.tolist()
    assert ours.truth_W.tolist() == theirs.truth_W.tolist()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, r"x\.jsonl:2: 2 tokens but 1 tags"),
        ({"tokens": "a", "tags": ["O"]}, r"x\.jsonl:2: 'tokens' is not a list of texts"),
        ({"tokens": ["a"]}, r"x\.jsonl:2: 'tags' is not a list of texts"),
        ({"tokens": [], "tags": []}, r"x\.jsonl:2: 'tokens' is not a list of texts"),
        (
            {"tokens": ["a"], "tags": ["X"]},
            r"x\.jsonl has a tag that is not .*: 'X' \(1 word, first in line 2\)\. Correct it",
        ),
    ],
)
def test_tagged_rows_that_cannot_be_read(words: Tokenizer, tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"tokens": ["a"], "tags": ["O"]}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=message):
        create(TaskConfig(name="tag", labels=("O", "B")), words).read(path)
