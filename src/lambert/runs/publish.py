"""The model folder of a run."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from lambert.core.errors import REMEDIES, DivergedError
from lambert.core.files import json_text, write_atomic
from lambert.model.families import reads_segments
from lambert.model.heads import Model
from lambert.model.publish import NotFinite, publish
from lambert.runs.card import Trained, card
from lambert.runs.config import RunConfig
from lambert.runs.result import SCORES
from lambert.text.tokenizers import tokenizer as tokenizers


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
