"""The labels of config.json are those of transformers, or a refusal; rows of a head are found by their names."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from lambert.core.errors import DataError
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.labels import label_names, rows_of

NAMES = {"0": "x", "1": "y", "2": "z"}
IDS = {"x": 0, "y": 1, "z": 2}
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "names": (3, {"id2label": NAMES, "label2id": IDS}),
    "names in another order": (3, {"id2label": dict(reversed(NAMES.items()))}),
    "zeros before numbers": (3, {"id2label": {"00": "x", "01": "y", "2": "z"}}),
    "names that are numbers": (3, {"id2label": {"0": 5, "1": 6, "2": 7}}),
    "a number of labels": (3, {"num_labels": 3}),
    "two labels, nothing said": (2, {}),
    "three labels, nothing said": (3, {}),
    "null": (2, {"id2label": None, "label2id": None}),
    "no names, and a number": (3, {"id2label": {}, "num_labels": 3}),
    "no names": (3, {"id2label": {}}),
    "names of two of three": (3, {"id2label": {"0": "x", "1": "y"}}),
    "names of two of fifty": (50, {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}),
    "names of two, and a number": (3, {"id2label": {"0": "x", "1": "y"}, "num_labels": 3}),
    "names of four of three": (3, {"id2label": NAMES | {"3": "w"}}),
    "a gap": (3, {"id2label": {"0": "x", "2": "y", "3": "z"}}),
    "from 1": (3, {"id2label": {"1": "x", "2": "y", "3": "z"}}),
    "a number that contradicts the names": (3, {"id2label": NAMES, "num_labels": 7}),
    "label2id that contradicts the names": (3, {"id2label": NAMES, "label2id": {"x": 2, "y": 1, "z": 0}}),
    "label2id of texts": (3, {"id2label": NAMES, "label2id": {"x": "0", "y": "1", "z": "2"}}),
    "label2id alone": (3, {"label2id": IDS}),
    "label2id alone, of two": (2, {"label2id": {"x": 0, "y": 1}}),
    "label2id and a number": (3, {"label2id": IDS, "num_labels": 3}),
    "a name twice": (3, {"id2label": {"0": "x", "1": "x", "2": "z"}}),
    "a name that is null": (3, {"id2label": {"0": "x", "1": None, "2": "z"}}),
    "a list": (3, {"id2label": ["x", "y", "z"]}),
    "keys and values exchanged": (3, {"id2label": {"x": "0", "y": "1", "z": "2"}}),
    "a number as text": (3, {"num_labels": "3"}),
}
REFUSED = {  # transformers reads these, and its outputs cannot be told apart, or lack a name
    "a gap",
    "from 1",
    "a name twice",
    "a name that is null",
}


def folder_of(path: Path, head: str, labels: int, given: dict[str, Any], block: str = "bert") -> Path:
    """A folder whose config.json has these keys for its labels."""
    config = EncoderConfig(
        block=block, vocabulary=30, hidden=32, intermediate=64, layers=1, positions=16,
        segment_types=2 if block == "bert" else 1,
    )  # fmt: skip
    weights.save(weights.draw(config, {head: labels}, seed=1), path)
    settings = json.loads((path / "config.json").read_text())
    for key in ("id2label", "label2id"):
        settings.pop(key)
    (path / "config.json").write_text(json.dumps(settings | given))
    return path


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # by torch, for a head without labels
@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize(
    ("head", "block", "kind"),
    [
        ("label", "bert", "AutoModelForSequenceClassification"),
        ("tag", "roberta", "AutoModelForTokenClassification"),
        ("multilabel", "distilbert", "AutoModelForSequenceClassification"),
    ],
)
def test_labels_are_those_of_transformers(case: str, head: str, block: str, kind: str, tmp_path: Path) -> None:
    labels, given = SETTINGS[case]
    folder = folder_of(tmp_path, head, labels, given, block)
    settings = json.loads((folder / "config.json").read_text())
    try:
        theirs = getattr(transformers, kind).from_pretrained(folder).config.id2label
    except (RuntimeError, ValueError, TypeError, AttributeError):
        theirs = None
    if theirs is None or case in REFUSED:
        with pytest.raises(DataError, match=r"config\.json (names|describes|has|gives) .*(id2label|num_labels)"):
            weights.load(folder)
        return
    assert label_names(settings, folder) == tuple(str(theirs[number]) for number in range(labels))
    model, report = weights.load(folder)
    assert model.labels == {head: labels}
    assert len(report.notes) == (case.startswith("label2id") and case != "label2id of texts")


@pytest.mark.parametrize(
    ("labels", "names", "rows"),
    [
        (("a", "b"), ("a", "b"), (0, 1)),
        (("b", "c", "a"), ("a", "x", "b"), (2, None, 0)),
        (("entailment", "neutral"), ("NEUTRAL", "ENTAILMENT"), (1, 0)),
        (("a", "A"), ("a", "b"), (0, None)),
        (("a",), ("A", "a"), (1,)),
        (("á",), ("A", "a"), (None,)),
        (("0", "1"), ("LABEL_0", "LABEL_1"), (0, 1)),
        (("1", "2"), ("LABEL_0", "LABEL_1"), (None, None)),  # the head may have learnt 1 as its label 0
        (("0", "1"), ("LABEL_0", "LABEL_1", "LABEL_2"), (None, None)),
        (("LABEL_1", "LABEL_0"), ("LABEL_0", "LABEL_1"), (1, 0)),
        (("no", "yes"), ("LABEL_0", "LABEL_1"), (None, None)),
    ],
)
def test_rows_are_found_by_name(labels: tuple[str, ...], names: tuple[str, ...], rows: tuple[int | None, ...]) -> None:
    assert rows_of(labels, names) == rows


def test_heads_with_other_labels_than_the_folder_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "label", 3, {"id2label": {"0": "x", "1": "y"}})
    with pytest.raises(DataError, match=r"describes 2 labels \(id2label, num_labels\), and the head has 3 rows"):
        weights.load(folder, {"label": 2})
    settings = json.loads((folder / "config.json").read_text()) | {"id2label": NAMES, "problem_type": "regression"}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match=r"problem_type = 'regression' and 3 labels"):
        weights.load(folder)
    with pytest.raises(DataError, match=r"problem_type = 'regression' and 3 labels"):
        weights.load(folder, {"value": 0})
