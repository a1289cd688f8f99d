"""The interface of tasks: from labelled text to targets, and from outputs of a head to predictions and scores."""

import copy
import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, cast

from lambert.core.errors import DataError, UsageError
from lambert.core.files import json_text, write_atomic
from lambert.core.registry import Kind, lookup, nearest
from lambert.core.settings import as_dict, check_types
from lambert.model.config_keys import architectures
from lambert.model.labels import label_names
from lambert.tasks.config import TASKS, Columns, EmbedConfig, SquadConfig, TagConfig, TaskConfig, check_task_name
from lambert.tasks.reading.mismatch import advise_model_user
from lambert.tasks.reading.templates import columns_of, is_template
from lambert.tasks.scores.examples import Examples
from lambert.text import read_row
from lambert.text.json_rows import decode_row

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from lambert.tasks.reading.segments import Segments

Row = read_row.Row
Outputs = Iterable[Mapping[str, Any]]
"""`model.outputs(batch)` of every batch, in the order of the sequences."""


D = TypeVar("D", bound="Segments")
P = TypeVar("P")


class Task(ABC, Generic[D, P]):
    """Connects labelled text (D, a Source), the head that is trained on it, and predictions (P, one per example).

    A task from outside derives from this class, or from one of Lambert's tasks. It needs the abstract methods; the
    others have defaults.
    """

    head: str
    """Name of the objective: a key of `model.objectives.HEADS`, or "package.module:name"."""
    labels: int
    """Number of outputs of the head."""
    ranks = False
    """Whether `rows` can list only the most probable labels, answers or pieces."""
    top = 0
    """Number that `rows` lists; 0: as the settings say."""
    example: ClassVar[Any] = "The train to the coast leaves at nine."
    """A text, or an object with the keys of a row, that the description of a served model shows as its input."""
    names_labels = False
    """Whether the outputs of the head are labels with names."""
    pipeline = ""
    """Name of the task on the Hugging Face Hub."""
    special_tokens: ClassVar[tuple[str, ...]] = ("cls", "sep")
    """Roles of the special tokens that the vocabulary must have."""
    fine_tuned = True
    """Whether the head is fine-tuned on labelled data; False: pre-trained models have it."""
    computes_vectors = False
    """Whether predictions are vectors of texts."""
    soft_targets: ClassVar[Literal["", "softened", "mixed", "tokens"]] = ""
    """How a student learns a teacher's predictions (`distillation`): at a temperature; mixed with the truth, since the
    gradient is linear in it; for each token; or not at all."""
    headline = ""
    """The score that a sweep compares; empty: the first."""
    file_kinds: ClassVar[Sequence[str]] = ()
    """Suffixes of labelled files that are of no other task."""
    unused_settings: ClassVar[tuple[str, ...]] = ()
    """Beginnings of the names of settings that the task does not use."""
    reranks = False
    """Whether pairs have a `relevance`."""
    cut_by_tokenizer = False
    """Whether other libraries cut the texts at the limit that the tokenizer names."""
    cross_encoder = False
    """Whether sentence-transformers reads the model as a CrossEncoder, with one sequence for a row."""
    reads_words = False
    """Whether the text of a row may be a list of its words."""
    pairs = False
    """Whether each row has two texts, whatever its columns are."""

    def __init__(self, config: TaskConfig, tokenizer: "Tokenizer") -> None:
        """Makes the task of a complete description, with labels."""
        self.config, self.tokenizer = config, tokenizer

    @classmethod
    def learn(cls, config: TaskConfig, tokenizer: "Tokenizer", path: Path) -> tuple[Self, D]:
        """Returns the task, completed from the training file (labels, version), and the training data."""
        task = cls(config, tokenizer)
        return task, task.read(path, training=True)

    @abstractmethod
    def read(self, path: Path, *, training: bool = False) -> D:
        """Reads a labelled file. With `training`, examples that cannot be trained on are left out. Raises DataError."""

    @abstractmethod
    def parse(self, rows: Sequence[Row], places: Sequence[str]) -> D:
        """Reads rows without labels. `places` names each row in error messages."""

    @abstractmethod
    def predictions(self, data: D, outputs: Outputs) -> list[P]:
        """Returns one prediction per example, from the outputs for all sequences of `data` in order."""

    @abstractmethod
    def score(self, data: D, predictions: Sequence[P]) -> dict[str, float]:
        """Returns scores by name. NAME_se is the standard error of NAME."""

    @abstractmethod
    def rows(self, data: D, predictions: Sequence[P]) -> list[Row]:
        """Returns predictions as plain values, one row per example."""

    def inputs(self) -> tuple[list[str], list[str]]:
        """Returns the required and the optional keys of a row to predict. "a.b" is the key b of the column a."""
        columns = self.config.columns
        names, names_b = map(columns_of, columns.row_keys())
        if columns.text_b_optional:
            return [*dict.fromkeys(names)], names_b
        return [*dict.fromkeys([*names, *names_b])], []

    @classmethod
    def key_columns(cls, path: Path, config: TaskConfig) -> Sequence[str]:
        """Returns the columns of a labelled table whose texts tell rows apart (`dev_split`)."""
        return config.columns.text, config.columns.text_b

    @classmethod
    def own_rows(cls, path: Path, config: TaskConfig) -> Iterator[tuple[str, Row]] | None:
        """Returns the rows of a labelled file, each after the text that tells it apart; None: they are a table's."""
        return None

    @classmethod
    def declared_labels(cls, columns: Columns, path: Path) -> tuple[str, ...]:
        """Returns the names of the labels that a labelled file declares (`files.class_names`); empty: none."""
        return ()

    @classmethod
    def reads_pairs(cls, config: TaskConfig) -> bool:
        """Returns whether each row has two texts."""
        return cls.pairs or bool(config.columns.text_b and not config.columns.text_b_optional)

    @classmethod
    def example_row(cls, config: TaskConfig) -> dict[str, Any]:
        """Returns a short row to predict, for the model card."""
        found: dict[str, Any] = {}
        given = {"text": config.columns.text, "text_b": config.columns.text_b}
        names = [key if name.isdecimal() else name for key, name in given.items() if name]
        for name, text in zip(names, ("A text.", "Another text."), strict=False):
            found |= dict.fromkeys(columns_of(name), text)
        return found

    def example_input(self) -> Any:
        """Returns an example input: a text if the model reads texts as well as objects."""
        names = self.inputs()[0]
        if isinstance(self.example, dict) or (len(names) == 1 and not is_template(self.config.columns.text)):
            return self.example
        return dict.fromkeys(names, self.example)

    def relevance(self, row: Row) -> float:
        """Returns the score of a pair of texts, from its row of `rows`."""
        raise NotImplementedError

    def columns_read(self) -> tuple[list[str], list[str]]:
        """Returns the required and the optional columns of a file of rows to predict."""
        return self.inputs()

    def score_names(self) -> tuple[str, ...] | None:
        """Returns the names of all possible scores, without standard errors and counts; None: not known, so
        `task.metrics` is not checked."""
        return None

    def examples(self, data: D, predictions: Sequence[P]) -> Examples | None:
        """Returns the scored examples for `lambert compare` and error analysis; None: the task has none."""
        return None

    @property
    def has_examples(self) -> bool:
        """Whether the class defines `examples`."""
        return type(self).examples is not Task.examples

    @staticmethod
    def score_file(file: Any) -> Examples:
        """Returns the scored examples of another system's predictions, a `scores.predictions.PredictionFile`. Raises
        DataError."""
        raise NotImplementedError

    @classmethod
    def scores_files(cls) -> bool:
        """Returns whether the class defines `score_file`."""
        return cls.score_file is not Task.score_file

    def tune(self, data: D, predictions: Sequence[P]) -> Self:
        """Returns the task with the settings that its predictions for the dev data choose: the thresholds of multilabel
        and squad, and the temperature of classify."""
        return self

    def with_top(self, top: int) -> Self:
        """Returns the task whose rows list the `top` most probable labels, answers or pieces; 0: the task itself.
        Raises UsageError if its rows have no such list."""
        if not top:
            return self
        if not isinstance(top, Integral) or top < 1:
            raise UsageError(f"top = {top!r} must be a whole number from 1 on, or 0 for no list.")
        if not self.ranks:
            raise UsageError(f"top is for classify, multilabel, squad and mask, not for {self.config.name!r}.")
        found = copy.copy(self)
        found.top = top
        return found

    def write(self, path: Path, data: D, predictions: Sequence[P]) -> list[Path]:
        """Writes the predictions in the format of the task, by default JSON lines. Returns the written files."""
        return [write_rows(path, self.rows(data, predictions))]

    def model_config(self) -> dict[str, Any]:
        """Returns keys for config.json: {"lambert": {"task": ...}} and the keys that Hugging Face reads."""
        return describe_task(self.config)

    def model_files(self, width: int) -> dict[str, str | bytes]:
        """Returns the files that the task adds to a model folder, by path. `width` is that of the states."""
        return {}

    def width(self, hidden: int) -> int:
        """Returns the number of components of the vector of a text, from states of `hidden` components."""
        return hidden


