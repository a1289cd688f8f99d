"""Rows that a program has in memory, by the libraries that hold them."""

import collections
import datetime
import decimal
import io
import json
import sqlite3
from typing import Any

import numpy as np
import pytest

from lambert.core.errors import UsageError
from lambert.text.arrow import ArrowFile
from lambert.text.classes import decode_classes
from lambert.text.memory import is_rows, read_rows, write_data

ROWS = [{"text": "a b", "label": "x"}, {"text": "c", "label": "y"}]
TEXTS, LABELS = ["a b", "c"], ["x", "y"]
pandas, arrow, datasets = map(pytest.importorskip, ("pandas", "pyarrow", "datasets"))


class Polars:
    """A table with the methods of a DataFrame of polars."""

    columns, schema = ("text", "label"), None

    def to_dicts(self) -> list[dict[str, Any]]:
        return ROWS


class Stream:
    """A table that only gives an Arrow stream, as those of DuckDB do."""

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        return arrow.table({"text": TEXTS, "label": LABELS}).__arrow_c_stream__(schema)


def database() -> list[Any]:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    found = connection.execute("select 'a b' as text, 'x' as label union all select 'c', 'y'").fetchall()
    connection.close()
    return found


Named = collections.namedtuple("Named", ("text", "label"))
TABLES: dict[str, Any] = {
    "pandas": pandas.DataFrame({"text": TEXTS, "label": LABELS}),
    "categorical": pandas.DataFrame({"text": TEXTS, "label": pandas.Categorical(LABELS)}),
    "polars": Polars(),
    "pyarrow": arrow.table({"text": TEXTS, "label": LABELS}),
    "dictionary": arrow.table({"text": TEXTS, "label": arrow.array(LABELS).dictionary_encode()}),
    "record batch": arrow.RecordBatch.from_pydict({"text": TEXTS, "label": LABELS}),
    "stream": Stream(),
    "datasets": datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS}),
    "order": datasets.Dataset.from_dict({"text": TEXTS[::-1], "label": LABELS[::-1]}).select([1, 0]),
    "format": datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS}).with_format("numpy"),
    "list": ROWS,
    "tuple": tuple(ROWS),
    "objects": np.array(ROWS, dtype=object),
    "columns": {"text": TEXTS, "label": np.array(LABELS)},
    "series": {"text": pandas.Series(TEXTS), "label": arrow.array(LABELS)},
    "fields": np.array([*zip(TEXTS, LABELS, strict=True)], dtype=[("text", "U9"), ("label", "U9")]),
    "named tuples": [Named(*pair) for pair in zip(TEXTS, LABELS, strict=True)],
    "sqlite": database(),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_the_same_rows(name: str) -> None:
    assert is_rows(TABLES[name])
    suffix, content = write_data(TABLES[name], "data")
    assert write_data(TABLES[name], "data") == (suffix, content)
    if suffix == ".arrow":
        assert [*ArrowFile(io.BytesIO(content)).rows()] == ROWS
    else:
        assert [json.loads(line) for line in content.splitlines()] == ROWS
    if name != "stream":
        assert read_rows(TABLES[name], "data") == ROWS


def test_paths_and_numbers_are_no_rows() -> None:
    assert not any(map(is_rows, (None, "a.csv", 0.1, 3, np.float32(0.1), np.str_("a.csv"))))


def test_values_are_those_of_json() -> None:
    row = {
        "int": np.int64(3), "float": np.float32(0.5), "bool": np.bool_(True), "text": np.str_("a"),
        "array": np.array([1, 2]), "nested": [{"a": np.int8(1)}, (2, None)], "date": datetime.date(2020, 1, 2),
        "time": pandas.Timestamp("2020-01-02 03:04:05"), "time64": np.datetime64("2020-01-02"),
        "decimal": decimal.Decimal("1.50"), 7: "seven",
    }  # fmt: skip
    assert read_rows([row], "data") == [{
        "int": 3, "float": 0.5, "bool": True, "text": "a", "array": [1, 2], "nested": [{"a": 1}, [2, None]],
        "date": "2020-01-02", "time": "2020-01-02 03:04:05", "time64": "2020-01-02", "decimal": "1.50", "7": "seven",
    }]  # fmt: skip


def test_missing_values_are_the_empty_cells_of_a_csv() -> None:
    missing = [float("nan"), np.float32("nan"), np.datetime64("NaT"), pandas.NaT, pandas.NA]
    assert read_rows([{"label": value} for value in missing], "data") == [{"label": ""}] * len(missing)
    frame = pandas.DataFrame({"a": ["x", None], "b": [pandas.Timestamp("2020-01-01"), None], "c": [1.5, None]})
    frame["d"] = pandas.array([1, None], dtype="Int64")
    assert read_rows(frame, "data")[1] == {"a": "", "b": "", "c": "", "d": ""}
    assert read_rows([{"label": None}], "data") == [{"label": None}]  # null of JSON


def test_names_of_classes_are_kept() -> None:
    features = datasets.Features({
        "text": datasets.Value("string"), "label": datasets.ClassLabel(names=["z", "a"]),
        "tags": datasets.List(datasets.ClassLabel(names=["O", "B"])),
    })  # fmt: skip
    held = datasets.Dataset.from_dict({"text": TEXTS, "label": [1, 0], "tags": [[0, 1], []]}, features=features)
    schema = ArrowFile(io.BytesIO(write_data(held, "data")[1])).schema
    assert decode_classes(schema.metadata) == {"label": ("z", "a"), "tags": ("O", "B")}
    assert read_rows(held, "data")[0] == {"text": "a b", "label": "a", "tags": ["O", "B"]}
    shown = held.with_format(None, columns=["text"])
    assert ArrowFile(io.BytesIO(write_data(shown, "data")[1])).schema.names == ["text"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (datasets.DatasetDict({"train": TABLES["datasets"]}), r"has the splits train: give one of them, such as"),
        (TABLES["datasets"].to_iterable_dataset(), "type IterableDataset, whose rows are not in memory: give list"),
        (TABLES["datasets"].with_transform(lambda rows: rows), "has a transform"),
        (iter(ROWS), "whose rows are not in memory: give list"),
        (type("LazyFrame", (), {"collect": None, "lazy": None})(), r"LazyFrame, .* give its \.collect\(\)"),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), "two columns have the name 'text'"),
        (pandas.Series(TEXTS), "has str among its rows: give a path"),
        (TEXTS, "has str among its rows: give a path"),
        ({"text": TEXTS, "label": ["x"]}, "several lengths: 'text' has 2, 'label' has 1"),
        ({"text": "a", "label": "x"}, "whose 'text' is not a list"),
        ([{"text": b"a"}], "data, row 1: 'text' holds a value that JSON does not have, of the type bytes"),
        ([{"label": {1}}], "of the type set"),
        ([{1: "a", "1": "b"}], "two keys have the name '1'"),
        (object(), "data is of the type object: give a path"),
    ],
)
def test_other_things_are_refused_in_one_line(value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        write_data(value, "data")
    assert "\n" not in str(raised.value)
