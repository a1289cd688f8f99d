"""Training keeps the rows of a folder's head by the names of their labels, never by the head's shape."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.families import family_of
from lambert.model.labels import label_keys

FRESH = "starts with random weights"


def folder_of(path: Path, heads: Mapping[str, int], names: Sequence[str], block: str = "bert") -> Path:
    config = EncoderConfig(
        block=block, vocabulary=30, hidden=32, intermediate=64, layers=1, positions=16,
        segment_types=2 if block in ("bert", "electra") else 1,
    )  # fmt: skip
    extra = label_keys(names) if names else {}
    weights.save(weights.draw(config, heads, seed=1), path, extra)
    return path


def rows(model: Any, head: str) -> Tensor:
    """The rows of a head, with the bias as the last column."""
    classifier = model.heads[head].classifier
    bias = [classifier.bias[:, None]] if classifier.bias is not None else []
    return torch.cat([classifier.weight, *bias], 1).detach()


def loaded(folder: Path, head: str, labels: Sequence[str], seed: int = 5) -> tuple[Tensor, str]:
    model, report = weights.load(folder, {head: len(labels)}, seed=seed, labels=labels)
    return rows(model, head), " ".join(line for line in report.notes if "head" in line)


@pytest.mark.parametrize(
    ("head", "block"),
    [("label", "bert"), ("label", "roberta"), ("multilabel", "electra"), ("tag", "bert"), ("tag", "modernbert")],
)
def test_rows_of_common_labels_are_kept(head: str, block: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {head: 3}, ("a", "b", "c"), block)
    old = rows(weights.load(folder)[0], head)
    found, note = loaded(folder, head, ("a", "b", "c"))
    assert torch.equal(found, old)
    assert note == f"note: the head of {folder} is kept for the labels a, b, c."
    found, note = loaded(folder, head, ("c", "A", "b"))
    assert torch.equal(found, old[[2, 0, 1]])
    assert "its rows are in another order" in note
    found, note = loaded(folder, head, ("b", "new", "a"))
    assert torch.equal(found[[0, 2]], old[[1, 0]])
    assert f"is kept for the labels b, a; it {FRESH} for new; its labels c are left out" in note
    alone, note = loaded(folder, head, ("d", "e", "f"))
    assert torch.equal(found[1], alone[1])  # fresh rows are those of a fresh head
    assert not torch.equal(alone, old)
    assert note == f"note: the head of {folder} has other labels (a, b, c): the head {FRESH}."
    again, _ = loaded(folder, head, ("d", "e", "f"))
    assert torch.equal(alone, again)


def test_labels_without_names_are_numbers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"label": 2}, ("LABEL_0", "LABEL_1"))
    old = rows(weights.load(folder)[0], "label")
    assert torch.equal(loaded(folder, "label", ("0", "1"))[0], old)
    found, note = loaded(folder, "label", ("no", "yes"))
    assert not torch.equal(found, old)
    assert note == f"note: the head of {folder} has labels without names (LABEL_0, ...): the head {FRESH}."


@pytest.mark.parametrize(
    ("own", "names", "head", "labels", "note"),
    [
        ({"tag": 2}, ("a", "b"), "label", ("a", "b"), "predicts classes of words, not classes of texts"),
        ({"label": 2}, ("a", "b"), "tag", ("a", "b"), "predicts classes of texts, not classes of words"),
        ({"value": 0}, (), "label", ("LABEL_0", "a"), "predicts values, not classes of texts"),
        ({"choice": 0}, (), "value", (), "predicts choices, not values"),
        ({"value": 0}, (), "choice", (), "predicts values, not choices"),
        ({"label": 2}, ("a", "b"), "multilabel", ("b", "a"), ""),
        ({"value": 0}, (), "value", (), ""),
        ({"choice": 0}, (), "choice", (), ""),
    ],
)
def test_a_head_of_another_kind_is_not_kept(
    own: dict[str, int], names: Sequence[str], head: str, labels: Sequence[str], note: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, own, names)
    old = rows(weights.load(folder)[0], next(iter(own)))
    model, report = weights.load(folder, {head: len(labels)}, seed=5, labels=labels)
    found = rows(model, head)
    if note:
        assert report.notes == (f"note: the head of {folder} {note}: the head {FRESH}.",)
        assert found.shape != old.shape or not torch.equal(found, old)
    else:
        assert torch.equal(found, old.flip(0) if labels else old)


def test_answers_of_modernbert_do_not_begin_with_two_classes(tmp_path: Path) -> None:
    """Both heads have the name `classifier` in its folders, and the same shape."""
    folder = folder_of(tmp_path, {"label": 2}, ("a", "b"), "modernbert")
    report = weights.load(folder, {"span": 0}, seed=5, labels=())[1]
    assert f"predicts classes of texts, not answers: the head {FRESH}." in report.notes[-1]
    assert "classifier.weight" in report.missing
    three = folder_of(tmp_path / "three", {"label": 3}, ("a", "b", "c"), "modernbert")
    assert "classifier.weight" in weights.load(three, {"span": 0}, labels=())[1].missing


def test_labels_that_cannot_be_read_leave_a_fresh_head(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"label": 3}, ("a", "b", "c"))
    settings = json.loads((folder / "config.json").read_text())
    for names, why in (
        ({"0": "a", "1": "b"}, "describes 2 labels"),
        ({"0": "a", "1": "b", "3": "c"}, "names the labels"),
    ):
        (folder / "config.json").write_text(json.dumps(settings | {"id2label": names}))
        found, note = loaded(folder, "label", ("a", "b", "c"))
        assert f"note: the labels of the head of {folder} are not known (its config.json {why}" in note
        assert FRESH in note
        assert found.shape == (3, 33)
    settings.pop("architectures")
    (folder / "config.json").write_text(json.dumps(settings))
    assert "is not named by its config.json" in loaded(folder, "label", ("a", "b", "c"))[1]
    assert family_of(weights.load(folder, {})[0].config).title == "BERT"