KIND = Kind(
    (TaskConfig, object), Task,
    {"learn": 3, "read": 1, "parse": 2, "predictions": 2, "score": 2, "rows": 2, "write": 3, "model_config": 0},
)  # fmt: skip


def task_class(config: TaskConfig) -> type[Task[Any, Any]]:
    """Returns the class of a task. Raises UsageError for an unknown name or a class that is no `Task`."""
    found: Any = lookup(TASKS, config.name, "task.name", KIND)
    if isinstance(found, str):
        module, _, name = found.partition(":")
        found = getattr(importlib.import_module(module), name)
    return cast("type[Task[Any, Any]]", found)


def own_class(name: str) -> type[Task[Any, Any]]:
    """Returns the class of a task of Lambert's own; of another name, whose code is not imported, `Task`."""
    return task_class(TaskConfig(name=name)) if name in TASKS else Task


def score_predictions(task: Task[Any, Any], data: Any, predictions: Sequence[Any]) -> dict[str, float]:
    """Returns the scores of the predictions, with those of `task.config.metrics` first."""
    found = task.score(data, predictions)
    first = [key for name in task.config.metrics for key in (name, f"{name}_se") if key in found]
    return {key: found[key] for key in dict.fromkeys([*first, *found])}


def check_metrics(task: Task[Any, Any], given: Sequence[str]) -> None:
    """Raises UsageError if `given`, the setting task.metrics, names a score that the task does not have."""
    known = task.score_names()
    for name in given:
        if known is not None and name not in known:
            raise UsageError(
                f"task.metrics: {name!r} is not a score of the task {task.config.name!r} with these labels."
                f"{nearest(name, list(known))}"
            )


