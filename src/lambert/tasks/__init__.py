"""Labelled text: the objectives, predictions and scores of fine-tuning tasks.

task, train = learn(config.task, tokenizer, train_file)             # fine-tuning: labels come from the file
task = create(parse_task(model_config), tokenizer)                  # later: the model folder knows its task
data = task.read(file)                                              # a core.batch.Source
predictions = task.predictions(data, outputs)                       # model.outputs(batch) of every batch in order
scores = task.score(data, predictions)
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lambert.core.registry import Kind, lookup
from lambert.tasks.config import TASKS, Columns, EmbedConfig, SquadConfig, TaskConfig
from lambert.tasks.named import resolve
from lambert.tasks.task import Outputs, Row, Task, check_metrics, make_request, parse_task, score_predictions

if TYPE_CHECKING:
    from tokenizers import Tokenizer

KIND = Kind(
    (TaskConfig, object), Task,
    {"learn": 3, "read": 1, "parse": 2, "predictions": 2, "score": 2, "rows": 2, "write": 3, "model_config": 0},
)  # fmt: skip

__all__ = [
    "TASKS",
    "Columns",
    "EmbedConfig",
    "Outputs",
    "Row",
    "SquadConfig",
    "Task",
    "TaskConfig",
    "check_metrics",
    "create",
    "learn",
    "list_roles",
    "make_request",
    "parse_task",
    "resolve",
    "score_predictions",
    "task_class",
]  # fmt: skip


def task_class(config: TaskConfig) -> type[Task[Any, Any]]:
    """Returns the class of a task. Raises UsageError for an unknown name or a class that is no `Task`."""
    found: Any = lookup(TASKS, config.name, "task.name", KIND)
    if isinstance(found, str):
        module, _, name = found.partition(":")
        found = getattr(importlib.import_module(module), name)
    return cast("type[Task[Any, Any]]", found)


def list_roles(name: str) -> tuple[str, ...]:
    """Returns the roles of the special tokens that the vocabulary must have for the task of this name."""
    return ("cls", "sep", "mask") if name == "mask" else ("cls", "sep")


def create(config: TaskConfig, tokenizer: "Tokenizer") -> Task[Any, Any]:
    """Returns the task of a complete description, with labels, as `parse_task` reads it from a model folder."""
    return task_class(config)(config.resolve_length(), tokenizer)


def learn(config: TaskConfig, tokenizer: "Tokenizer", path: Path) -> tuple[Task[Any, Any], Any]:
    """Returns the task, completed from the training file, and the training data, a Source with targets."""
    return task_class(config).learn(config.resolve_length(), tokenizer, path)
