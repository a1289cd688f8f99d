"""Filters of documents. Each processes a whole batch at once, with arrays."""

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lambert.core.contents import sha256
from lambert.core.errors import UsageError
from lambert.core.files import not_read
from lambert.core.settings import as_dict
from lambert.wings.corpus.batch import Filter
from lambert.wings.corpus.filters.c4 import c4
from lambert.wings.corpus.filters.decontamination import Decontamination
from lambert.wings.corpus.filters.fineweb import fineweb
from lambert.wings.corpus.filters.gopher import gopher
from lambert.wings.corpus.filters.language import LanguageFilter
from lambert.wings.corpus.filters.personal import personal_data
from lambert.wings.corpus.filters.repetition import gopher_repetition
from lambert.wings.corpus.filters.whitespace import normalise_batch

if TYPE_CHECKING:
    from lambert.wings.corpus.config import PrepareConfig


@dataclass(frozen=True, slots=True)
class FilterEntry:
    """A filter by name."""

    build: Callable[["PrepareConfig"], Filter]
    """Returns the filter. Checks settings, but reads no large file."""
    settings: Callable[["PrepareConfig"], dict[str, Any]]
    """Returns everything besides the document that determines the result of the filter."""
    tables: tuple[str, ...] = ()
    """The settings of `PrepareConfig` that only this filter uses."""


def _decontaminate(config: "PrepareConfig") -> Filter:
    if not config.decontaminate.files:
        raise UsageError("clean = decontaminate needs evaluation files: set decontaminate.files.")
    return Decontamination(config.decontaminate)


def _evaluation_files(config: "PrepareConfig") -> dict[str, Any]:
    try:
        hashes = [[path.name, sha256(Path(path))] for path in config.decontaminate.files]
    except OSError as error:
        raise not_read(f"decontaminate.files: {error.filename}", error) from error
    return as_dict(config.decontaminate) | {"files": hashes}


FILTERS: dict[str, FilterEntry] = {
    "normalise": FilterEntry(lambda config: normalise_batch, lambda config: {}),
    "language": FilterEntry(
        lambda config: LanguageFilter(config.language, config.min_language_score),
        lambda config: {
            "language": config.language,
            "min_score": config.min_language_score,
            "py3langid": importlib.metadata.version("py3langid"),
        },
        ("min_language_score",),
    ),
    "gopher": FilterEntry(
        lambda config: partial(gopher, rules=config.gopher), lambda config: as_dict(config.gopher), ("gopher",)
    ),
    "gopher-repetition": FilterEntry(
        lambda config: partial(gopher_repetition, rules=config.gopher_repetition),
        lambda config: as_dict(config.gopher_repetition),
        ("gopher_repetition",),
    ),
    "c4": FilterEntry(
        lambda config: partial(c4, rules=config.c4, language=config.language),
        lambda config: as_dict(config.c4) | {"language": config.language},
        ("c4",),
    ),
    "fineweb": FilterEntry(
        lambda config: partial(fineweb, rules=config.fineweb), lambda config: as_dict(config.fineweb), ("fineweb",)
    ),
    "personal-data": FilterEntry(lambda config: personal_data, lambda config: {}),
    "decontaminate": FilterEntry(_decontaminate, _evaluation_files, ("decontaminate",)),
}
"""The filters of the step `clean` besides the functions in `cleaning.CLEANERS`."""
