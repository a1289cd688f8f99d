"""The repetition filter of Gopher."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.errors import UsageError
from lambert.core.settings import check
from lambert.wings.corpus.batch import Booleans, Hashes, Outcome, TextBatch, slot_counts, with_document
from lambert.wings.corpus.characters import Integers


@dataclass(frozen=True, slots=True)
class Repetition:
    """Thresholds of `gopher-repetition`: maximum shares. Source: Rae et al. 2021, table A1."""

    lines: float = 0.30
    """Share of lines that occurred before in the document."""
    paragraphs: float = 0.30
    """Share of paragraphs that occurred before."""
    line_characters: float = 0.20
    """Share of characters in these lines."""
    paragraph_characters: float = 0.20
    """Share of characters in these paragraphs."""
    top: tuple[float, ...] = (0.20, 0.18, 0.16)
    """Share of characters in the most frequent sequence of 2, 3 and 4 words, if it occurs at least twice."""
    repeated: tuple[float, ...] = (0.15, 0.14, 0.13, 0.12, 0.11, 0.10)
    """Share of characters in sequences of 5 to 10 words that occurred before, without overlaps."""

    def __post_init__(self) -> None:
        ranges = dict.fromkeys(("lines", "paragraphs", "line_characters", "paragraph_characters"), "[0, 1]")
        check(self, "gopher_repetition.", top="[0, 1]", repeated="[0, 1]", **ranges)
        for name, count in (("top", 3), ("repeated", 6)):
            if len(getattr(self, name)) != count:
                raise UsageError(f"gopher_repetition.{name} needs {count} values, not {len(getattr(self, name))}.")


def gopher_repetition(batch: TextBatch, rules: Repetition) -> Outcome:
    """Drops documents that repeat themselves. Only lines with words count."""
    outcome = Outcome()
    characters_D = np.maximum(batch.characters_D, 1)
    documents_L = batch.documents_L

    new_L = np.ones(len(documents_L), dtype=np.bool_)  # whether a line begins a paragraph
    new_L[1:] = (np.diff(batch.numbers_L) > 1) | (np.diff(documents_L) > 0)
    first_P = np.flatnonzero(new_L)
    last_P = np.append(first_P[1:], len(new_L))[: len(first_P)] - 1
    begin_P, end_P = batch.first_L[first_P], batch.end_L[last_P]
    documents_P = documents_L[first_P]
    again_P = batch.find_repeated(batch.starts_N[begin_P], batch.ends_N[end_P - 1])
    characters_P = batch.characters(batch.starts_N[begin_P], batch.ends_N[end_P - 1])
    share_D = batch.count_D(documents_P[again_P]) / np.maximum(batch.count_D(documents_P), 1)
    outcome.drop(share_D > rules.paragraphs, "repeated paragraphs")
    inside_D = batch.count_D(documents_P[again_P], characters_P[again_P])
    outcome.drop(inside_D / characters_D > rules.paragraph_characters, "characters in repeated paragraphs")

    again_L = batch.repeated_L
    share_D = batch.count_D(documents_L[again_L]) / np.maximum(batch.lines_D, 1)
    outcome.drop(share_D > rules.lines, "repeated lines")
    inside_D = batch.count_D(documents_L[again_L], batch.characters_L[again_L])
    outcome.drop(inside_D / characters_D > rules.line_characters, "characters in repeated lines")

    _drop_by_words(batch, rules, outcome)
    return outcome


def _drop_by_words(batch: TextBatch, rules: Repetition, outcome: Outcome) -> None:
    """Drops documents that repeat sequences of words. Only the documents for which an upper bound is above a threshold
    are examined in detail."""
    suspicious_D = _suspicious_D(batch, rules)
    suspicious_D[list(outcome.dropped)] = False
    if not suspicious_D.any():
        return
    characters_D = np.maximum(batch.characters_D, 1)
    positions, keys, size = _find_repeating(batch, np.flatnonzero(suspicious_D[batch.documents_N]), 2)
    for maximum in rules.top:
        outcome.drop(_top_D(batch, positions, keys, size) / characters_D > maximum, f"most frequent {size} words")
        positions, keys, size = _find_repeating(batch, _longer(positions), size + 1)
    for maximum in rules.repeated:
        over_D = _count_covered_D(batch, positions, size) / characters_D > maximum  # is an upper bound of the share
        for document in np.flatnonzero(over_D).tolist():
            if document not in outcome.dropped:
                inside = _inside(batch, positions, keys, size, document)
                if inside / int(characters_D[document]) > maximum:
                    outcome.dropped[document] = f"repeated {size} words"
        positions, keys, size = _find_repeating(batch, _longer(positions), size + 1)


def _suspicious_D(batch: TextBatch, rules: Repetition) -> Booleans:
    """Returns the documents in which the share of a repeated sequence may be above its threshold."""
    characters_D, letters = np.maximum(batch.characters_D, 1), batch.letters_N1
    suspicious_D = np.zeros(len(batch), dtype=np.bool_)
    positions = np.arange(len(batch.starts_N))
    for size, maximum in enumerate((*rules.top, *rules.repeated), 2):
        positions, keys = _select_grams(batch, positions, size)
        counts = slot_counts(keys)
        some = np.flatnonzero(counts > 1)
        positions = positions[some]
        if not len(positions):
            break
        if size < 5:
            documents = batch.documents_N[positions]
            inside = (letters[positions + size] - letters[positions] + size - 1) * counts[some]
            suspicious_D[documents[inside > maximum * characters_D[documents]]] = True
        else:
            suspicious_D |= _count_covered_D(batch, positions, size) / characters_D > maximum
        positions = _longer(positions)
    return suspicious_D


def _select_grams(batch: TextBatch, candidates: Integers, size: int) -> tuple[Integers, Hashes]:
    """Returns the candidates at which a sequence of `size` words of one document begins, and the key of each
    sequence."""
    candidates = candidates[: np.searchsorted(candidates, len(batch.starts_N) - size, side="right")]
    documents = batch.documents_N[candidates]
    inside = batch.documents_N[candidates + (size - 1)] == documents
    if not inside.all():
        candidates, documents = candidates[inside], documents[inside]
    return candidates, with_document(batch.grams(candidates, candidates + size), documents)


def _longer(positions: Integers) -> Integers:
    """Returns the positions at which a longer sequence may repeat, because both sequences that are one word shorter
    do."""
    return positions[:-1][np.diff(positions) == 1] if len(positions) else positions


def _find_repeating(batch: TextBatch, candidates: Integers, size: int) -> tuple[Integers, Hashes, int]:
    """Returns the positions, in increasing order, among the candidates at which a sequence of `size` words begins that
    occurs more than once in its document; the key of each sequence; and `size`."""
    candidates, keys = _select_grams(batch, candidates, size)
    some = np.flatnonzero(slot_counts(keys) > 1)
    order = some[np.argsort(keys[some])]
    equal = keys[order[1:]] == keys[order[:-1]]
    twice = np.zeros(len(order), dtype=np.bool_)
    twice[1:] |= equal
    twice[:-1] |= equal
    found = np.sort(order[twice])
    return candidates[found], keys[found], size


def _top_D(batch: TextBatch, positions: Integers, keys: Hashes, size: int) -> Integers:
    """Returns the number of characters in all occurrences of the most frequent sequence of each document, the first of
    several. Between two words, a space is counted."""
    characters_D = np.zeros(len(batch), dtype=np.int64)
    if len(positions):
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        begin = positions[first]
        best_D = np.zeros(len(batch), dtype=np.int64)
        np.maximum.at(best_D, batch.documents_N[begin], counts << 32 | (0xFFFFFFFF - begin))
        some = np.flatnonzero(best_D)
        begin, counts = 0xFFFFFFFF - (best_D[some] & 0xFFFFFFFF), best_D[some] >> 32
        characters_D[some] = (batch.letters_N1[begin + size] - batch.letters_N1[begin] + size - 1) * counts
    return characters_D


def _count_covered_D(batch: TextBatch, positions: Integers, size: int) -> npt.NDArray[Any]:
    """Returns the number of characters of each document in words that are part of one of these sequences."""
    if not len(positions):
        return np.zeros(len(batch))
    end = np.minimum(positions + size, np.append(positions[1:], len(batch.starts_N)))
    inside = batch.letters_N1[end] - batch.letters_N1[positions]
    return batch.count_D(batch.documents_N[positions], inside)


def _inside(batch: TextBatch, positions: Integers, keys: Hashes, size: int, document: int) -> int:
    """Returns the number of characters of a document in sequences that occurred before, without overlaps."""
    begin, end = np.searchsorted(positions, batch.words_D1[document : document + 2])
    letters = batch.letters_N1
    seen: set[int] = set()
    total = after = 0
    for at, key in zip(positions[begin:end].tolist(), keys[begin:end].tolist(), strict=True):
        if at < after:
            continue
        if key in seen:
            total += int(letters[at + size] - letters[at])
            after = at + size
        seen.add(key)
    return total
