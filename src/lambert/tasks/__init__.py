"""Labelled text: the objectives, predictions and scores of fine-tuning tasks.

task, train = learn(config.task, tokenizer, train_file)             # fine-tuning: labels come from the file
task = create(parse_task(model_config), tokenizer)                  # later: the model folder knows its task
data = task.read(file)                                              # a core.batch.Source
predictions = task.predictions(data, outputs)                       # model.outputs(batch) of every batch in order
scores = task.score(data, predictions)
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lambert.tasks.config import TASKS, Columns, EmbedConfig, SquadConfig, TaskConfig
from lambert.tasks.named import resolve
from lambert.tasks.task import (
    Outputs,
    Row,
    Task,
    check_metrics,
    make_request,
    parse_task,
    score_predictions,
    task_class,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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
    "make_request",
    "parse_task",
    "resolve",
    "score_predictions",
    "task_class",
]  # fmt: skip


def create(config: TaskConfig, tokenizer: "Tokenizer") -> Task[Any, Any]:
    """Returns the task of a complete description, with labels, as `parse_task` reads it from a model folder."""
    return task_class(config)(config.resolve_length(), tokenizer)


def learn(config: TaskConfig, tokenizer: "Tokenizer", path: Path) -> tuple[Task[Any, Any], Any]:
    """Returns the task, completed from the training file, and the training data, a Source with targets."""
    return task_class(config).learn(config.resolve_length(), tokenizer, path)
