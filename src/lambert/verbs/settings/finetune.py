"""The settings of `lambert finetune`."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Self

from cyclopts import Parameter

from lambert.core.errors import UsageError
from lambert.core.settings import SEEDS, check
from lambert.distributed.config import ExchangeConfig
from lambert.engine.guard import GuardConfig
from lambert.runs.config import DistilConfig, LogConfig, check_together
from lambert.runs.defaults import FinetuneOptimConfig, FinetuneTrainConfig
from lambert.runs.expect import ExpectConfig
from lambert.tasks.config import TaskConfig

COMMON = (
    "init", "data", "dev", "out", "seed", "seeds", "task.name", "task.max_length", "task.columns.text",
    "task.columns.text_b", "task.columns.label", "optim.name", "optim.lr", "optim.weight_decay", "optim.warmup_ratio",
    "train.batch_size", "train.epochs", "train.steps", "train.precision", "train.device", "train.evaluate_every",
    "train.save_every",
)  # fmt: skip
"""Settings that `--help` shows first."""
_SHARE = re.compile(r"[0-9.,]+ ?%|0?,[0-9]+")
"""Ways in which users write a share of the rows, such as 10%."""


@dataclass(frozen=True, slots=True)
class FinetuneConfig:
    """Fine-tuning on labelled text. Repeating the command continues the run."""

    data: Path
    """Labelled training file: SQuAD JSON; CoNLL for the task tag; or TSV, CSV, JSON lines or Parquet with named
    columns. Or a folder that save_to_disk of Hugging Face's datasets wrote, of one split, or of several with `train`
    and `validation`."""
    out: Path
    """Run folder: settings, metrics, checkpoints, and the task model in model/."""
    init: Path
    """Model folder or run folder of the encoder to start from."""
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside Lambert that `init` may import (docs/security.md)."""
    dev: float | Path | None = None
    """Labelled file for evaluation during training and at the end; or a share of the rows of `data`, such as 0.1, which
    is then not trained on (docs/finetune.md). Unset: the split `validation` of the folder `data`, if it has one."""
    random_init: bool = False
    """Use only the shape and the vocabulary of `init`, with fresh weights, to measure the value of pre-training."""
    restart_damaged: bool = False
    """Start over if all checkpoints in `out` are damaged. Without this flag the run is refused and lists them."""
    seed: int = 42
    """Seed of the weights of the fresh head, the order of the data and dropout."""
    seeds: tuple[int, ...] = ()
    """Run once for each of these seeds, in `out`/seed-N, and write means and deviations of the scores to
    `out`/seeds.json. Seeds are listed, not counted, so that a later command can add some; it runs only the missing
    ones. `seed` is then not used."""
    cache: Path | None = None
    """Folder for the tokenized features of `data` and `dev`, which other runs and ranks then read (docs/finetune.md).
    Unset: none; for several seeds `out`/features, and in a sweep features in the `out` of the sweep."""
    task: TaskConfig = field(default_factory=TaskConfig)
    distil: DistilConfig = field(default_factory=DistilConfig)
    optim: FinetuneOptimConfig = field(default_factory=FinetuneOptimConfig)
    train: FinetuneTrainConfig = field(default_factory=FinetuneTrainConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    log: LogConfig = field(default_factory=LogConfig)
    expect: Annotated[ExpectConfig | None, Parameter(parse=False)] = None
    """The table [expect] of the recipe, with which `lambert verify` compares a run (docs/verify.md)."""

    def __post_init__(self) -> None:
        check(self, seed=SEEDS, seeds=SEEDS)
        check_together(self)
        if isinstance(self.dev, float) and not 0 < self.dev < 1:
            raise UsageError(f"dev = {self.dev:g} must be a share of the rows between 0 and 1, or the path of a file.")
        if isinstance(self.dev, Path) and _SHARE.fullmatch(str(self.dev)):
            raise UsageError(f"dev = {str(self.dev)!r}: write a share of the rows as a decimal number, such as 0.1.")
        if len(set(self.seeds)) < len(self.seeds):
            raise UsageError(f"seeds = {' '.join(map(str, self.seeds))} names a seed twice.")

    @property
    def scores(self) -> tuple[str, ...]:
        """No names: the data determine the scores."""
        return ()

    def resolve(self) -> Self:
        """Returns the settings as a run records them, as far as they follow from other settings."""
        return replace(self, optim=self.optim.at_batch(self.train.batch_size))

    def check_dev(self) -> None:
        """Raises UsageError if a setting needs dev data and there are none. `dev` is that of `find_splits`."""
        if self.dev is not None:
            return
        if not self.task.threshold:
            raise UsageError("task.threshold = 0 is chosen by the scores on dev: name the dev file, or a threshold.")
        if self.task.label_thresholds == "best":
            raise UsageError('task.label_thresholds = "best" is chosen on dev: name the dev file, or the thresholds.')
        if self.task.temperature == "best":
            raise UsageError('task.temperature = "best" is chosen on dev: name the dev file, or a temperature.')
        if self.task.name == "squad" and self.task.squad.null_threshold == "best":
            raise UsageError('task.squad.null_threshold = "best" is chosen on dev: name the dev file, or a threshold.')
        if self.train.keep_best:
            raise UsageError(f"train.keep_best = {self.train.keep_best!r} needs dev, the labelled file to score.")
