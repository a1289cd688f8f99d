"""The settings of tasks. This module is light to import, since the help of the command line reads it."""

from dataclasses import dataclass, field, fields, replace
from typing import Literal, Self, get_args

from lambert.core.errors import UsageError
from lambert.core.settings import check

Language = Literal["en", "ar", "de", "es", "hi", "vi", "zh"]
"""The languages of MLQA (Lewis et al. 2020)."""
LONGEST, LONGEST_SQUAD = 512, 384
"""Tokens: the positions of BERT, and google-research/bert, run_squad.py."""
SHORTEST = 8
"""Tokens; ours."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of labelled rows: their names, or their numbers from 1 in a file without a header."""

    text: str = "text"
    """Column of the sentence, or of the first of a pair."""
    text_b: str = ""
    """Column of the second sentence of a pair; empty for single sentences."""
    label: str = "label"
    """Column of the label or value."""
    header: bool | None = None
    """Whether a TSV or CSV file begins with the columns' names. Unset: true unless columns are given by number."""

    def __post_init__(self) -> None:
        if self.label and self.label in (self.text, self.text_b):
            raise UsageError(f"task.columns: the column {self.label!r} is the text and the label: name another label.")


@dataclass(frozen=True, slots=True)
class OtherColumns:
    """The columns of a data file, where they differ from those of the file that the model was fine-tuned on. Unset: the
    same."""

    text: str | None = None
    """Column of the sentence, or of the first of a pair."""
    text_b: str | None = None
    """Column of the second sentence of a pair."""
    label: str | None = None
    """Column of the label or value."""
    header: bool | None = None
    """Whether a TSV or CSV file begins with the columns' names."""

    def over(self, columns: Columns) -> Columns:
        """Returns `columns` with the columns that are set here replaced."""
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(columns, **given)


@dataclass(frozen=True, slots=True)
class SquadConfig:
    """Question answering. The defaults are those of google-research/bert, run_squad.py (Devlin et al.)."""

    version: Literal["", "1.1", "2.0"] = ""
    """Version of SQuAD; 2.0 has questions without an answer. Empty: as the file says."""
    stride: int = 128
    """Tokens between the starts of two windows over a paragraph that is too long for one sequence."""
    max_query: int = 64
    """Maximum tokens of a question; longer ones are cut."""
    max_answer: int = 30
    """Maximum tokens of an answer."""
    best: int = 20
    """Number of start and end tokens considered in each window, and of answers kept for each question."""
    bad_answers: Literal["skip", "stop"] = "skip"
    """Training questions whose answer does not occur in the paragraph: leave them out and list the first, or stop."""
    language: Language = "en"
    """Language of the answers, for the scores. en: the official rules of SQuAD. Others: the rules of MLQA, which ignore
    the articles of that language and compare Chinese by characters."""
    null_threshold: float = 0.0
    """Version 2.0: "no answer" is predicted where its score minus that of the best answer exceeds this threshold.
    `evaluate` reports the threshold with the best scores."""

    def __post_init__(self) -> None:
        count = "[1, inf)"
        check(
            self, "task.squad.",
            stride=count, max_query=count, max_answer=count, best=count, null_threshold="(-inf, inf)",
        )  # fmt: skip
        for name, known in (("bad_answers", ("skip", "stop")), ("language", get_args(Language))):
            if getattr(self, name) not in known:
                raise UsageError(f"task.squad.{name} = {getattr(self, name)!r} must be one of {', '.join(known)}.")
        if self.version not in ("", "1.1", "2.0"):
            raise UsageError(f'task.squad.version = {self.version!r}: give "1.1", "2.0" or "" (as the file says).')


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """The task. It is stored in the model folder, so that evaluate and predict need no task settings."""

    name: str = "classify"
    """classify, regress, squad, tag, mask, the name of a data set such as glue/mrpc (docs/finetune.md), or
    "package.module:Class"."""
    max_length: int = 0
    """Maximum tokens of a sequence, special tokens included. Longer text is cut, or divided into windows (squad).
    Nothing is padded, so a high limit costs nothing for short text. 0: as many as the model has positions, up to 384
    for squad and 512 otherwise."""
    labels: tuple[str, ...] = ()
    """Names of the classes in the order of the head's outputs. Empty: the sorted labels of the training file."""
    metrics: tuple[str, ...] = ()
    """Scores that are listed before the others; the first is the headline. Names that the task has not are ignored.
    Empty: the task's own order."""
    top: int = 5
    """mask: number of candidates listed for each [MASK]."""
    columns: Columns = field(default_factory=Columns)
    squad: SquadConfig = field(default_factory=SquadConfig)

    def __post_init__(self) -> None:
        length = {"max_length": f"[{SHORTEST}, inf)"} if self.max_length else {}
        check(self, "task.", top="[1, inf)", **length)
        if len(set(self.labels)) < len(self.labels):
            raise UsageError("task.labels names a label twice.")

    def resolved(self, positions: int = LONGEST) -> Self:
        """Returns these settings with `max_length` for an encoder of that many positions. Raises UsageError if the
        encoder has too few."""
        if positions < SHORTEST:
            raise UsageError(f"The encoder has {positions} positions, fewer than {SHORTEST}: use one with more.")
        longest = LONGEST_SQUAD if self.name == "squad" else LONGEST
        return replace(self, max_length=self.max_length or min(longest, positions))
