"""The settings of `lambert predict`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from lambert.core.registry import choose
from lambert.core.settings import check
from lambert.inference.config import InferenceConfig
from lambert.tasks.config import OtherColumns


@dataclass(frozen=True, slots=True)
class PredictConfig:
    """Predictions for lines of {"text": ...}, {"question": ..., "context": ...}, or a text with [MASK]."""

    model: Path
    """Run folder or model folder of a fine-tuned model, or of a pre-trained model, which fills in [MASK]."""
    task: str = ""
    """classify, regress, squad, tag or mask. Empty: the task that the model folder describes."""
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside that the model folder may import (docs/security.md)."""
    out: Path | None = None
    """File to write instead of standard output, complete or absent: .jsonl, .parquet, or for vectors .npy, an array
    float32 [lines, D]."""
    errors: Literal["write", "stop"] = "write"
    """What becomes of a row that cannot be predicted. write: its error is written in place of its prediction, the work
    goes on, and the command ends with exit code 3. stop: it ends the work."""
    chunk: int = 512
    """Lines that are read and predicted together. More lines are packed better, fewer are answered sooner."""
    columns: Annotated[OtherColumns, Parameter(name=("--columns", "--task.columns"))] = field(
        default_factory=OtherColumns
    )
    inference: InferenceConfig = field(default_factory=InferenceConfig)

    def __post_init__(self) -> None:
        check(self, chunk="[1, inf)")
        choose(dict.fromkeys(("write", "stop")), self.errors, "errors")
