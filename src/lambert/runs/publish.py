"""The model folder of a run, with its model card."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from lambert import __version__
from lambert.core import settings
from lambert.core.files import json_text, write_atomic
from lambert.corpus.tokens import tokenizer as tokenizers
from lambert.engine.progress import score_text
from lambert.model.families import DEFAULT, family_of
from lambert.model.heads import Model
from lambert.model.publish import publish
from lambert.runs.config import RunConfig
from lambert.runs.result import SCORES


def publish_run(
    config: RunConfig,
    model: Model,
    tokenizer: Any,
    extra: Mapping[str, Any],
    scores: Mapping[str, float],
    files: Mapping[str, str] | None = None,
) -> str:
    """Writes the model folder of a run, with a model card and `files`, and scores.json beside it. Returns a line that
    names the folder."""
    folder = config.out / "model"
    write_atomic(config.out / SCORES, json_text(dict(scores), indent=1) + "\n")
    text = card(model, config, scores)
    publish(model.cpu(), folder, partial(tokenizers.save, tokenizer), extra, card=text, files=files, replace=True)
    return f"model  {folder}"


def card(model: Model, config: RunConfig, scores: Mapping[str, float]) -> str:
    """Returns the model card: the shape of the model, its held-out scores, how to load it, and its recipe."""
    shape, family = model.config, family_of(model.config)
    tag = DEFAULT if shape.custom_block else shape.block
    size = sum(parameter.numel() for parameter in model.parameters())
    rows = "".join(f"| {_plain(name)} | {score_text(name, value)} |\n" for name, value in scores.items())
    use = (
        "```python\nfrom transformers import AutoModel, AutoTokenizer\n\n"
        'tokenizer = AutoTokenizer.from_pretrained(".")\nmodel = AutoModel.from_pretrained(".")\n```\n\n'
        if not shape.custom_block
        else f"Its layers are of the class {_plain(shape.block)}, which must be importable and named by `--code`. "
        "Lambert reads this folder, transformers does not.\n\n"
    )
    return (
        f"---\nlibrary_name: transformers\ntags: [{tag}, lambert]\n---\n\n# {_plain(config.out.name)}\n\n"
        f"A {family.title} encoder of {shape.layers} layers, width {shape.hidden}, {shape.heads} heads, "
        f"{shape.vocabulary:,} pieces and {size:,} parameters, with the heads {_plain(', '.join(model.objectives))}. "
        f"Made by Lambert {__version__}.\n\n"
        + (f"## Held-out scores\n\n| score | value |\n|---|---|\n{rows}\n" if scores else "")
        + f"## Use\n\n{use}"
        f"## Recipe\n\n{_fenced(settings.text(config), 'toml')}"
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
