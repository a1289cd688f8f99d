"""The settings of `lambert evaluate`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from lambert.core.settings import check
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
    """classify, multilabel, regress, choice, squad, tag or embed, or the name of a data set such as glue/mnli, which
    determines the columns and the names of labels. Empty: the task that the model folder describes."""
    language: Language | None = None
    """squad: the language of the answers, if it is not that of the training data (task.squad.language)."""
    null_threshold: float | None = None
    """squad: the threshold of "no answer", if it is not that of the model (task.squad.null_threshold)."""
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside Lambert that the model folder may import (docs/security.md)."""
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

    def __post_init__(self) -> None:
        check(self, null_threshold="(-inf, inf)")

    def squad(self) -> dict[str, Any]:
        """Returns the settings of question answering that replace those of the model."""
        given = {"language": self.language, "null_threshold": self.null_threshold}
        return {name: value for name, value in given.items() if value is not None}
