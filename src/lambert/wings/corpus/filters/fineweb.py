"""The filters that FineWeb added to those of C4 and Gopher."""

from dataclasses import dataclass

import numpy as np

from lambert.core.settings import check
from lambert.wings.corpus.batch import Outcome, TextBatch
from lambert.wings.corpus.characters import END


@dataclass(frozen=True, slots=True)
class FineWeb:
    """Thresholds of `fineweb`. Source: Penedo et al. 2024, The FineWeb Datasets, section 3.5."""

    min_ended_lines: float = 0.12
    """Minimum share of lines that end with the end mark of a sentence."""
    max_repeated_characters: float = 0.1
    """Maximum share of characters in lines that occurred before in the document."""
    max_short_lines: float = 0.67
    """Maximum share of short lines."""
    short_line: int = 30
    """A line with fewer characters is short."""

    def __post_init__(self) -> None:
        shares = dict.fromkeys(("min_ended_lines", "max_repeated_characters", "max_short_lines"), "[0, 1]")
        check(self, "fineweb.", **shares)


def fineweb(batch: TextBatch, rules: FineWeb) -> Outcome:
    """Drops documents that look like lists or menus. Only lines with words count."""
    outcome = Outcome()
    documents_L = batch.documents_L
    lines_D = np.maximum(batch.lines_D, 1)
    outcome.drop(batch.lines_D == 0, "empty")
    ended_L = (batch.flags_B[batch.last_L] & END) != 0
    ended_D = batch.count_D(documents_L[ended_L])
    outcome.drop(ended_D / lines_D < rules.min_ended_lines, "too few lines end with punctuation")
    short_D = batch.count_D(documents_L[batch.characters_L < rules.short_line])
    outcome.drop(short_D / lines_D > rules.max_short_lines, "too many short lines")
    again_L = batch.repeated_L
    inside_D = batch.count_D(documents_L[again_L], batch.characters_L[again_L])
    all_D = np.maximum(batch.count_D(documents_L, batch.characters_L), 1)
    outcome.drop(inside_D / all_D > rules.max_repeated_characters, "characters in repeated lines")
    return outcome
