"""The settings of `lambert pretrain`."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from cyclopts import Parameter

from lambert.core.errors import UsageError
from lambert.core.settings import SEEDS, check
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.distributed.config import ExchangeConfig
from lambert.engine.guard import GuardConfig
from lambert.optim.config import OptimConfig
from lambert.runs.config import LogConfig, RelationConfig, TrainConfig, check_together
from lambert.runs.defaults import FreshEncoderConfig
from lambert.runs.expect import ExpectConfig

COMMON = (
    "corpus", "out", "init", "text", "seed", "model.layers", "model.hidden", "model.heads", "model.intermediate",
    "packing.mode", "packing.sequence_length", "masking.rate", "optim.name", "optim.lr", "optim.weight_decay",
    "optim.schedule", "optim.warmup_ratio", "train.batch_size", "train.steps", "train.epochs", "train.precision",
    "train.device", "train.evaluate_every", "train.save_every",
)  # fmt: skip
"""Settings that `--help` shows first."""


@dataclass(frozen=True, slots=True)
class PretrainConfig:
    """Masked-LM pre-training, with next-sentence prediction if the packing has pairs. Repeating the command continues
    the run."""

    corpus: Path
    """Folder that `lambert prepare` wrote, or that this run writes from `text`."""
    out: Path
    """Run folder: settings, metrics, checkpoints, and the encoder in model/."""
    init: Path | None = None
    """Model folder or run folder to start from. Unset: fresh weights in the shape of [model]."""
    random_init: ClassVar[bool] = False
    """Whether the weights of `init` are replaced by fresh ones, as a setting of finetune may say."""
    text: tuple[str, ...] = ()
    """Files, folders and globs of raw text, which `lambert prepare` first converts to `corpus` with the tokenizer of
    `init`. If `corpus` holds them already, nothing is converted."""
    documents: Literal["file", "blank-line", "line"] = "file"
    """The documents of `text`, as in `lambert prepare`."""
    code: tuple[str, ...] = ()
    """Names, package.module:name, of code from outside Lambert that `init` may import (docs/security.md)."""
    keep_moments: bool = False
    """Also take the optimizer moments from the run in `init`. By default a new stage starts with fresh moments."""
    restart_damaged: bool = False
    """Start over if all checkpoints in `out` are damaged. Without this flag the run is refused and lists them."""
    verify: bool = False
    """Compare the whole corpus with the hashes in its manifest before the first update. Without this flag 64 MiB are
    compared, different ones at each start; a small corpus is always compared completely."""
    seed: int = 42
    """Seed of the fresh weights, the order of the data, the masks and dropout."""
    model: FreshEncoderConfig | None = None
    """Shape of the encoder. Unset: that of `init`."""
    packing: PackingConfig = field(default_factory=PackingConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    distil: RelationConfig = field(default_factory=RelationConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    log: LogConfig = field(default_factory=LogConfig)
    expect: Annotated[ExpectConfig | None, Parameter(parse=False)] = None
    """The table [expect] of the recipe, with which `lambert verify` compares a run (docs/verify.md)."""

    def __post_init__(self) -> None:
        check(self, seed=SEEDS)
        check_together(self)
        if self.text and self.init is None:
            raise UsageError("text needs init, whose tokenizer it is converted with. Otherwise run `lambert prepare`.")
        if self.distil.student_layers and self.init is None:
            raise UsageError("distil.student_layers needs init, the model whose layers are taken; see model.layers.")

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of the held-out scores, if the held-out part has two documents or more."""
        return tuple(name + suffix for name in self.packing.objectives for suffix in ("", "_accuracy"))

    def resolve(self) -> Self:
        """Returns the settings as a run records them, as far as they follow from other settings."""
        model = self.model
        if model is not None and self.init is None:
            model = model.resolve(model.shape(vocabulary=1000))
        return replace(self, model=model, optim=self.optim.at_batch(self.train.batch_size))
