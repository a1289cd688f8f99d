"""The model card of a run: what every model folder has (`tasks.card`), the scores, the data and the recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lambert.core import settings
from lambert.engine.progress import score_text
from lambert.model.heads import Model
from lambert.runs.config import RunConfig
from lambert.tasks.card import Origin, beginning, fenced, plain, use
from lambert.tasks.config import TaskConfig


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


def card(model: Model, config: RunConfig, scores: Mapping[str, float], trained: Trained | None = None) -> str:
    """Returns the model card: the shape of the model, its held-out scores, how to load it, and its recipe; of a
    fine-tuned model also its task, its data and the limits of its scores."""
    errors = {name: f" ± {scores[f'{name}_se']:.4f}" for name in scores if f"{name}_se" in scores}
    rows = "".join(
        f"| {plain(name)} | {score_text(name, value)}{errors.get(name, '')} |\n"
        for name, value in scores.items()
        if name not in {f"{scored}_se" for scored in errors}
    )
    base = None if getattr(config, "random_init", False) or config.init is None else Origin.of(config.init)
    task = trained.task if trained else None
    return (
        beginning(model, config.out.name, base, task)
        + (_data(trained) if trained else "")
        + (f"## Held-out scores\n\n| score | value |\n|---|---|\n{rows}\n" if scores else "")
        + (_limits(trained, config) if trained else "")
        + f"## Use\n\n{use(model, task)}"
        f"## Recipe\n\n{fenced(settings.text(config), 'toml')}"
    )


def _data(trained: Trained) -> str:
    """Returns the section about the task and the files."""
    labels, name = trained.task.labels, plain(trained.task.name)
    listed = ", ".join(map(plain, labels[:50])) + (", ..." if len(labels) > 50 else "")
    of = f" with the {len(labels)} labels {listed}" if labels else ""
    rows = "".join(
        f"| {purpose} | {plain(file.path.name)} | {_counted(file.counts)} | {file.sha256} |\n"
        for purpose, file in (("training", trained.data), ("scores", trained.dev))
        if file is not None
    )
    table = f"| use | file | contents | SHA-256 |\n|---|---|---|---|\n{rows}\n"
    return f"## Task and data\n\nFine-tuned for the task {name}{of}, up to {trained.task.max_length} tokens.\n\n{table}"


def _counted(counts: Mapping[str, int]) -> str:
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
