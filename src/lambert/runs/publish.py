"""The model folder of a run, and its model card: what every card has (`tasks.card`), scores, data and recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lambert.core import settings
from lambert.core.errors import REMEDIES, DivergedError
from lambert.core.files import json_text, write_atomic
from lambert.engine.progress import format_scores
from lambert.model.families import reads_segments
from lambert.model.heads import Model
from lambert.model.publish import NotFinite, publish
from lambert.runs.config import RunConfig
from lambert.runs.result import SCORES
from lambert.tasks.card import Origin, fence, format_heading, plain, use
from lambert.tasks.config import TaskConfig
from lambert.text.tokenizers import tokenizer as tokenizers


@dataclass(frozen=True, slots=True)
class LabelledFile:
    """A file of labelled examples."""

    path: Path
    sha256: str
    counts: Mapping[str, int]
    """The numbers of examples that were read, cut and left out, by name."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What the model card of a fine-tuned model says about its task and data."""

    task: TaskConfig
    data: LabelledFile
    dev: LabelledFile | None


def publish_run(
    config: RunConfig,
    model: Model,
    tokenizer: Any,
    extra: Mapping[str, Any],
    scores: Mapping[str, float],
    files: Mapping[str, str | bytes] | None = None,
    trained: Trained | None = None,
) -> str:
    """Writes the model folder of a run, with a model card and `files`, and scores.json beside it. Returns a line that
    names the folder."""
    folder = config.out / "model"
    write_atomic(config.out / SCORES, json_text(dict(scores), indent=1) + "\n")
    text = card(model, config, scores, trained)
    write = partial(tokenizers.save, tokenizer, longest=model.config.positions, segments=reads_segments(model.config))
    try:
        publish(model.cpu(), folder, write, extra, card=text, files=files, replace=True)
    except NotFinite as error:
        raise DivergedError(f"Training diverged: {error} {REMEDIES}") from error
    return f"model  {folder}"


def card(model: Model, config: RunConfig, scores: Mapping[str, float], trained: Trained | None = None) -> str:
    """Returns the model card: the shape of the model, its held-out scores, how to load it, and its recipe; of a
    fine-tuned model also its task, its data and the limits of its scores."""
    rows = "".join(f"| {plain(name)} | {text} |\n" for name, text in format_scores(scores).items())
    base = None if config.random_init or config.init is None else Origin.of(config.init)
    task = trained.task if trained else None
    return (
        format_heading(model, config.out.name, base, task)
        + (_data(trained) if trained else "")
        + (f"## Held-out scores\n\n| score | value |\n|---|---|\n{rows}\n" if scores else "")
        + (_limits(trained, config) if trained else "")
        + f"## Use\n\n{use(model, task)}"
        f"## Recipe\n\n{fence(settings.text(config), 'toml')}"
    )


def _data(trained: Trained) -> str:
    """Returns the section about the task and the files."""
    labels, name = trained.task.labels, plain(trained.task.name)
    listed = ", ".join(map(plain, labels[:50])) + (", ..." if len(labels) > 50 else "")
    of = f" with the {len(labels)} labels {listed}" if labels else ""
    rows = "".join(
        f"| {purpose} | {plain(file.path.name)} | {_format_counts(file.counts)} | {file.sha256} |\n"
        for purpose, file in (("training", trained.data), ("scores", trained.dev))
        if file is not None
    )
    table = f"| use | file | contents | SHA-256 |\n|---|---|---|---|\n{rows}\n"
    return f"## Task and data\n\nFine-tuned for the task {name}{of}, up to {trained.task.max_length} tokens.\n\n{table}"


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {plain(name.replace('_', ' '))}" for name, count in counts.items() if count)


def _limits(trained: Trained, config: RunConfig) -> str:
    """Returns the section about what the scores do not say."""
    if trained.dev is None:
        return "## Limits\n\nThe model was not scored: the run had no dev file.\n\n"
    return (
        f"## Limits\n\n- The scores are of one training run, with the seed {config.seed}; other seeds give others.\n"
        "- ± is the standard error over the examples of the file; it does not include the variation between seeds.\n"
        f"- The model was scored on no other data than {plain(trained.dev.path.name)}.\n\n"
    )
