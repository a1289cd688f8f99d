"""Finds the verb (pretrain or finetune) that a recipe, or a set of settings, is for."""

from collections.abc import Collection
from pathlib import Path

from lambert.core.settings import flatten, list_dotted_names, read
from lambert.runs.expect import TABLE
from lambert.verb import list_training

_TELLING = {"corpus", "data", "train.batch_size", "train.steps", "train.epochs"}
"""Settings by which a recipe is recognised as that of a run even if another of its names is wrong."""


def find_verb(given: Collection[str]) -> str:
    """Returns the verb that has the most of these settings, by their dotted names, among those that train."""
    kinds = list_training()
    return max(kinds, key=lambda verb: len({*given} & {*list_dotted_names(kinds[verb])}))


def verb_of(recipe: Path) -> str:
    """Returns the verb that a recipe of a run is for, "" for a recipe of another verb."""
    given = {*flatten({name: value for name, value in read(recipe).items() if name != TABLE})}
    verb = find_verb(given)
    return verb if given & _TELLING or given <= {*list_dotted_names(list_training()[verb])} else ""
