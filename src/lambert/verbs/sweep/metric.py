"""The score that a sweep optimizes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lambert.core.errors import UsageError
from lambert.core.registry import nearest
from lambert.engine.progress import COUNTS
from lambert.runs.best import lower_is_better
from lambert.verbs import finetune, pretrain
from lambert.verbs.settings.finetune import FinetuneConfig
from lambert.verbs.settings.pretrain import PretrainConfig


class NoSuchScore(UsageError):
    """The runs do not compute the metric of the sweep."""


def score_names(config: Any) -> list[str]:
    """Returns the names of the scores that runs with these settings compute, the headline first. Fine-tuning scores
    `dev` once for it, without training.

    Raises UsageError if the runs compute no scores, LambertError if they cannot begin.
    """
    names = pretrain.score_names(config) if isinstance(config, PretrainConfig) else _of_finetuning(config)
    if not names:
        raise NoSuchScore("The runs of this sweep compute no held-out scores: their data has no held-out part.")
    return names


def _of_finetuning(config: FinetuneConfig) -> list[str]:
    names = _without_counts(finetune.first_scores(config))
    if config.task.name == "squad" and not config.task.metrics:
        names.sort(key=lambda name: name != "f1")  # the usual headline, though the official scorer prints it second
    return names


def metric_of(name: str, direction: str, names: Sequence[str]) -> tuple[str, bool]:
    """Returns the metric, without a `name` the first of `names`, and whether it is minimized. Raises NoSuchScore if
    `name` is none of them."""
    name = name or names[0]
    if name not in names:
        close = nearest(name, [*names])
        listed = f" Known: {', '.join(names)}." if "Known" not in close else ""
        raise NoSuchScore(f"metric = {name!r} is not a score of these runs.{close}{listed}")
    return name, direction == "minimize" if direction else lower_is_better(name)


def value_of(scores: Mapping[str, float], metric: str) -> tuple[float, float | None]:
    """Returns the value of the metric among the scores of a run, and its standard error over the held-out examples if
    the run computed it.

    Raises NoSuchScore if the metric is not among them.
    """
    metric, _ = metric_of(metric, "", _without_counts(scores))
    error = scores.get(f"{metric}_se")
    return float(scores[metric]), None if error is None or not math.isfinite(error) else float(error)


def _without_counts(scores: Mapping[str, float]) -> list[str]:
    return [name for name in scores if not name.endswith((*COUNTS, "_se"))]
