"""The settings of `lambert evaluate`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lambert.inference.config import InferenceConfig
from lambert.tasks.config import Language, OtherColumns


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """Scores a model on a labelled file."""

    model: Path
    """Run folder of `lambert finetune`, its model folder, or a Hugging Face folder with a task head."""
    data: Path
    """Labelled file."""
    task: str = ""
    """classify, multilabel, regress, choice, squad, tag or embed. Empty: the task that the model folder describes."""
    language: Language | None = None
    """squad: the language of the answers, if it is not that of the training data (task.squad.language)."""
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside that the model folder may import (docs/security.md)."""
    predictions: Path | None = None
    """Predictions file to write: for SQuAD the official JSON, with a file of n-best answers beside it; else JSON lines
    or .tsv."""
    examples: Path | None = None
    """File of scored examples to write, for `lambert compare` (docs/compare.md)."""
    json: bool = False
    """Print the scores as one line of JSON."""
    columns: Annotated[OtherColumns, Parameter(name=("--columns", "--task.columns"))] = field(
        default_factory=OtherColumns
    )
    inference: InferenceConfig = field(default_factory=InferenceConfig)