def most_probable(chances: Mapping[str, float], top: int) -> dict[str, float]:
    """Returns the `top` labels with the largest probabilities, by decreasing probability; 0: all, in their order."""
    if not top:
        return dict(chances)
    return dict(sorted(chances.items(), key=lambda item: -item[1])[:top])


def describe_task(config: TaskConfig) -> dict[str, Any]:
    """Returns {"lambert": {"task": ...}} for config.json. `parse_task` is its inverse."""
    return {"lambert": {"task": as_dict(config)}}


def parse_task(
    model_config: Mapping[str, Any], name: str = "", source: object = "The model's config.json"
) -> TaskConfig:
    """Returns the task that config.json of a model folder describes. For a folder that Lambert did not write, the task
    is `name`, or is derived from the architecture.

    Args:
        source: Names config.json in error messages.

    Raises:
        UsageError: The folder is of another task than `name`.
        DataError: The description is damaged.
    """
    check_task_name(name, "task")
    ours = model_config.get("lambert") or {}
    try:
        kept = ours.get("task")
        if kept is None:
            return _infer_task(model_config, name, source)
        if name and name != kept.get("name"):
            raise UsageError(f"The model was fine-tuned for the task {kept.get('name')!r}, not {name!r}.")
        found = _parse_description(kept)
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{source} does not describe its task correctly: {error}.") from error
    if found.labels and "id2label" in model_config and label_names(model_config, source) != found.labels:
        raise DataError(
            f"{source} names other labels in id2label than in lambert.task.labels, or in another order: write the same "
            "names in both."
        )
    return found


def _parse_description(kept: Mapping[str, Any]) -> TaskConfig:
    """Raises TypeError or ValueError if a value has a wrong type or is out of range."""
    parts: dict[str, Any] = {"columns": Columns, "squad": SquadConfig, "tag": TagConfig, "embed": EmbedConfig}
    given = {name: check_types(part, kept.get(name, {})) for name, part in parts.items()}
    rest = {key: value for key, value in kept.items() if key not in parts}
    try:
        return TaskConfig(
            **check_types(TaskConfig, rest), **{name: part(**given[name]) for name, part in parts.items()}
        )
    except UsageError as error:
        raise ValueError(str(error).rstrip(".")) from error


def _infer_task(model_config: Mapping[str, Any], name: str, source: object) -> TaskConfig:
    architecture = "".join(model_config.get("architectures") or [])
    head = next((heads[0] for end, heads in architectures("").items() if heads and end in architecture), "mlm")
    labels = label_names(model_config, source)
    problem = model_config.get("problem_type")
    if head == "label" and problem == "multi_label_classification":
        head = "multilabel"
    elif head == "label" and (problem == "regression" or len(labels) == 1):
        head = "value"
    name = name or next(task for task in TASKS if own_class(task).head == head)
    return _parse_description({"name": name, "labels": labels if own_class(name).names_labels else ()})


Asked = tuple[Any, Callable[[Outputs], list[Row]]]
"""The sequences of rows without labels, and the function from their outputs to predictions."""


