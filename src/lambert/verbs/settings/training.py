"""Finds the verb that trains with a recipe, or with a set of settings."""

from collections.abc import Collection
from pathlib import Path

from lambert.core.settings import flatten, list_dotted_names, read
from lambert.runs.expect import TABLE
from lambert.verb import Verb, list_training, settings_of

_TELLING = {"train.batch_size", "train.steps", "train.epochs"}
"""Settings by which, as by the data, a recipe is recognised as that of a run even if another of its names is wrong."""


def find_verb(given: Collection[str]) -> Verb:
    """Returns the verb that has the most of these settings, by their dotted names, among those that train."""
    return max(list_training(), key=lambda one: len({*given} & {*list_dotted_names(settings_of(one))}))


def verb_of(recipe: Path) -> Verb | None:
    """Returns the verb that a recipe of a run is for, None for a recipe of another verb."""
    given = {*flatten({name: value for name, value in read(recipe).items() if name != TABLE})}
    verb = find_verb(given)
    telling = _TELLING | {one.data for one in list_training()}
    return verb if given & telling or given <= {*list_dotted_names(settings_of(verb))} else None
