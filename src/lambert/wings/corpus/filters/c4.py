"""The filter of the Colossal Clean Crawled Corpus (C4)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lambert.core.settings import check
from lambert.text.sentences import split
from lambert.wings.corpus.batch import Booleans, Outcome, TextBatch
from lambert.wings.corpus.characters import END, QUOTE, Integers

CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
POLICIES = (b"terms of use", b"privacy policy", b"cookie policy", b"uses cookies", b"use of cookies", b"use cookies")
CLOSING = frozenset(")）]］")
"""Marks other than quotation marks that may follow the end of a sentence."""


@dataclass(frozen=True, slots=True)
class C4:
    """Thresholds of `c4`. Source: Raffel et al. 2020, Exploring the Limits of Transfer Learning, section 2.2. The code
    for the published dataset uses 3 sentences and lines of 5 words."""

    min_sentences: int = 5
    """Documents with fewer sentences after lines were removed are dropped."""
    min_line_words: int = 3
    """Lines with fewer words are removed."""
    max_word_length: int = 1000
    """Lines with a longer word are removed (from the code for the dataset)."""

    def __post_init__(self) -> None:
        check(self, "c4.")


def c4(batch: TextBatch, rules: C4, language: str) -> Outcome:
    """Removes citation marks such as [1] and lines that are not sentences. Drops documents that are code or
    placeholders or have too few sentences. Runs of blank lines become one."""
    outcome = Outcome()
    cited = _without_citations(batch)
    if cited:
        batch = TextBatch([cited.get(document, data) for document, data in enumerate(batch.encoded)])
        outcome.texts |= cited
    lower = batch.data.lower()
    for phrase, reason in ((b"lorem ipsum", "lorem ipsum"), (b"{", "curly bracket")):
        outcome.drop(batch.count_D(batch.document_of(_positions(lower, phrase))) > 0, reason)
    kept_L = _select_L(batch, rules, lower)
    lines_D1 = np.append(np.searchsorted(batch.documents_L, np.arange(len(batch))), len(kept_L))
    removed_D = batch.count_D(batch.documents_L[~kept_L])
    few_D = batch.count_D(batch.documents_L[kept_L]) < rules.min_sentences
    paragraphs_L = np.cumsum(np.diff(batch.numbers_L, prepend=-2) > 1, dtype=np.int64)
    for document in np.flatnonzero((removed_D > 0) | few_D).tolist():
        if document in outcome.dropped:
            continue
        data = batch.encoded[document]
        if removed_D[document]:
            first, after = lines_D1[document : document + 2].tolist()
            lines = np.arange(first, after)[kept_L[first:after]]
            outcome.texts[document] = data = _join_lines(batch, lines, paragraphs_L)
        if few_D[document] and len(split(data.decode(), language, "paragraphs")) < rules.min_sentences:
            outcome.dropped[document] = "too few sentences"
    return outcome


def _without_citations(batch: TextBatch) -> dict[int, bytes]:
    """Returns the texts that have citation marks, without them."""
    brackets = batch.find(b"[")
    after = batch.data_B[brackets + 1]
    maybe = brackets[((after - ord("0")) < 10) | (after == ord("]")) | (after == ord("e")) | (after == ord("c"))]
    found = {}
    for document in np.unique(batch.document_of(maybe)).tolist():
        text, count = CITATION.subn("", batch.text(document))
        if count:
            found[document] = text.encode()
    return found


def _select_L(batch: TextBatch, rules: C4, lower: bytes) -> Booleans:
    """Returns whether each line is kept."""
    last = batch.flags_B[batch.last_L]
    kept_L: Booleans = (last & (END | QUOTE)) != 0
    after_L = batch.ends_N[batch.end_L - 1]
    for mark in (*CLOSING, "...", "…"):
        ending = mark.encode()
        kept_L &= ~batch.has(after_L - len(ending), ending)
    kept_L &= batch.end_L - batch.first_L >= rules.min_line_words
    line_at = batch.starts_N[batch.first_L]
    cookies = b"cookie" in lower  # one search instead of four
    policies = [phrase for phrase in POLICIES if cookies or b"cookie" not in phrase]
    for phrase in (b"javascript", *policies):
        kept_L[np.searchsorted(line_at, _positions(lower, phrase), side="right") - 1] = False
    long = np.flatnonzero(batch.ends_N - batch.starts_N > rules.max_word_length)
    if len(long):
        long = long[batch.characters(batch.starts_N[long], batch.ends_N[long]) > rules.max_word_length]
        kept_L[np.searchsorted(batch.first_L, long, side="right") - 1] = False
    return kept_L


def _positions(data: bytes, phrase: bytes) -> Integers:
    def find() -> Iterator[int]:
        at = data.find(phrase)
        while at >= 0:
            yield at
            at = data.find(phrase, at + 1)

    return np.fromiter(find(), dtype=np.int64)


def _join_lines(batch: TextBatch, lines: Integers, paragraphs_L: npt.NDArray[np.int64]) -> bytes:
    """Returns a text of these lines."""
    data, parts, before = batch.data, [], None
    begins, ends = batch.starts_N[batch.first_L[lines]].tolist(), batch.ends_N[batch.end_L[lines] - 1].tolist()
    for begin, end, paragraph in zip(begins, ends, paragraphs_L[lines].tolist(), strict=True):
        if before is not None:
            parts.append(b"\n" if paragraph == before else b"\n\n")
        parts.append(data[begin:end])
        before = paragraph
    return b"".join(parts)
