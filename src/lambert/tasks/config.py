"""What a task can be told; light to import, since the command line's help reads it."""

from dataclasses import dataclass, field, fields, replace
from typing import Literal

from lambert.core.errors import UsageError
from lambert.core.settings import check

MAX_LENGTH = 384
"""google-research/bert, run_squad.py."""


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
class OtherColumns:
    """Columns of a file that has other names for them than the model was fine-tuned with; not set: the model's."""

    text: str | None = None
    """Column of the sentence, or of the first of a pair."""
    text_b: str | None = None
    """Column of the second sentence of a pair."""
    label: str | None = None
    """Column of the label or value."""
    header: bool | None = None
    """Whether a TSV or CSV file begins with the columns' names."""

    def over(self, columns: Columns) -> Columns:
        """`columns` with what is set here in its place."""
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(columns, **given)


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
        count = "[1, inf)"
        check(
            self, "task.squad.",
            stride=count, max_query=count, max_answer=count, best=count, null_threshold="(-inf, inf)",
        )  # fmt: skip
        if self.version not in ("", "1.1", "2.0"):
            raise UsageError(f'task.squad.version = {self.version!r}: give "1.1", "2.0" or "" (as the file says).')


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """The task; stored in the model folder, so that evaluate and predict need nothing else."""

    name: str = "classify"
    """classify, regress, squad, tag, mask, or "package.module:Class"."""
    max_length: int = MAX_LENGTH
    """Tokens of a sequence, special tokens included; longer text is cut, or seen through several windows (squad).
    Nothing is padded, so a high limit costs nothing for short text. The default is lowered to the encoder's positions
    where it has fewer."""
    labels: tuple[str, ...] = ()
    """Names of the classes in the order of the head's outputs; empty: those of the training file, sorted."""
    top: int = 5
    """mask: candidates listed for each [MASK]."""
    columns: Columns = field(default_factory=Columns)
    squad: SquadConfig = field(default_factory=SquadConfig)

    def __post_init__(self) -> None:
        check(self, "task.", max_length="[8, inf)", top="[1, inf)")
        if len(set(self.labels)) < len(self.labels):
            raise UsageError("task.labels names a label twice.")
