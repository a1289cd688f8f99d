"""Which of the verbs that train a recipe is for."""

from pathlib import Path

from lambert.core.settings import dotted, dotted_names, read
from lambert.runs.expect import TABLE
from lambert.verb import training


def verb_of(recipe: Path) -> str:
    """Returns the verb that a recipe of a run is for, "" for a recipe of another verb."""
    given = {*dotted({name: value for name, value in read(recipe).items() if name != TABLE})}
    verb = next((name for name, kind in training().items() if given <= {*dotted_names(kind)}), "")
    if not verb and given & {"corpus", "data", "train.batch_size", "train.steps", "train.epochs"}:
        verb = "finetune" if "data" in given or any(name.startswith("task.") for name in given) else "pretrain"
    return verb
