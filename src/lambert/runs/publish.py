"""The model folder of a run, with its model card."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lambert import __version__
from lambert.core import settings
from lambert.core.errors import REMEDIES, DivergedError
from lambert.core.files import json_text, write_atomic
from lambert.corpus.tokens import tokenizer as tokenizers
from lambert.engine.progress import score_text
from lambert.model.families import DEFAULT, family_of, reads_segments
from lambert.model.folder import architecture, unknown_to_transformers
from lambert.model.heads import Model
from lambert.model.publish import NotFinite, publish
from lambert.runs.config import RunConfig
from lambert.runs.result import SCORES
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
    shape, family = model.config, family_of(model.config)
    tag = DEFAULT if shape.custom_block else shape.block
    size = sum(parameter.numel() for parameter in model.parameters())
    errors = {name: f" ± {scores[f'{name}_se']:.4f}" for name in scores if f"{name}_se" in scores}
    rows = "".join(
        f"| {_plain(name)} | {score_text(name, value)}{errors.get(name, '')} |\n"
        for name, value in scores.items()
        if name not in {f"{scored}_se" for scored in errors}
    )
    library = "sentence-transformers" if _has_vectors(model) else "transformers"
    return (
        f"---\nlibrary_name: {library}\ntags: [{tag}, lambert]\n---\n\n# {_plain(config.out.name)}\n\n"
        f"A {family.title} encoder of {shape.layers} layers, width {shape.hidden}, {shape.heads} heads, "
        f"{shape.vocabulary:,} pieces and {size:,} parameters, with the heads {_plain(', '.join(model.objectives))}. "
        f"Made by Lambert {__version__}.\n\n"
        + (_data(trained) if trained else "")
        + (f"## Held-out scores\n\n| score | value |\n|---|---|\n{rows}\n" if scores else "")
        + (_limits(trained, config) if trained else "")
        + f"## Use\n\n{_use(model)}"
        f"## Recipe\n\n{_fenced(settings.text(config), 'toml')}"
    )


def _has_vectors(model: Model) -> bool:
    """Returns whether sentence-transformers reads the folder."""
    return model.joint and not model.config.custom_block


def _use(model: Model) -> str:
    """Returns the text that says how to load the model."""
    shape = model.config
    if shape.custom_block:
        return (
            f"Its layers are of the class {_plain(shape.block)}, which must be importable and named by `--code`. "
            "Lambert reads this folder, transformers does not.\n\n"
        )
    if name := unknown_to_transformers(shape, model.labels):
        return (
            f"Lambert reads this folder. transformers has no {name}: its `AutoModel` reads the encoder without the "
            "head.\n\n"
        )
    if _has_vectors(model):
        code = "from sentence_transformers import SentenceTransformer\n\n"
        code += 'model = SentenceTransformer(".")\nvectors = model.encode(["A text.", "Another text."])\n'
    else:
        _, has, head = architecture(shape, model.labels)[0].partition("For")
        code = f"from transformers import AutoModel{has}{head}, AutoTokenizer\n\n"
        code += f'tokenizer = AutoTokenizer.from_pretrained(".")\nmodel = AutoModel{has}{head}.from_pretrained(".")\n'
    return _fenced(code, "python") + "\n"


def _data(trained: Trained) -> str:
    """Returns the section about the task and the files."""
    labels, name = trained.task.labels, _plain(trained.task.name)
    listed = ", ".join(map(_plain, labels[:50])) + (", ..." if len(labels) > 50 else "")
    of = f" with the {len(labels)} labels {listed}" if labels else ""
    rows = "".join(
        f"| {use} | {_plain(file.path.name)} | {_counted(file.counts)} | {file.sha256} |\n"
        for use, file in (("training", trained.data), ("scores", trained.dev))
        if file is not None
    )
    table = f"| use | file | contents | SHA-256 |\n|---|---|---|---|\n{rows}\n"
    return f"## Task and data\n\nFine-tuned for the task {name}{of}, up to {trained.task.max_length} tokens.\n\n{table}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {_plain(name.replace('_', ' '))}" for name, count in counts.items() if count)


def _limits(trained: Trained, config: RunConfig) -> str:
    """Returns the section about what the scores do not say."""
    if trained.dev is None:
        return "## Limits\n\nThe model was not scored: the run had no dev file.\n\n"
    return (
        f"## Limits\n\n- The scores are of one training run, with the seed {config.seed}; other seeds give others.\n"
        "- ± is the standard error over the examples of the file; it does not include the variation between seeds.\n"
        f"- The model was scored on no other data than {_plain(trained.dev.path.name)}.\n\n"
    )


_MARKUP = re.compile(r"[\\`*\[\]<>|&~$#@]|:(?=//)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Characters that may begin markup, HTML, a table cell or a link within a line of Markdown."""


def _plain(text: str) -> str:
    """Returns a line of Markdown that shows the text unchanged."""
    return _MARKUP.sub(r"\\\g<0>", "".join(character if character.isprintable() else " " for character in text))


def _fenced(text: str, language: str) -> str:
    """Returns a code block whose fence is longer than any in the text (CommonMark, section 4.5)."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}{fence}\n"
