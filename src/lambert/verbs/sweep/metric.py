"""The score that a sweep optimizes."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from lambert.core.errors import UsageError
from lambert.core.registry import nearest
from lambert.engine.progress import COUNTS
from lambert.runs.best import lower_is_better
from lambert.tasks.config import TaskConfig
from lambert.tasks.embed import scores_pairs
from lambert.tasks.tag import marks_spans

SCORES = {
    "": ("mlm", "mlm_accuracy", "nsp", "nsp_accuracy"),
    "classify": ("accuracy", "f1", "f1_macro", "matthews", "loss", "ece"),
    "multilabel": ("f1_micro", "f1_macro", "average_precision", "exact_match", "loss"),
    "regress": ("pearson", "spearman", "mse"),
    "choice": ("accuracy", "loss"),
    "squad": ("f1", "exact_match", "best_f1", "best_exact_match"),
    "tag": ("f1", "accuracy", "span_f1", "span_precision", "span_recall", "strict_span_f1"),
    "embed": ("ndcg_10", "mrr_10", "recall_10", "recall_100", "accuracy_1", "map_100", "spearman", "pearson"),
}
"""The scores of Lambert's tasks, the default first; "" is pre-training. The default of tag and embed depends on the
labelled files (`headline`)."""


class NoSuchScore(UsageError):
    """The runs do not compute the metric of the sweep."""


def metric_of(name: str, direction: str, task: str, first: Sequence[str] = ()) -> tuple[str, bool]:
    """Returns the metric, and whether it is minimized. Without a `name` it is the first score of `first` that the task
    has, else the default of the task.

    Raises UsageError if Lambert's `task` has no such score, or if `name` is empty and the task is not Lambert's.
    """
    known = SCORES.get(task)
    if known and name and name not in known:
        of = f"the task {task}" if task else "pretrain"
        close = nearest(name, list(known))
        listed = f" Known: {', '.join(known)}." if "Known" not in close else ""
        raise UsageError(f"metric = {name!r} is no score of {of}.{close}{listed}")
    if not known and not name:
        raise UsageError(f"Set sweep.metric: the task {task} has no default score.")
    name = name or next((score for score in first if score in (known or ())), (known or ("",))[0])
    return name, direction == "minimize" if direction else lower_is_better(name)


def headline(task: TaskConfig, data: Path, dev: Path) -> tuple[str, ...]:
    """Returns the scores of which the first that the task has is the default: those of task.metrics, and the first
    score of the task if it depends on the labelled files. Raises DataError if they cannot be read."""
    if task.name == "tag":
        return (*task.metrics, "span_f1" if marks_spans(task, data) else "f1")
    if task.name == "embed":
        return (*task.metrics, "spearman" if scores_pairs(task, dev) else "ndcg_10")
    return task.metrics


def value_of(scores: Mapping[str, float], metric: str) -> tuple[float, float | None]:
    """Returns the value of the metric among the scores of a run, and its standard error over the held-out examples if
    the run computed it.

    Raises NoSuchScore if the metric is not among them.
    """
    names = [name for name in scores if not name.endswith((*COUNTS, "_se"))]
    if metric not in names:
        if not names:
            raise NoSuchScore("The runs of this sweep compute no held-out scores: their data has no held-out part.")
        raise NoSuchScore(f"metric = {metric!r} is no score of these runs. Known: {', '.join(names)}.")
    error = scores.get(f"{metric}_se")
    return float(scores[metric]), None if error is None or not math.isfinite(error) else float(error)
