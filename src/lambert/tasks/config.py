"""The settings of tasks. This module is light to import, since the help of the command line reads it."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, get_args

from lambert.core.errors import UsageError
from lambert.core.other_names import our_task
from lambert.core.registry import nearest
from lambert.core.settings import check
from lambert.tasks.reading.templates import is_template

LongText = Literal["cut", "mean", "max"]
Language = Literal["en", "ar", "de", "es", "hi", "vi", "zh"]
"""The languages of MLQA (Lewis et al. 2020)."""
LONGEST, LONGEST_SQUAD = 512, 384
"""Tokens: the positions of BERT, and google-research/bert, run_squad.py."""
SHORTEST = 8
"""Tokens (our choice)."""
LEAST_WEIGHT = 1e-3
"""The smallest weight of a label: weights are rounded to multiples of 2^-24 (`core.batch.exact_weights`)."""
_SENTENCES = ("classify", "multilabel", "regress", "choice")
_ONLY = {
    "long_text": ("cut", ("classify", "multilabel", "regress")),
    "stride": (0, ("classify", "multilabel", "regress")),
    "class_weights": ((), ("classify", "tag")),
    "label_smoothing": (0.0, ("classify", "tag")),
    "activation": ("", ("regress",)),
    "temperature": (1.0, ("classify",)),
    "threshold": (0.5, ("multilabel",)),
    "label_thresholds": ((), ("multilabel",)),
}
"""Settings of some tasks only: the default value, and the names of the tasks."""


TASKS: dict[str, str] = {
    "classify": "lambert.tasks.sentences.classify:Classify",
    "multilabel": "lambert.tasks.sentences.multilabel:MultiLabel",
    "regress": "lambert.tasks.sentences.classify:Regress",
    "choice": "lambert.tasks.sentences.choice:Choice",
    "squad": "lambert.tasks.squad.squad:Squad",
    "tag": "lambert.tasks.tag.tag:Tag",
    "embed": "lambert.tasks.vectors.embed:Embed",
    "mask": "lambert.tasks.mask:Mask",
}
"""Where each task is, as module:class. Others may add their own."""
_OWN = tuple(TASKS)


def check_task_name(name: str, setting: str = "task.name") -> None:
    """Raises UsageError for a task by the name that another library gives it."""
    if name not in TASKS and (ours := our_task(name)):
        raise UsageError(f"{setting} = {name!r} is unknown. Did you mean {ours!r}?")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of labelled rows: their names, or their numbers from 1 in a file without a header. A key of the
    object in a column is written column.key. The columns of a CoNLL file have numbers; without them, the words and the
    tags are recognised."""

    text: str = "text"
    """Column of the sentence, or of the first of a pair; of the word in a CoNLL file. For classify, multilabel, regress
    and choice also a text with columns in braces, such as "{title}: {body}", as may be `text_b`. "{kind|a=one|b=two}"
    replaces the values a and b of the column `kind`."""
    text_b: str = ""
    """Column of the second sentence of a pair; empty for single sentences."""
    label: str = "label"
    """Column of the label, value or tag; multilabel: of the labels, as a list or a text with the separator."""
    label_names: tuple[str, ...] = ()
    """classify, multilabel, tag: the names of the labels 0, 1, ... in a file whose labels are numbers. Empty: those
    that the file declares, or `task.labels` if it has names."""
    separator: str = ","
    """multilabel: text between the labels of a cell."""
    choices: tuple[str, ...] = ("choices",)
    """choice: column with the list of choices, or several columns with a choice each."""
    group: str = ""
    """classify: column of what rows have in common, such as the number of the question that they answer; or a text with
    columns in braces. `exact_match` is the share of groups in which all rows are right."""
    header: bool | None = None
    """Whether a TSV or CSV file begins with the columns' names. Unset: true unless columns are given by number."""
    text_b_optional: bool = False
    """Whether rows without the column `text_b` are read, as single sentences."""

    def __post_init__(self) -> None:
        if self.label and self.label in (self.text, self.text_b):
            raise UsageError(
                f"task.columns: the column {self.label!r} is both text and label: name another column for the label."
            )
        if not self.separator:
            raise UsageError("task.columns.separator is empty: give the text between two labels, such as a comma.")
        if not self.choices:
            raise UsageError("task.columns.choices is empty: name the column of the choices, or a column for each.")

    def row_keys(self) -> tuple[str, str]:
        """Returns the keys of the two texts in rows to predict: the names of the columns, and "text" and "text_b" for
        columns with numbers, which such rows do not have. Without a column the first is "text", the second empty."""
        text = "text" if not self.text or self.text.isdecimal() else self.text
        return text, "text_b" if self.text_b.isdecimal() else self.text_b


