"""Counts the words of the text of a domain, and reads lists of words."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lambert.core.errors import DataError
from lambert.text.rows import read_lines
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.documents import Documents, list_file_sources
from lambert.wings.corpus.reading import files
from lambert.wings.corpus.reading.files import check_beginnings
from lambert.wings.corpus.tokens.vocabulary import sample_documents

_SPACED = re.compile(" ?[^ ]+")


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Counts of the runs between spaces in the documents of a text. A run includes the space before it, except at the
    beginning of a document."""

    counts: Counter[str]
    """Counts in the documents that are not held out."""
    heldout: Counter[str]
    documents: int
    heldout_documents: int


def read(config: PrepareConfig, heldout: float, tell: Callable[[int, int], None]) -> RunCounts:
    """Counts the words of a sample of the input of `config`, of about `config.sample_megabytes`.

    Documents whose draw, the same as in `prepare`, is below `heldout` are held out; if there is none and `heldout` is
    not 0, the document with the smallest draw is. A single document is not held out. `tell` is called with the bytes
    read so far and in total.

    Raises DataError if the input cannot be read.
    """
    chosen, _ = files.find_sources(config.input, [config.folder], config.text_field)
    check_beginnings(chosen, config)
    sources = list_file_sources(list(chosen), config.layout, config.format)
    documents = Documents(sources, files.estimate_text(chosen), config.max_bad)
    rate = min(1.0, config.sample_megabytes * 1e6 / max(documents.text_bytes, 1))
    counts: Counter[str] = Counter()
    held: Counter[str] = Counter()
    draws, nearest, words_of_nearest = set(), 1.0, list[str]()
    for batch in sample_documents(documents, rate, config.seed, config.language, config.lines):
        for sentences, draw in batch:
            words = _SPACED.findall(" ".join(sentences))
            (held if draw < heldout else counts).update(words)
            draws.add(draw)
            if draw <= nearest:
                words_of_nearest = (words_of_nearest if draw == nearest else []) + words
                nearest = draw
        tell(documents.done, documents.total)
    if len(draws) == 1:
        counts, held = counts + held, Counter()
    below = sum(draw < heldout for draw in draws) if len(draws) > 1 else 0
    if heldout and not below and len(draws) > 1:
        held, below = Counter(words_of_nearest), 1
        counts -= held
    if not counts:
        raise DataError(f"{', '.join(map(str, config.input))}: the text has no words.")
    return RunCounts(counts, held, len(draws), below)


def read_word_list(path: Path) -> list[str]:
    """Returns the lines of a list of words without blank ones, each up to a tab. Raises DataError as `read_lines`."""
    return [word for _, line in read_lines(path) if (word := line.partition("\t")[0].strip())]
