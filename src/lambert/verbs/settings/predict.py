"""The settings of `lambert predict`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from lambert.core.errors import UsageError
from lambert.core.registry import choose
from lambert.core.settings import check
from lambert.inference.config import InferenceConfig
from lambert.tasks.config import OtherColumns


@dataclass(frozen=True, slots=True)
class PredictConfig:
    """Predictions for rows of {"text": ...}, {"question": ..., "context": ...}, or a text with [MASK]. Standard input
    and output are JSON lines; files are also CSV, TSV or Parquet, and vectors are also written as .npy."""

    model: Path
    """Run folder or model folder of a fine-tuned model, or of a pre-trained model, which fills in [MASK]."""
    task: str = ""
    """classify, multilabel, regress, choice, squad, tag, embed or mask. Empty: the task that the model folder
    describes."""
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside Lambert that the model folder may import (docs/security.md)."""
    input: tuple[Path, ...] = ()
    """Files to read instead of standard input, one after the other: .jsonl, .csv, .tsv or .parquet, also .gz, .bz2, .xz
    or .zst."""
    out: Path | None = None
    """File to write instead of standard output, complete or absent: .jsonl, .csv (single values only), .parquet, or for
    vectors .npy, an array float32 [rows, D]. With `input`, the same command continues after an interruption."""
    keep: tuple[str, ...] = ()
    """Columns of the input that are copied to the output; COLUMN=NAME gives one another name there. `id` is always
    copied."""
    top: int = 0
    """Number of the most probable labels (classify, multilabel), candidate answers (squad) or pieces (mask) that are
    listed. 0: all labels, no candidate answers, five pieces."""
    null_threshold: float | None = None
    """squad: the threshold of "no answer", if it is not that of the model (task.squad.null_threshold)."""
    errors: Literal["write", "stop"] = "write"
    """Reaction to a row that cannot be predicted. write: its error is written in place of its prediction, the work
    continues, and the command ends with exit code 3; in .npy the row is NaN. stop: the command ends there."""
    chunk: int = 512
    """Lines that are read and predicted together. More lines make fuller batches; fewer are answered sooner."""
    columns: Annotated[OtherColumns, Parameter(name=("--columns", "--task.columns"))] = field(
        default_factory=OtherColumns
    )
    inference: InferenceConfig = field(default_factory=InferenceConfig)

    def __post_init__(self) -> None:
        check(self, chunk="[1, inf)", top="[0, inf)", null_threshold="(-inf, inf)")
        choose(dict.fromkeys(("write", "stop")), self.errors, "errors")
        names = [entry.rpartition("=")[2] for entry in self.keep]
        if wrong := next(
            (name for name in names if not name or name in ("id", "error") or names.count(name) > 1), None
        ):
            raise UsageError(f"keep = {wrong!r}: give each column another name in the output, not id or error.")
        if self.out is not None and self.out.suffix == ".npy" and self.keep:
            raise UsageError("keep: .npy has vectors only. Write .jsonl or .parquet, or leave keep out.")
        if self.out is not None and self.out in self.input:
            raise UsageError(f"{self.out} is input and out: name another file.")

    def squad(self) -> dict[str, Any]:
        """Returns the settings of question answering that replace those of the model."""
        return {} if self.null_threshold is None else {"null_threshold": self.null_threshold}
