"""The filter `normalise`. Only texts that change are rewritten."""

import unicodedata

import numpy as np

from lambert.wings.corpus.batch import Booleans, Outcome, TextBatch
from lambert.wings.corpus.characters import UNUSUAL, Integers
from lambert.wings.corpus.cleaning import INVISIBLE_CHARACTERS, compose


def normalise_batch(batch: TextBatch) -> Outcome:
    """Composes characters (NFC), removes invisible ones, and reduces each run of spaces to one space and each run of
    blank lines to one blank line."""
    outcome = Outcome()
    composed: dict[int, bytes] = {}
    unusual = np.flatnonzero((batch.flags_B & UNUSUAL) != 0)
    for document in np.unique(batch.document_of(unusual)).tolist():
        text = batch.text(document)
        if INVISIBLE_CHARACTERS.search(text) or not unicodedata.is_normalized("NFC", text):
            composed[document] = compose(text).encode()
    outcome.texts = {document: data for document, data in _normalise_spaces(batch).items() if document not in composed}
    if composed:
        spaced = _normalise_spaces(TextBatch([*composed.values()]))
        for number, (document, data) in enumerate(composed.items()):
            outcome.texts[document] = spaced.get(number, data)
    return outcome


def _normalise_spaces(batch: TextBatch) -> dict[int, bytes]:
    """Returns the texts that change if runs of spaces become one space, and runs of blank lines one blank line."""
    changes: dict[int, list[tuple[int, int, bytes]]] = {
        document: [] for document in np.flatnonzero(~_is_trimmed(batch)).tolist()
    }
    wrong = _wrong_gaps(batch)
    begins, ends = batch.ends_N[wrong].tolist(), batch.starts_N[wrong + 1].tolist()
    for document, begin, end in zip(batch.documents_N[wrong].tolist(), begins, ends, strict=True):
        breaks = batch.data.count(b"\n", begin, end)
        changes.setdefault(document, []).append((begin, end, b"\n" * min(breaks, 2) or b" "))
    return {document: _replace_gaps(batch, document, places) for document, places in changes.items()}


def _is_trimmed(batch: TextBatch) -> Booleans:
    """Returns whether each document begins and ends with a word, or is empty [D]."""
    empty_D: Booleans = batch.starts_D == batch.ends_D
    if not len(batch.starts_N):
        return empty_D
    first_D, last_D = batch.words_D1[:-1], batch.words_D1[1:] - 1
    begins_D = batch.starts_N.take(first_D, mode="clip") == batch.starts_D
    ends_D = batch.ends_N[last_D] == batch.ends_D
    trimmed: Booleans = empty_D | ((last_D >= first_D) & begins_D & ends_D)
    return trimmed


def _wrong_gaps(batch: TextBatch) -> Integers:
    """Returns the words of the same document as the next word, unless a space, a newline or two newlines are between
    the two."""
    length = batch.starts_N[1:] - batch.ends_N[:-1]
    first = batch.data_B[batch.ends_N[:-1]]
    right = (length == 0) | ((length == 1) & ((first == ord(" ")) | (first == ord("\n"))))
    wrong = np.flatnonzero(~right)
    blank = (length[wrong] == 2) & (first[wrong] == ord("\n")) & (batch.data_B[batch.ends_N[wrong] + 1] == ord("\n"))
    wrong = wrong[~blank]
    inside: Integers = wrong[batch.documents_N[wrong] == batch.documents_N[wrong + 1]]
    return inside


def _replace_gaps(batch: TextBatch, document: int, places: list[tuple[int, int, bytes]]) -> bytes:
    """Returns the text of a document from its first to its last word, with other white space at these places."""
    first, after = batch.words_D1[document : document + 2].tolist()
    if first == after:
        return b""
    return batch.replace(batch.starts_N[first], batch.ends_N[after - 1], places)