def make_request(task: Task[Any, Any], rows: Sequence[Row], places: Sequence[str]) -> Asked:
    """Returns the sequences of rows without labels as a Source, and the function from their outputs to one
    prediction for each row, with the row's "id" if it has one. `places` names each row in error messages."""
    with advise_model_user():
        data = task.parse(rows, places)

    def finish(outputs: Outputs) -> list[Row]:
        found = task.rows(data, task.predictions(data, outputs))
        return [{"id": row["id"], **answer} if "id" in row else answer for row, answer in zip(rows, found, strict=True)]

    return data, finish


_NAMED = 8
"""Number of bad rows found by the names in the errors of the whole, before each row is read on its own (our choice)."""


def make_readable_request(
    task: Task[Any, Any], rows: Sequence[Row], places: Sequence[str]
) -> tuple[list[int], Asked | None, dict[int, DataError]]:
    """Returns the numbers of the rows that the task can read, their sequences with the function from outputs to
    predictions (`make_request`; None without such a row), and the error of each other row by its number.

    Rows are read together. An error begins with the place of its row, so the row is left out and the rest is read
    again; if that does not end soon, or the error names no row, each row is read on its own.
    """
    errors: dict[int, DataError] = {}
    good = [*range(len(rows))]
    while good:
        try:
            return (
                good,
                make_request(task, [rows[number] for number in good], [places[number] for number in good]),
                errors,
            )
        except DataError as error:
            bad = next((number for number in good if _names(str(error), places[number])), None)
            found = {bad: error} if bad is not None and len(errors) < _NAMED else {}
            found = found or _one_by_one(task, rows, places, good)
            if not found:
                raise
            errors |= found
        good = [number for number in good if number not in errors]
    return good, None, errors


def _names(message: str, place: str) -> bool:
    return message.startswith((f"{place}:", f"{place} "))


def _one_by_one(
    task: Task[Any, Any], rows: Sequence[Row], places: Sequence[str], numbers: Sequence[int]
) -> dict[int, DataError]:
    found = {}
    for number in numbers:
        try:
            make_request(task, [rows[number]], [places[number]])
        except DataError as error:
            found[number] = error
    return found


def keys_found(row: Mapping[str, Any]) -> str:
    """Returns the first keys of a row, for messages."""
    names = ", ".join(islice(map(str, row), 10)) + (", ..." if len(row) > 10 else "")
    names = " ".join(names.split())
    return (names if len(names) <= 200 else f"{names[:197]}...") or "none"


def text_of(row: Row, key: str, place: str) -> str:
    """Returns the text of `key`. Raises DataError if it is missing, null or not text."""
    value = row.get(key)
    if not isinstance(value, str):
        what = f"holds {str(value)[:60]}, not text"
        if value is None:
            what = "is null, not a text" if key in row else "is missing"
        raise DataError(f"{place}: {key!r} {what}. Keys found: {keys_found(row)}.")
    return whole_text(value, key, place)


def whole_text(text: str, key: str, place: str) -> str:
    """Returns the text. Raises DataError if it contains half of a surrogate pair, which JSON can write as \\ud800."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: {key!r} contains half of a surrogate pair, which is not a character.") from error
    return text


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    """Writes rows as JSON lines, or for .tsv as a tab-separated table without nested values."""
    if path.suffix == ".tsv":
        flat = [{key: value for key, value in row.items() if not isinstance(value, dict | list)} for row in rows]
        names = list(flat[0]) if flat else []
        table = [names, *([str(row[name]) for name in names] for row in flat)]
        return write_atomic(path, "".join("\t".join(cells) + "\n" for cells in table))
    return write_atomic(path, "".join(json_text(row) + "\n" for row in rows))


_OWN_KEYS = (
    {"label", "probability", "probabilities"}, {"labels", "probabilities"}, {"choice", "probability", "probabilities"},
    {"value"}, {"tags"}, {"tags", "spans"}, {"masks"}, {"vector"}, {"similarity"},
)  # fmt: skip
_OWN_TABLE = b"index\tprediction\n"
_OWN_SQUAD = re.compile(rb'\{\n "[^"\n]*": (?:"|\[\n  \{|-?\d)')
"""How the predictions of Lambert's own tasks begin, as rows, tables and SQuAD's files."""


def is_predictions(beginning: bytes) -> bool:
    """Returns whether a file with this beginning is one that `write` of one of Lambert's own tasks has written."""
    if beginning.startswith(_OWN_TABLE) or _OWN_SQUAD.match(beginning):
        return True
    return set(decode_row(beginning.partition(b"\n")[0])[0]) in _OWN_KEYS
