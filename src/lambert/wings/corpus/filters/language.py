"""Keeps documents in one language.

The identifier is py3langid 0.4 (BSD-3-Clause; its model of 140 languages is part of the package): an automaton finds
the features of a text, byte by byte, and a naive Bayes classifier weighs them. Here the automaton reads all documents
of a batch at once. A test compares the results with those of the package.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.errors import UsageError
from lambert.core.registry import import_extra
from lambert.wings.corpus.batch import Outcome, TextBatch

SEEN = 300
"""Number of characters that are read from the middle of a document (our choice: reading 1,000 changes 1% of the
decisions)."""
UNKNOWN = "unknown"


class LanguageFilter:
    """The filter `language`. Reads the model when it is first called."""

    def __init__(self, language: str, min_score: float) -> None:
        self._wanted, self._min_score = language.replace("_", "-").split("-")[0], min_score
        langid()

    def __call__(self, batch: TextBatch) -> Outcome:
        outcome = Outcome()
        documents = [document for document in range(len(batch)) if document not in batch.dropped]
        found = self._identifier([middle(batch.encoded[document]) for document in documents])
        for document, (language, score) in zip(documents, found, strict=True):
            if language != self._wanted:
                outcome.dropped[document] = language
            elif score < self._min_score:
                outcome.dropped[document] = "uncertain"
            outcome.found[document] = Counter({language: 1})
        return outcome

    @cached_property
    def _identifier(self) -> "Identifier":
        identifier = Identifier()
        if self._wanted not in identifier.languages:
            raise UsageError(
                f"language = {self._wanted!r} is not among the {len(set(identifier.languages))} languages of clean = "
                "language. Remove language from clean."
            )
        return identifier


class Identifier:
    """The identifier of py3langid for many texts at once."""

    def __init__(self) -> None:
        module = langid()
        model = module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True)
        self.languages: list[str] = list(model.nb_classes)
        self._next = np.asarray(model.tk_nextmove)
        self._rows = np.asarray(model.tk_row).astype(np.int64) << 8
        self._features = np.asarray(model.tk_output, dtype=np.int32)
        self._weights, self._prior = model.nb_ptc, model.nb_pc

    def __call__(self, texts: Sequence[str]) -> list[tuple[str, float]]:
        """Returns the ISO 639 code of the most probable language of each text, and its probability."""
        data = [unicodedata.normalize("NFC", text.lower() if text.isupper() else text).encode() for text in texts]
        return [
            self._classify(features, len(own)) for features, own in zip(self._find_features(data), data, strict=True)
        ]

    def _find_features(self, data: list[bytes]) -> list[npt.NDArray[np.int32]]:
        """Returns the features that the automaton finds in each text."""
        longest = sorted(range(len(data)), key=lambda number: -len(data[number]))
        steps = len(data[longest[0]]) if data else 0
        letters = np.zeros((steps, len(data)), dtype=np.int64)
        lengths = np.array([len(data[number]) for number in longest], dtype=np.int64)
        for column, number in enumerate(longest):
            letters[: len(data[number]), column] = np.frombuffer(data[number], dtype=np.uint8)
        found = np.full((len(data), steps), -1, dtype=np.int32)
        states = np.zeros(len(data), dtype=np.int64)
        for step in range(steps):
            count = int(np.searchsorted(-lengths, -step, side="left"))  # of longer texts
            states = self._next[self._rows[states[:count]] + letters[step, :count]]
            found[:count, step] = self._features[states]
        own: list[Any] = [None] * len(data)
        for column, number in enumerate(longest):
            own[number] = found[column][found[column] >= 0]
        return own

    def _classify(self, features: npt.NDArray[np.int32], length: int) -> tuple[str, float]:
        """Returns the language with the highest posterior and its probability, with the temperature of py3langid."""
        if not len(features):
            return UNKNOWN, 0.0
        some, counts = np.unique(features, return_counts=True)
        scores = np.log1p(counts.astype(np.float32)) @ self._weights[some].astype(np.float32) + self._prior
        scores = np.exp((scores - scores.max()) / math.sqrt(length))
        merged: dict[str, float] = {}
        for language, score in zip(self.languages, (scores / scores.sum()).tolist(), strict=True):
            merged[language] = merged.get(language, 0.0) + score
        best = max(merged, key=merged.__getitem__)
        return best, merged[best]


def middle(data: bytes) -> str:
    """Returns `SEEN` characters from the middle of a text in UTF-8, with one space for each run of white space."""
    if len(data) > 16 * SEEN:  # need not be decoded as a whole
        begin = len(data) // 2 - 2 * SEEN
        text = data[begin : begin + 4 * SEEN + 4].decode(errors="ignore")[:SEEN]
    else:
        text = data.decode()
        text = text[max(0, (len(text) - SEEN) // 2) :][:SEEN]
    return " ".join(text.split())


def langid() -> Any:
    """Returns the module of the identifier. Raises UsageError if py3langid is not installed."""
    return import_extra("py3langid.langid", "clean = language needs py3langid", "language")
