"""Predictions of other systems, from files, scored as those of a fine-tuned model.

| task | a file of predictions |
| --- | --- |
| squad | the JSON object {id: answer} of the official script |
| tag | CoNLL with the predicted tags, or JSON lines {"tags": [...]} |
| the others | TSV, CSV, JSON lines, Parquet with a prediction in each row; JSON: {id: prediction}, or a list |

Rows with ids are matched by them, others by their order.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, UsageError, quote
from lambert.tasks.config import TASKS, Columns, TaskConfig
from lambert.tasks.reading.files import digest
from lambert.tasks.reading.label_names import check_known, is_number, match
from lambert.tasks.reading.table import read_rows
from lambert.tasks.scores.examples import Examples
from lambert.tasks.task import Row, keys_found, own_class
from lambert.text.rows import TABLES, kind, parse_json_file, read_content, read_lines

_IDS = ("id", "idx", "index", "guid")
_PREDICTIONS = ("prediction", "predictions", "label", "labels", "value", "choice")


def score_file(
    path: Path, gold: Path, config: TaskConfig, like: Examples | None, say: Callable[[str], None] = lambda line: None
) -> Examples:
    """Returns the scored examples of a file of predictions, with the scores that need no probabilities.

    Args:
        gold: The labelled file that was predicted.
        config: The task of a model that was scored on it; of one without a model only the name is known.
        like: The scored examples of this model; None if there is no model, which squad and tag do not need.
        say: Called with lines for the user about the labels.

    Raises:
        UsageError: Predictions of this task cannot be read from a file, or not without a model.
        DataError: Predictions are missing, superfluous or malformed.
    """
    task = own_class(config.name)
    if not task.scores_files():
        known = ", ".join(name for name in TASKS if own_class(name).scores_files())
        raise UsageError(f"Files of predictions are compared for {known}, not for {config.name!r}.")
    found = task.score_file(PredictionFile(path, gold, config, like, say))
    return Examples(found.rows, found.formulas, config.name, str(gold), digest(gold))


def task_of(gold: Path) -> TaskConfig:
    """Returns the task of a labelled file whose form says which it is. Raises UsageError for a table."""
    for name in TASKS:
        if kind(gold) in own_class(name).file_kinds:
            return TaskConfig(name=name)
    raise UsageError(f"{gold} does not say which task it is of: name also a run of this task, scored on it.")


@dataclass(frozen=True, slots=True)
class PredictionFile:
    """What `Task.score_file` scores: a file of predictions, with the arguments of `score_file`."""

    path: Path
    gold: Path
    config: TaskConfig
    like: Examples | None
    say: Callable[[str], None]

    def read_json(self) -> Any:
        """Returns the object or the list in the file; None if it has another value."""
        return _json(self.path)

    def check_ids(self, found: Mapping[str, Any], ids: Sequence[str]) -> None:
        """Raises DataError if predictions are missing or belong to no example."""
        _check_ids(self.path, found, ids, self.gold)

    def check_count(self, count: int, expected: int, what: str) -> None:
        """Raises DataError if the files have other numbers of examples."""
        _check_count(self.path, count, expected, self.gold, what)

    def score_rows(self, values: "Callable[[PredictedRows], Iterator[Row]]", *, blank: bool = False) -> Examples:
        """Returns the examples of a task with a prediction in each row. The truth is that of `like`.

        Args:
            values: Yields the values of each example that depend on its prediction.
            blank: Whether a blank line of a table of one column is a row too.
        """
        path, gold, like = self.path, self.gold, self.like
        if like is None:
            raise UsageError(f"{path} is a file of predictions: name also a run of the same task, scored on {gold}.")
        if like.data_sha256 != digest(gold):
            raise DataError(
                f"The run was scored on {like.data} (SHA-256 {like.data_sha256[:12]}), which is not {gold}: name the "
                "same file as --gold, or score the run on it: lambert evaluate --data FILE --examples FILE."
            )
        cells = []
        for place, row in _match_rows(path, gold, _gold_ids(gold, like), blank):
            key = next((name for name in _PREDICTIONS if name in row), "")
            if not key:
                raise DataError(f"{place}: no column 'prediction'. Columns found: {keys_found(row)}.")
            cells.append(Cell(place, row, key))
        rows = PredictedRows(path, cells, self.config, [row["truth"] for row in like.rows], self.say)
        made = []
        for found, old in zip(values(rows), like.rows, strict=True):
            shared = {name: old[name] for name in ("text", "text_b", "tokens", "truth") if name in old}
            made.append(shared | found)
        known = {"truth", *made[0]}
        formulas = {name: formula for name, formula in like.formulas.items() if known.issuperset(formula.columns)}
        return Examples(made, formulas)


def _gold_ids(gold: Path, like: Examples) -> list[str | None]:
    """Returns the ids of the rows of the labelled file. A table has a header if it has one line more than `like` has
    examples, none of whose cells is a number: the settings of the run may be those of another file."""
    rows = [row for _, row in read_rows(gold, Columns("1", label="2", header=False))]
    named = bool(rows) and not any(str(cell).strip().isdecimal() for cell in rows[0].values())
    if kind(gold) in TABLES and len(rows) == len(like.rows) + 1 and named:
        rows = [dict(zip(map(str, rows[0].values()), row.values(), strict=True)) for row in rows[1:]]
    _check_count(gold, len(rows), len(like.rows), Path(like.data), "rows")
    return [_id(row) for row in rows]


@dataclass(frozen=True, slots=True)
class Cell:
    """A prediction in a file: the column `key` of a row."""

    place: str
    row: Row
    key: str


@dataclass(frozen=True, slots=True)
class PredictedRows:
    """A file of predictions with one in each row."""

    path: Path
    cells: Sequence[Cell]
    config: TaskConfig
    truth: Sequence[Any]
    """The truth of each example."""
    say: Callable[[str], None]

    def match(self, found: Sequence[Sequence[str]], labels: Sequence[str]) -> Mapping[str, int]:
        """Returns the numbers of the predicted labels of each cell. Raises DataError for a label that the model does
        not have, and for numbers whose order is not declared."""
        places: dict[str, str] = {}
        for own, cell in zip(found, self.cells, strict=True):
            for label in own:
                places.setdefault(label, cell.place)
        matched = match(places, labels, self.config.columns.label_names, self.path, "")
        if matched.by_order and not self.config.labels:
            label = next(label for label in places if is_number(label))
            raise DataError(
                f"{places[label]}: label {quote(label)} is a number, and a file of scored examples does not say the "
                "order of the labels: name the run folder instead."
            )
        check_known(matched, places, labels)
        for line in matched.notes:
            self.say(line)
        return matched.numbers


def _match_rows(path: Path, gold: Path, ids: Sequence[str | None], blank: bool) -> list[tuple[str, Row]]:
    """Returns the rows of predictions in the order of the labelled file, whose rows have these ids. With `blank`, a
    blank line of a table of one column is a row too."""
    rows = _read(path, blank)
    own = [_id(row) for _, row in rows]
    if None in own:
        _check_count(path, len(rows), len(ids), gold, "rows")
        return rows
    numbers = [str(number) for number in range(len(ids))]
    names = [number if name is None else name for number, name in zip(numbers, ids, strict=True)]
    # In the files of GLUE, and in those that `evaluate` writes, the index is the number of the row.
    if {*own} == {*numbers} != {*names} or (own == numbers and "index" in rows[0][1]):
        names = numbers
    _check_unique(names, gold)
    given = [str(name) for name in own]
    _check_unique(given, path)
    found = dict(zip(given, rows, strict=True))
    _check_ids(path, found, names, gold)
    return [found[name] for name in names]


def _read(path: Path, blank: bool) -> list[tuple[str, Row]]:
    if kind(path) in TABLES:
        return _table(path, blank)
    if kind(path) == ".json" and (found := _json(path, by_line=True)) is not None:
        named = isinstance(found, dict)
        pairs = found.items() if named else enumerate(found, 1)
        rows = [(key, value if isinstance(value, dict) else {"prediction": value}) for key, value in pairs]
        return [(f"{path}: entry {key}", {"id": key, **row} if named else row) for key, row in rows]
    return list(read_rows(path, Columns()))


def _table(path: Path, blank: bool) -> list[tuple[str, Row]]:
    """Returns the rows of a table, whose first line may have the names of the columns."""
    rows = _one_column(path) if blank else []
    rows = rows or list(read_rows(path, Columns("1", label="2", header=False)))
    cells = [str(cell) for cell in rows[0][1].values()]
    if {*cells} & {*_PREDICTIONS, *_IDS}:
        return [(place, dict(zip(cells, row.values(), strict=True))) for place, row in rows[1:]]
    names = {1: ["prediction"], 2: ["id", "prediction"]}.get(len(cells))
    if names is None:
        raise DataError(f"{path}:1 has {len(cells)} columns: name them in the first line, as index and prediction.")
    return [(place, dict(zip(names, row.values(), strict=True))) for place, row in rows]


def _one_column(path: Path) -> list[tuple[str, Row]]:
    """Returns the lines of a table of one column, blank ones too (no label); nothing for a table with more columns."""
    rows = [(f"{path}:{number}", line.rstrip("\r\n")) for number, line in read_lines(path)]
    if not rows or (rows[0][1] not in _PREDICTIONS and (kind(path) != ".txt" or any("\t" in line for _, line in rows))):
        return []
    enclosed = re.compile(r'"(.*)"')
    return [(place, {"1": enclosed.sub(r"\1", line) if enclosed.fullmatch(line) else line}) for place, line in rows]


def _json(path: Path, *, by_line: bool = False) -> Any:
    """Returns the content of a JSON file; with `by_line`, None if it has JSON lines."""
    try:
        found = parse_json_file(path, read_content(path))
    except DataError:
        if by_line:
            return None
        raise
    return found if isinstance(found, dict | list) else None


def _id(row: Row) -> str | None:
    """Returns the id of a row, None if it has none. The answers of MultiRC have several numbers."""
    for name in _IDS:
        value = row.get(name)
        if isinstance(value, Mapping) and value:
            return ", ".join(f"{key} {value[key]}" for key in sorted(value))
        if isinstance(value, str | int):
            return str(value)
    return None


def _check_unique(ids: Sequence[str], path: Path) -> None:
    """Raises DataError if an id of the file occurs twice."""
    count = Counter(ids)
    if (twice := next((name for name in ids if count[name] > 1), None)) is not None:
        raise DataError(f"{path}: the id {quote(twice)} occurs twice. Give each example an id of its own.")


def _check_ids(path: Path, found: Mapping[str, Any], ids: Sequence[str], gold: Path) -> None:
    """Raises DataError if predictions are missing or belong to no example."""
    known = {*ids}
    for names, what in (
        ([name for name in ids if name not in found], f"no prediction for the id {{}} of {gold}"),
        ([name for name in found if name not in known], f"a prediction for the id {{}}, which {gold} does not have"),
    ):
        if names:
            more = f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""
            raise DataError(f"{path} has {what.format(quote(names[0]))}{more}. Each example needs one prediction.")


def _check_count(path: Path, count: int, expected: int, gold: Path, what: str) -> None:
    if count != expected:
        raise DataError(f"The numbers of {what} differ: {count:,} in {path}, {expected:,} in {gold}.")
