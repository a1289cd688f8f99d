"""Tasks by the names of their data sets, such as glue/mrpc: the columns of their files, their labels and their scores.

The files are the user's. Each data set has at most two layouts: that of the official download, and that of the same
data set on the Hugging Face Hub, whose labels are numbers. Sources: GLUE (Wang et al. 2019, table 1) and SuperGLUE
(Wang et al. 2019, table 1), their files, and the data set cards nyu-mll/glue, aps/super_glue and eriktks/conll2003.

The texts of COPA are those of jiant 1.3. Those of WiC are those of T5 (Raffel et al. 2020, appendix D), without the
name of the task and the part of speech. In those of MultiRC the question is with the answer, as in RACE, so that only
the end of a long paragraph is cut.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, UsageError
from lambert.core.registry import choose
from lambert.tasks.config import TASKS, Columns, OtherColumns, TaskConfig
from lambert.tasks.reading.label_names import is_number
from lambert.tasks.reading.table import list_columns as columns_named
from lambert.tasks.reading.table import read_beginning
from lambert.tasks.task import own_class


@dataclass(frozen=True, slots=True)
class Named:
    """A data set: its task, scores, columns and labels."""

    task: str
    """The task: classify, regress, choice or tag."""
    metrics: tuple[str, ...]
    """The official scores; the first is the headline."""
    layouts: tuple[Columns, ...] = ()
    """Columns of its files; the first layout whose columns a file has is used."""
    labels: tuple[str, ...] = ()
    """The names of the labels 0, 1, ..."""


def _pair(text: str, text_b: str, label: str = "label") -> Columns:
    return Columns(text, text_b, label)


_SENTENCES = _pair("sentence1", "sentence2")
_PREMISE = _pair("premise", "hypothesis")
_ACCURACY = ("accuracy",)
_ENTAILED = ("entailment", "not_entailment")
_TRUTH = ("False", "True")

NAMED = {
    "glue/cola": Named(
        "classify", ("matthews",), (Columns("4", label="2", header=False), Columns("sentence")),
        ("unacceptable", "acceptable"),
    ),
    "glue/sst2": Named("classify", _ACCURACY, (Columns("sentence"),), ("negative", "positive")),
    "glue/mrpc": Named(
        "classify", ("f1", "accuracy"), (_pair("#1 String", "#2 String", "Quality"), _SENTENCES),
        ("not_equivalent", "equivalent"),
    ),
    "glue/stsb": Named(
        "regress", ("pearson", "spearman"), (_pair("sentence1", "sentence2", "score"), _SENTENCES)
    ),
    "glue/qqp": Named(
        "classify", ("f1", "accuracy"),
        (_pair("question1", "question2", "is_duplicate"), _pair("question1", "question2")),
        ("not_duplicate", "duplicate"),
    ),
    "glue/mnli": Named(
        "classify", _ACCURACY, (_pair("sentence1", "sentence2", "gold_label"), _PREMISE),
        ("entailment", "neutral", "contradiction"),
    ),
    "glue/qnli": Named("classify", _ACCURACY, (_pair("question", "sentence"),), _ENTAILED),
    "glue/rte": Named("classify", _ACCURACY, (_SENTENCES,), _ENTAILED),
    "glue/wnli": Named("classify", _ACCURACY, (_SENTENCES,), ("not_entailment", "entailment")),
    "superglue/boolq": Named("classify", _ACCURACY, (_pair("question", "passage"),), _TRUTH),
    "superglue/cb": Named(
        "classify", ("accuracy", "f1_macro"), (_PREMISE,), ("entailment", "contradiction", "neutral")
    ),
    "superglue/copa": Named(
        "choice", _ACCURACY,
        (
            Columns(
                "premise", "{question|cause=What was the cause of this?|effect=What happened as a result?}",
                choices=("choice1", "choice2"),
            ),
        ),
    ),
    "superglue/multirc": Named(
        "classify", ("f1", "exact_match"),
        (Columns("paragraph", "{question} {answer}", group="{idx.paragraph}-{idx.question}"),), _TRUTH,
    ),
    "superglue/rte": Named("classify", _ACCURACY, (_PREMISE,), _ENTAILED),
    "superglue/wic": Named(
        "classify", _ACCURACY, (Columns("sentence1: {sentence1} sentence2: {sentence2} word: {word}"),), _TRUTH
    ),
    "conll2003": Named(
        "tag", ("span_f1", "f1"),
        labels=("O", *(f"{mark}-{kind}" for kind in ("PER", "ORG", "LOC", "MISC") for mark in "BI")),
    ),
}  # fmt: skip
"""The data sets by name."""
REFUSED = {
    "superglue/wsc": "asks about two places of a text, and no task here has places as its input",
    "superglue/record": "has several right choices for a question, and the task choice has one",
}
"""Data sets that no task can read, and why."""


def resolve(config: TaskConfig, path: Path) -> TaskConfig:
    """Returns the settings of the ordinary task for a named one, with the layout whose columns the labelled file `path`
    has. A setting that differs from its default is kept. Without a name and without labels, the labels are those that
    the file declares (`files.class_names`). Labels that are names are also those of the numbers 0, 1, ..., unless the
    data set has named them in another order.

    Raises:
        UsageError: The name is unknown, or no task can read the data set.
        DataError: The file has the columns of no layout.
    """
    if ":" not in config.name:
        choose({**TASKS, **NAMED, **REFUSED}, config.name, "task.name")
    if config.name in REFUSED:
        raise UsageError(f"task.name = {config.name!r} is not supported: the data set {REFUSED[config.name]}.")
    named = NAMED.get(config.name)
    if named is not None:
        config = replace(
            config,
            name=named.task,
            columns=_columns(config, named, path) if named.layouts else config.columns,
            labels=config.labels or named.labels,
            metrics=config.metrics or named.metrics,
        )
    if not config.labels:
        config = replace(config, labels=own_class(config.name).declared_labels(config.columns, path))
    if config.columns.label_names or not config.labels or any(is_number(label) for label in config.labels):
        return config
    own = named.labels if named is not None and {*named.labels} == {*config.labels} else config.labels
    return replace(config, columns=replace(config.columns, label_names=own))


def resolve_for_evaluation(name: str, columns: OtherColumns, path: Path) -> tuple[str, OtherColumns]:
    """Returns the ordinary task for a named one, and the columns of its labelled file `path` with the names of label
    numbers; other names and columns unchanged. For scoring a model that may have been trained on other data."""
    named = NAMED.get(name)
    if named is None:
        return name, columns
    own = TaskConfig(name=name, columns=columns.over(Columns()))
    found = _columns(own, named, path) if named.layouts else own.columns
    found = replace(found, label_names=found.label_names or named.labels)
    return named.task, OtherColumns(**{field.name: getattr(found, field.name) for field in fields(OtherColumns)})


def _columns(config: TaskConfig, named: Named, path: Path) -> Columns:
    plain = Columns()
    own: dict[str, Any] = {
        field.name: value
        for field in fields(Columns)
        if (value := getattr(config.columns, field.name)) != getattr(plain, field.name)
    }
    found, first = read_beginning(path)
    layouts = [replace(layout, **own) for layout in named.layouts]
    for layout in layouts:
        columns = columns_named(layout)
        if layout.header is False:
            # Such a file shows its layout by the number of its columns and by its first label.
            fits = all(name in first for name in columns) and first[layout.label] in map(str, range(len(named.labels)))
        else:
            fits = all(name in found or name.partition(".")[0] in found for name in columns)
        if fits:
            return layout
    raise DataError(
        f"{path} has none of the layouts of {config.name}. Columns found: {', '.join(found[:20])}. Columns expected: "
        f"{'; or '.join(map(_format_layout, layouts))}. Name others as task.columns.text, text_b and label."
    )


def _format_layout(layout: Columns) -> str:
    names = ", ".join(dict.fromkeys(columns_named(layout)))
    return f"{names} (numbers of columns, no header)" if layout.header is False else names
