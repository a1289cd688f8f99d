"""What a task can be told; light to import, since the command line's help reads it."""

from dataclasses import dataclass, field
from typing import Literal

from lambert.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a row holds what: names of columns, or their numbers counted from 1 in a file without a header."""

    text: str = "text"
    """Column of the sentence, or of the first of a pair."""
    text_b: str = ""
    """Column of the second sentence of a pair; empty for single sentences."""
    label: str = "label"
    """Column of the label or value."""
    header: bool | None = None
    """Whether a TSV or CSV file begins with the columns' names; not set: it does unless columns are given by number."""


@dataclass(frozen=True, slots=True)
class SquadConfig:
    """Question answering; the defaults are those of Devlin et al. as released (google-research/bert, run_squad.py)."""

    version: Literal["", "1.1", "2.0"] = ""
    """2.0 knows questions without answer; empty: as the file says."""
    stride: int = 128
    """Tokens between the starts of two windows over a paragraph that is too long for one sequence."""
    max_query: int = 64
    """Tokens of the question that are kept."""
    max_answer: int = 30
    """Longest answer, in tokens."""
    best: int = 20
    """Starts and ends looked at in each window, and answers kept for each question."""
    null_threshold: float = 0.0
    """2.0: no answer where (score of none - score of the best) is above this; `evaluate` reports the best value."""

    def __post_init__(self) -> None:
        for name in ("stride", "max_query", "max_answer", "best"):
            if getattr(self, name) < 1:
                raise UsageError(f"task.squad.{name} = {getattr(self, name)}: give a number above 0.")
        if self.version not in ("", "1.1", "2.0"):
            raise UsageError(f'task.squad.version = {self.version!r}: give "1.1", "2.0" or "" (as the file says).')


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """The task; stored in the model folder, so that evaluate and predict need nothing else."""

    name: str = "classify"
    """classify, regress, squad, tag, mask, or "package.module:Class"."""
    max_length: int = 384
    """Tokens of a sequence, special tokens included; longer text is cut, or seen through several windows (squad).
    Nothing is padded, so a high limit costs nothing for short text."""
    labels: tuple[str, ...] = ()
    """Names of the classes in the order of the head's outputs; empty: those of the training file, sorted."""
    top: int = 5
    """mask: candidates listed for each [MASK]."""
    columns: Columns = field(default_factory=Columns)
    squad: SquadConfig = field(default_factory=SquadConfig)

    def __post_init__(self) -> None:
        if self.max_length < 8:
            raise UsageError(f"task.max_length = {self.max_length}: give at least 8 tokens.")
        if self.top < 1:
            raise UsageError(f"task.top = {self.top}: give a number above 0.")
        if len(set(self.labels)) < len(self.labels):
            raise UsageError("task.labels names a label twice.")