@dataclass(frozen=True, slots=True)
class OtherColumns:
    """The columns of a data file, where they differ from those of the file that the model was fine-tuned on. Unset: the
    same."""

    text: str | None = None
    """Column of the sentence, or of the first of a pair."""
    text_b: str | None = None
    """Column of the second sentence of a pair."""
    label: str | None = None
    """Column of the label, of the labels or of the value."""
    label_names: tuple[str, ...] | None = None
    """classify, multilabel, tag: the names of the labels 0, 1, ... in a file whose labels are numbers."""
    separator: str | None = None
    """multilabel: text between the labels of a cell."""
    choices: tuple[str, ...] | None = None
    """choice: column with the list of choices, or several columns with a choice each."""
    group: str | None = None
    """classify: column of what rows have in common."""
    header: bool | None = None
    """Whether a TSV or CSV file begins with the columns' names."""

    def over(self, columns: Columns) -> Columns:
        """Returns `columns` with the columns that are set here replaced."""
        given: dict[str, Any] = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        if "text_b" in given:
            given["text_b_optional"] = False
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
    null_threshold: float | Literal["best"] = 0.0
    """Version 2.0: "no answer" is predicted where its score minus that of the best answer exceeds this threshold. best:
    the threshold with the best F1 on `dev`, which the model folder keeps."""

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
        if isinstance(self.null_threshold, str) and self.null_threshold != "best":
            raise UsageError(f'task.squad.null_threshold = {self.null_threshold!r} must be a number or "best".')


POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""Parts of `EmbedConfig.pooling`, in the order in which sentence-transformers joins those that are set by flags."""
ACTIVATIONS = (
    "CELU", "ELU", "GELU", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "Mish", "ReLU", "ReLU6",
    "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Identity",
)  # fmt: skip
"""Values of `TaskConfig.activation`: functions of one number in torch.nn, without weights and settings."""
SCHEMES = ("", "none", "IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU", "BMES", "BMEWO")
"""Values of `TagConfig.scheme`."""


@dataclass(frozen=True, slots=True)
class TagConfig:
    """Tagging."""

    scheme: str = ""
    """How tags mark spans of words: IOB1, IOB2, IOE1, IOE2, IOBES, BILOU, BMES or BMEWO; none: tags are labels of
    single words, and no spans are scored. Empty: recognised from the tags of the training file. The model learns the
    tags as they are."""
    suffix: bool | None = None
    """Whether the mark of a tag follows its label, as in PER-B. Unset: recognised from the tags of the training
    file."""
    words: tuple[str, ...] = ()
    """Words that stay whole when a text is divided into words, such as U.S.; with a space where a word ends otherwise
    than by BERT's rules, as in "do n't". Empty: those of the training file, if it has words."""
    forms: tuple[str, ...] = ()
    """Forms of words that stay whole: their letters as a and their digits as 0, such as a-a for e-mail. Empty: those of
    the training file, if it has words."""

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            known = [name for name in SCHEMES if name]
            raise UsageError(f"task.tag.scheme = {self.scheme!r} is unknown.{nearest(self.scheme.upper(), known)}")


