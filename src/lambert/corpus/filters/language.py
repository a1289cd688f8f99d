"""Keeps documents in one language."""

import functools
import importlib
from collections import Counter
from typing import Any

from lambert.core.errors import UsageError
from lambert.corpus.batch import Batch
from lambert.corpus.filters.outcome import Outcome

SEEN = 600
"""Characters of a document that the identifier reads, from its middle (our choice)."""


def language_filter(batch: Batch, language: str, min_score: float) -> Outcome:
    """Drops documents whose most probable language is another one, or has a smaller score."""
    outcome = Outcome()
    wanted = language.replace("_", "-").split("-")[0]
    for document, text in enumerate(batch.encoded):
        if document in batch.dropped:
            continue
        found, score = identify(text.decode())
        if found != wanted:
            outcome.dropped[document] = found or "unknown"
        elif score < min_score:
            outcome.dropped[document] = "uncertain"
        outcome.found[document] = Counter({found or "unknown": 1})
    return outcome


def identify(text: str) -> tuple[str, float]:
    """Returns the ISO 639 code of the most probable language of a text and its probability, ("", 0) for a text without
    letters. Of a long text, `SEEN` characters from its middle are read."""
    begin = max(0, (len(text) - SEEN) // 2)
    found, score = identifier().classify(" ".join(text[begin : begin + SEEN].split()))
    return ("", 0.0) if found in (None, "und", "unk") else (str(found), float(score))


@functools.cache
def identifier() -> Any:
    """Returns the identifier. Raises UsageError if py3langid is not installed."""
    try:
        langid = importlib.import_module("py3langid.langid")
    except ImportError as error:
        raise UsageError("clean = language needs py3langid: pip install 'lambert-bert[language]'.") from error
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def check_language(language: str) -> None:
    """Raises UsageError if the identifier does not know a language."""
    labels = identifier().labels
    if language.replace("_", "-").split("-")[0] not in labels:
        raise UsageError(f"language = {language!r} is not among the {len(labels)} languages of clean = language.")
