"""The verbs that train, and which of them a recipe is for."""

from pathlib import Path

from lambert.core.settings import dotted, dotted_names, read
from lambert.runs.expect import TABLE
from lambert.verbs.settings.finetune import FinetuneConfig
from lambert.verbs.settings.pretrain import PretrainConfig

KINDS: dict[str, type] = {"pretrain": PretrainConfig, "finetune": FinetuneConfig}


def verb_of(recipe: Path) -> str:
    """Returns the verb of `KINDS` that a recipe is for, "" for a recipe of another verb."""
    given = {*dotted({name: value for name, value in read(recipe).items() if name != TABLE})}
    verb = next((name for name, kind in KINDS.items() if given <= {*dotted_names(kind)}), "")
    if not verb and given & {"corpus", "data", "train.batch_size", "train.steps", "train.epochs"}:
        verb = "finetune" if "data" in given or any(name.startswith("task.") for name in given) else "pretrain"
    return verb
