"""Data sets that save_to_disk of Hugging Face's datasets wrote, as labelled data."""

import json
from pathlib import Path
from typing import Any

import pytest

from lambert.core.errors import DataError
from lambert.tasks import Columns, TaskConfig, resolve
from lambert.tasks.reading.files import class_names, digest, find_splits
from lambert.tasks.reading.table import read_rows
from lambert.tasks.tag.conll import read_sentences
from lambert.tasks.tag.tag import read_labelled_sentences

arrow = pytest.importorskip("pyarrow")
STARS = {"names": ["2", "1", "good"], "_type": "ClassLabel"}


def table(rows: list[dict[str, Any]], features: dict[str, Any]) -> Any:
    """A table whose schema has the features as datasets 5 writes them."""
    info = {"info": {"features": features}}
    return arrow.Table.from_pylist(rows).replace_schema_metadata({"huggingface": json.dumps(info)})


def saved(folder: Path, rows: list[dict[str, Any]], features: dict[str, Any], shards: int = 1) -> Path:
    """The files of `datasets.Dataset.save_to_disk`."""
    folder.mkdir(parents=True)
    names = [f"data-{shard:05}-of-{shards:05}.arrow" for shard in range(shards)]
    for shard, name in enumerate(names):
        part = table(rows[shard::shards], features)
        with (folder / name).open("wb") as file, arrow.ipc.new_stream(file, part.schema) as writer:
            writer.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def several(folder: Path, *splits: str) -> Path:
    for split in splits:
        saved(folder / split, [{"text": split, "label": 1}], {"label": STARS})
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
    return folder


def test_rows_have_the_names_of_classes(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 2}, {"text": "c", "label": -1}]
    folder = saved(tmp_path / "set", rows, {"text": {"dtype": "string", "_type": "Value"}, "label": STARS}, shards=2)
    found = list(read_rows(folder, Columns()))
    first, second = folder / "data-00000-of-00002.arrow", folder / "data-00001-of-00002.arrow"
    assert found == [
        (f"{first}:row 1", {"text": "a", "label": "1"}),
        (f"{first}:row 2", {"text": "c", "label": -1}),
        (f"{second}:row 1", {"text": "b", "label": "good"}),
    ]
    assert list(read_rows(second, Columns())) == found[2:]
    assert resolve(TaskConfig(), folder).labels == ("2", "1", "good")
    assert resolve(TaskConfig(labels=("x", "y")), folder).labels == ("x", "y")
    import pyarrow.parquet

    pyarrow.parquet.write_table(table(rows, {"label": STARS}), tmp_path / "x.parquet")
    assert [row["label"] for _, row in read_rows(tmp_path / "x.parquet", Columns())] == ["1", "good", -1]


@pytest.mark.parametrize("feature", [[STARS], {"feature": STARS, "_type": "Sequence"}, {"feature": STARS}])
def test_lists_of_classes(feature: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", [{"tags": [0, 2]}], {"tags": feature})
    assert [row for _, row in read_rows(folder, Columns())] == [{"tags": ["2", "good"]}]


def test_tags_that_are_classes(tmp_path: Path) -> None:
    """CoNLL-2003 on the Hugging Face Hub: `tokens` and `ner_tags`, in a folder, in Parquet, and without the names in
    JSON lines."""
    import pyarrow.parquet

    names = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
    rows = [
        {"id": "0", "tokens": ["EU", "rejects", "German"], "pos_tags": [22, 42, 16], "ner_tags": [3, 0, 7]},
        {"id": "1", "tokens": ["Peter", "Blackburn"], "pos_tags": [22, 22], "ner_tags": [1, 2]},
    ]
    features = {"ner_tags": {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "List"}}
    folder = saved(tmp_path / "set", rows, features)
    pyarrow.parquet.write_table(table(rows, features), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (folder, tmp_path / "x.parquet"):
        config = resolve(TaskConfig(name="tag"), path)
        assert config.labels == tuple(names)
        found = [(sentence.words, sentence.tags) for sentence in read_sentences(path, config.columns, config.labels)]
        assert found == [
            (["EU", "rejects", "German"], ["B-ORG", "O", "B-MISC"]), (["Peter", "Blackburn"], ["B-PER", "I-PER"]),
        ]  # fmt: skip
        assert resolve(TaskConfig(name="tag", columns=Columns(label="pos_tags")), path).labels == ()
    config = resolve(TaskConfig(name="conll2003"), tmp_path / "x.jsonl")
    lines, matched = read_labelled_sentences(tmp_path / "x.jsonl", config.columns, config.labels)
    assert [(sentence.words, sentence.tags) for sentence in lines] == found
    assert not matched.notes


def test_splits(tmp_path: Path) -> None:
    folder = several(tmp_path / "set", "train", "validation", "test")
    assert find_splits(folder, None) == (folder / "train", folder / "validation")
    assert find_splits(folder, folder / "test") == (folder / "train", folder / "test")
    assert find_splits(folder / "test", None) == (folder / "test", None)
    file = tmp_path / "x.tsv"
    assert find_splits(file, None) == (file, None)
    assert find_splits(file, folder) == (file, folder / "validation")
    with pytest.raises(DataError, match=r"set has the splits train, validation, test: name one of them"):
        list(read_rows(folder, Columns()))
    mnli = several(tmp_path / "mnli", "train", "validation_matched")
    assert find_splits(mnli, None) == (mnli / "train", None)
    with pytest.raises(DataError, match="mnli has no split 'validation', but train, validation_matched: name one"):
        find_splits(file, mnli)


def test_the_digest_is_that_of_all_files(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 2}]
    one, two = (saved(tmp_path / name, rows, {}, shards=2) for name in ("one", "two"))
    assert digest(one) == digest(two)
    rows[1]["text"] = "c"
    assert digest(saved(tmp_path / "three", rows, {}, shards=2)) != digest(one)


@pytest.mark.parametrize("features", ["{", "[]", '{"info": {"features": {"label": 7}}}'])
def test_metadata_that_cannot_be_read(features: str, tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    made = arrow.table({"label": [1]}).replace_schema_metadata({"huggingface": features})
    with path.open("wb") as file, arrow.ipc.new_stream(file, made.schema) as writer:
        writer.write_table(made)
    with pytest.raises(DataError, match=r"x\.arrow: the features in its metadata cannot be read"):
        class_names(path)


def test_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "x.arrow").write_bytes(b"?")
    with pytest.raises(DataError, match=r"x\.arrow is damaged or not Arrow"):
        list(read_rows(tmp_path / "x.arrow", Columns()))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "dataset_dict.json").write_text("{}")
    with pytest.raises(DataError, match="is not what save_to_disk writes"):
        list(read_rows(tmp_path / "set", Columns()))
