"""The verbs of corpora as Python functions (`lambert.library` says what they have in common)."""

from pathlib import Path
from typing import Any

from lambert.library import call_settings, lines, running
from lambert.runs.result import Result
from lambert.wings.corpus import peek as preview
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.peek import Peeked
from lambert.wings.corpus.verbs import extend as extension
from lambert.wings.corpus.verbs import prepare as preparation


def prepare(recipe: str | Path | PrepareConfig | None = None, /, **settings: Any) -> Result:
    """Converts raw text to a tokenizer and token shards, as `lambert prepare`. The folder of the result is the
    corpus."""
    with running():
        return preparation.run(call_settings("prepare", recipe, settings), lines())


def peek(recipe: str | Path | PrepareConfig | None = None, /, **settings: Any) -> list[Peeked]:
    """Returns ten documents of the inputs after each step, as `lambert prepare --peek` shows them, with the settings of
    `prepare`. Nothing is written, and `out` is not needed."""
    return preview.peek(call_settings("prepare", recipe, {**settings, "peek": True}))


def extend(model: str | Path, /, **settings: Any) -> Result:
    """Adds words of a text to the vocabulary of an encoder, as `lambert extend`. The folder of the result is the model
    folder, and its scores have the tokens per word on held-out text, before and now.

    Args:
        model: Run folder or model folder.
        settings: `out`, `input` and `words`, and others of the command.
    """
    return extension.run(call_settings("extend", model, settings), lines())