@dataclass(frozen=True, slots=True)
class EmbedConfig:
    """Sentence vectors. The defaults are those of sentence-transformers."""

    loss: Literal["", "ranking", "cosent", "cosine", "margin"] = ""
    """ranking: the positive of each text among the positives and negatives of the whole global batch (multiple
    negatives, InfoNCE). For scored pairs: cosent, or cosine (squared error of the cosine). margin: MarginMSE; the label
    is a teacher's score of the positive minus that of the negative, or a list of them. Empty: cosent if the rows have a
    score, else ranking."""
    pooling: str = ""
    """A vector is the mean of the last states of a text, or the state of its first token (cls) or of its last one
    (lasttoken), the largest value of each component (max), the sum divided by the square root of the number of
    tokens (mean_sqrt_len_tokens), or the mean weighted by position (weightedmean). The vectors of several, joined by +,
    are concatenated. Empty: as the folder of a sentence-transformers model says, else mean."""
    normalize: bool | None = None
    """Whether vectors have length 1. Unset: as the folder of a sentence-transformers model says; otherwise true, or
    false for the loss margin, which compares inner products."""
    similarity: Literal["", "cosine", "dot", "euclidean", "manhattan"] = ""
    """How the scores compare vectors, and which function the model folder names to programs that read it: cosine, dot
    (the inner product), or a negative distance. The losses do not depend on it. Empty: dot for the loss margin, else
    cosine."""
    scale: float = 20.0
    """ranking, cosent: factor of the cosines, the inverse of the temperature."""
    negatives: tuple[str, ...] = ()
    """Columns of texts that do not belong to the text. Empty: those named negative, negative_1, hard_negative, ..."""
    widths: tuple[int, ...] = ()
    """Also train the first components of the vectors, cut at these widths (Matryoshka). The full width is one of them
    if it is to be trained."""
    prompt: str = ""
    """What precedes every text of the column `text`, such as "query: "."""
    prompt_b: str = ""
    """What precedes every text of the column `text_b` and of the negatives, such as "passage: "."""
    prompts: tuple[str, ...] = ()
    """Further prompts, each as NAME=TEXT, which `encode` takes by name."""
    default_prompt: str = ""
    """Name of the prompt that precedes a text whose vector is computed: query, document, or one of `prompts`. Empty:
    query."""
    include_prompt: bool = True
    """Whether the tokens of a prompt are pooled too. If not, neither is the first special token of a text that has a
    prompt."""
    truncate_dim: int = 0
    """Number of first components that are kept of a vector, after normalization. 0: all."""

    def __post_init__(self) -> None:
        check(self, "task.embed.", scale="(0, inf)", truncate_dim="[0, inf)")
        for mode in self.pooling.split("+") if self.pooling else ():
            if mode not in POOLINGS:
                raise UsageError(f"task.embed.pooling: {mode!r} is unknown.{nearest(mode, [*POOLINGS])}")
        if (wrong := next((entry for entry in self.prompts if "=" not in entry), None)) is not None:
            raise UsageError(f"task.embed.prompts: {wrong!r} has no =. Give NAME=TEXT.")
        if self.default_prompt and self.default_prompt not in self.named_prompts():
            known = nearest(self.default_prompt, [*self.named_prompts()])
            raise UsageError(f"task.embed.default_prompt = {self.default_prompt!r} is not among the prompts.{known}")
        if any(width < 1 for width in self.widths):
            raise UsageError(f"task.embed.widths = {[*self.widths]}: each must be at least 1.")

    def unit(self) -> bool:
        """Returns whether vectors have length 1."""
        return self.loss != "margin" if self.normalize is None else self.normalize

    @property
    def similarity_name(self) -> str:
        """The name of the function that compares vectors."""
        return self.similarity or ("dot" if self.loss == "margin" else "cosine")

    def named_prompts(self) -> dict[str, str]:
        """Returns the prompts by name."""
        others = dict(entry.split("=", 1) for entry in self.prompts)
        return {"query": self.prompt, "document": self.prompt_b} | others

    def own_prompt(self) -> str:
        """Returns what precedes a text of which only a vector is wanted."""
        return self.named_prompts()[self.default_prompt or "query"]


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """The task. It is stored in the model folder, so that evaluate and predict need no task settings."""

    name: str = "classify"
    """classify, multilabel, regress, choice, squad, tag, embed, mask, the name of a data set such as glue/mrpc
    (docs/finetune.md), or "package.module:Class"."""
    max_length: int = 0
    """Maximum tokens of a sequence, special tokens included. Longer text is cut, or divided into windows (squad, tag,
    and `long_text`). Nothing is padded, so a high limit costs nothing for short text. 0: as many as the model has
    positions, up to 384 for squad and 512 otherwise."""
    long_text: LongText = "cut"
    """classify, multilabel, regress: treatment of text longer than `max_length`. cut: its end is omitted. mean and max:
    it is divided into windows, and the output for the text is the mean or the largest of the logits of its windows, for
    each label."""
    stride: int = 0
    """Tokens between the starts of two windows of a long text. 0: half of the tokens of a window."""
    labels: tuple[str, ...] = ()
    """Names of the classes in the order of the head's outputs. Empty: the sorted labels of the training file."""
    class_weights: tuple[float, ...] | Literal["balanced"] = ()
    """classify, tag: factor of the training loss of each label, in the order of the labels. balanced: (number of
    examples) / (number of labels x number of examples with this label). Empty: 1 for each."""
    label_smoothing: float = 0.0
    """classify, tag: share of the target probability that is spread evenly over all labels in training, in [0, 1)
    (Szegedy et al., 2016, section 7)."""
    activation: str = ""
    """regress: function of torch.nn, such as Sigmoid, that is applied to the output of the head when the model is used.
    The head is trained without it. Empty: none."""
    temperature: float | Literal["best"] = 1.0
    """classify: number, from 0.05 to 20, by which logits are divided before they become probabilities. It changes no
    label. best: the one that minimises the loss on `dev` (Guo et al., 2017, section 4.2), which the model folder
    stores."""
    threshold: float = 0.5
    """multilabel: probability from which a text has a label. 0: the threshold with the best f1_micro on `dev`, which
    the model folder keeps."""
    label_thresholds: tuple[float, ...] | Literal["best"] = ()
    """multilabel: a threshold for each label, in the order of the labels, instead of `threshold`. best: those with the
    best F1 of each label on `dev`, which the model folder keeps. Empty: `threshold` for all labels."""
    metrics: tuple[str, ...] = ()
    """Scores that are listed before the others; the first is the headline. A name that the task does not have is an
    error. Empty: the task's own order."""
    top: int = 5
    """mask: number of candidates listed for each [MASK]."""
    columns: Columns = field(default_factory=Columns)
    squad: SquadConfig = field(default_factory=SquadConfig)
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    tag: TagConfig = field(default_factory=TagConfig)

    def __post_init__(self) -> None:
        check_task_name(self.name)
        length = {"max_length": f"[{SHORTEST}, inf)"} if self.max_length else {}
        ranges = {"class_weights": f"[{LEAST_WEIGHT}, inf)", "label_smoothing": "[0, 1)", "threshold": "[0, 1)"}
        ranges["temperature"] = "[0.05, 20]"  # the range that is searched
        check(self, "task.", top="[1, inf)", label_thresholds="[0, 1]", **ranges, **length)
        if isinstance(self.temperature, str) and self.temperature != "best":
            raise UsageError(f'task.temperature = {self.temperature!r} must be a number or "best".')
        self._check_kinds()
        if self.activation and self.activation not in ACTIVATIONS:
            raise UsageError(
                f"task.activation = {self.activation!r} is unknown.{nearest(self.activation, [*ACTIVATIONS])}"
            )
        if len(set(self.labels)) < len(self.labels):
            raise UsageError("task.labels names a label twice.")

    def _check_kinds(self) -> None:
        """Raises UsageError for settings that the task does not have."""
        if self.name not in _OWN:  # from outside, or the name of a data set, which is checked when it is resolved
            return
        for setting, (unset, names) in _ONLY.items():
            value = getattr(self, setting)
            if value != unset and self.name not in names:
                raise UsageError(f"task.{setting} = {value!r} is for {' and '.join(names)}, not for {self.name!r}.")
        if self.label_thresholds and self.threshold != 0.5:
            raise UsageError("task.threshold is for all labels, and task.label_thresholds has one for each: give one.")
        for setting in ("text", "text_b"):
            if is_template(getattr(self.columns, setting)) and self.name not in _SENTENCES:
                known = " and ".join(_SENTENCES)
                raise UsageError(f"task.columns.{setting} with braces is for {known}, not for {self.name!r}.")
        if self.columns.group and self.name != "classify":
            raise UsageError(f"task.columns.group = {self.columns.group!r} is for classify, not for {self.name!r}.")
        if self.long_text not in get_args(LongText):
            raise UsageError(f'task.long_text = {self.long_text!r}: give "cut", "mean" or "max".')
        if self.long_text != "cut" and self.columns.text_b:
            raise UsageError(
                f"task.long_text = {self.long_text!r} divides single texts, not pairs: unset it or task.columns.text_b."
            )

    def resolve_length(self, positions: int = LONGEST) -> Self:
        """Returns these settings with `max_length` for an encoder with this many positions. Raises UsageError if the
        encoder has too few."""
        if positions < SHORTEST:
            raise UsageError(f"The encoder has {positions} positions, fewer than {SHORTEST}: use one with more.")
        longest = LONGEST_SQUAD if self.name == "squad" else LONGEST
        return replace(self, max_length=self.max_length or min(longest, positions))
