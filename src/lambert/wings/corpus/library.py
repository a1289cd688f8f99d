"""The verbs of corpora as Python functions (`lambert.library` describes what they have in common)."""

from pathlib import Path
from typing import Any

from lambert.core.files import as_path
from lambert.library import call_settings, lines, report_stops
from lambert.runs.result import Result
from lambert.wings.corpus.config import FetchCorpusConfig, PrepareConfig, VerifyCorpusConfig
from lambert.wings.corpus.verbs import extend as extension
from lambert.wings.corpus.verbs import fetch as fetching
from lambert.wings.corpus.verbs import peek as preview
from lambert.wings.corpus.verbs import prepare as preparation
from lambert.wings.corpus.verbs import verify as verification


def prepare(recipe: str | Path | PrepareConfig | None = None, **settings: Any) -> Result:
    """Converts raw text to a tokenizer and token shards, as `lambert prepare`. The folder of the result is the
    corpus."""
    with report_stops():
        return preparation.run(call_settings("prepare", recipe, settings), lines())


def peek(recipe: str | Path | PrepareConfig | None = None, **settings: Any) -> list[preview.Peeked]:
    """Returns ten documents of the inputs after each step, as `lambert corpus peek` shows them, with the settings of
    `prepare`. Nothing is written, and `out` is not needed."""
    return preview.peek(call_settings("corpus peek", recipe, settings))


def fetch_corpus(source: str, out: str | Path) -> Result:
    """Copies a prepared corpus from a URL, such as s3://bucket/corpus, to a folder and compares it with its hashes, as
    `lambert corpus fetch`. Repeating the call continues the copy."""
    with report_stops():
        return fetching.run(FetchCorpusConfig(source, as_path(out, "out")), lines())


def verify_corpus(corpus: str | Path) -> Result:
    """Compares every hash and every count of a corpus with its manifest, as `lambert corpus verify`. Raises DataError
    if they differ."""
    return verification.run(VerifyCorpusConfig(as_path(corpus, "corpus")), lines())


def extend(model: str | Path, **settings: Any) -> Result:
    """Adds words of a text to the vocabulary of an encoder, as `lambert extend`. The folder of the result is the model
    folder, and its scores have the tokens per word on held-out text, before and after.

    Args:
        model: Run folder or model folder.
        settings: `out`, `input`, `words` and other settings of the command.
    """
    return extension.run(call_settings("extend", model, settings), lines())
