"""Settings whose default depends on the model or on the data. A run resolves them once, before config.toml is written,
so that config.toml shows their values and the run continues with the same ones."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from lambert.core.errors import UsageError
from lambert.model.config import EncoderConfig
from lambert.model.families import family_of
from lambert.optim.config import OptimConfig
from lambert.runs.config import TrainConfig

BASE_WIDTH, BASE_LR, BASE_INIT = 768, 2e-5, 0.02
"""BERT-base: its width, a fine-tuning learning rate (Devlin et al., 2018, appendix A.3), and the standard deviation of
its fresh weights (google-research/bert, create_initializer)."""
LARGEST_LR = 1e-3
"""The largest fine-tuning learning rate that was measured to train (benchmarks/finetune-defaults)."""
EPOCHS, LEAST_UPDATES = 3, 300
"""Length of a fine-tuning run: three epochs as in Devlin et al., 2018, and on few examples more, since runs of fewer
updates end before they have converged (Zhang et al., 2021, "Revisiting Few-sample BERT Fine-tuning", section 5)."""

_UNSET = {"dropout": None, "attention_dropout": None, "norm_eps": None, "init_range": 0.0}
"""Settings of a fresh encoder whose default depends on the family or the width, with the values that mean it."""

Freeze = int | Literal["embeddings", "encoder"]
"""What a run freezes: the embeddings, the embeddings and that many of the lowest blocks, or the encoder; 0: nothing."""


@dataclass(frozen=True, slots=True)
class FreshEncoderConfig(EncoderConfig):
    """The shape of an encoder. Defaults are BERT-tiny with the constants of Devlin et al., 2018, section 3 and A.2.

    A setting that the family or the tokenizer determines (`segment_types` of RoBERTa, `pad`) is left out: another value
    than that is an error.
    """

    dropout: float | None = None  # type: ignore[assignment]
    """Probability of dropping an element of a layer's output. Unset: 0.1; in ModernBERT 0, since the compiled kernels
    for CPUs do not train its blocks with this dropout."""
    attention_dropout: float | None = None  # type: ignore[assignment]
    """Probability of dropping an attention weight. Unset: 0.1; in ModernBERT 0."""
    norm_eps: float | None = None  # type: ignore[assignment]
    """Epsilon that layer norms add to the variance. Unset: 1e-12; in ModernBERT 1e-5."""
    init_range: float = 0.0
    """Standard deviation of fresh weights, truncated at two of them. 0: by the width: 0.02 from 768 on, as in BERT, and
    larger in a narrower encoder: 0.03 at 512, 0.06 at 256, 0.088 at 128 (docs/numerics.md)."""

    def __post_init__(self) -> None:
        EncoderConfig.__post_init__(self if self.init_range else dataclasses.replace(self, init_range=BASE_INIT))

    def shape(self, vocabulary: int, pad: int = 0) -> EncoderConfig:
        """Returns the settings of a fresh encoder for a tokenizer of that many pieces and with that padding token.

        Raises UsageError for a setting that the tokenizer or the family determines otherwise. A value that is the
        default of EncoderConfig counts as not given.
        """
        defaults, family = EncoderConfig(), family_of(self)
        usual = {name: getattr(defaults, name) for name in _UNSET}
        given = EncoderConfig(**self._with({**usual, "init_range": init_range(self.hidden), **family.defaults}))
        shape = family.completed(dataclasses.replace(given, vocabulary=vocabulary, pad=pad))
        for field in dataclasses.fields(given):
            value, found = getattr(given, field.name), getattr(shape, field.name)
            if value not in (found, getattr(defaults, field.name)):
                raise UsageError(
                    f"model.{field.name} = {value}, but a fresh {family.title} for this tokenizer has {found}: leave "
                    "it out."
                )
        return shape

    def resolved(self, shape: EncoderConfig) -> Self:
        """Returns these settings with those of `shape` where nothing was given."""
        return type(self)(**self._with({name: getattr(shape, name) for name in _UNSET}))

    def _with(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all settings, with `values` for those of `_UNSET` that were not given."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return own | {name: values[name] for name, unset in _UNSET.items() if own[name] == unset}


@dataclass(frozen=True, slots=True)
class FinetuneOptimConfig(OptimConfig):
    """How gradients become updates, and the learning rate of each update."""

    name: str = "adamw"
    """Optimizer: lamb, adamw, radam, stable_adamw, or "package.module:name"."""
    lr: float = 0.0
    """Peak learning rate, reached at the end of the warm-up. 0: by the width of the model, 2e-5 x (768 / width)^2, at
    most 1e-3 (benchmarks/finetune-defaults)."""
    warmup_ratio: float = 0.1
    """Share of all updates of the run over which the learning rate rises linearly, in [0, 1); warmup_steps, where set,
    takes its place."""

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["lr"] = self.lr or min(1.0, max(BASE_LR, self.end_lr))
        values["warmup_ratio"] = 0.0 if self.warmup_steps else self.warmup_ratio
        OptimConfig(**values)  # for its errors

    def resolved(self, shape: EncoderConfig) -> Self:
        """Returns these settings with `lr` for an encoder of that shape. Raises UsageError where `end_lr` is larger."""
        return dataclasses.replace(self, lr=self.lr or finetuning_lr(shape.hidden))


@dataclass(frozen=True, slots=True)
class FinetuneTrainConfig(TrainConfig):
    """How much is trained, how, and how often it is scored and saved."""

    batch_size: int = 32
    """Sequences of one update, over all micro-batches and devices together."""
    steps: int | None = None
    """Updates of the run; with epochs too, whichever ends first. Neither set: three epochs, at least 300 updates."""
    freeze: Freeze = 0
    """What is not trained: "embeddings", a number n for the embeddings and the n lowest blocks, or "encoder", of which
    the pooler is no part. 0: everything is trained."""

    def resolved(self, sequences: int) -> Self:
        """Returns these settings with the length of a run on so many sequences."""
        if self.steps is not None or self.epochs is not None:
            return self
        steps = max(math.ceil(EPOCHS * sequences / self.batch_size), LEAST_UPDATES)
        return dataclasses.replace(self, steps=steps)


def init_range(width: int) -> float:
    """Returns the standard deviation of the fresh weights of an encoder of that width: 1/sqrt(width), with which a
    narrow model leaves the unigram plateau (docs/log.md), and BERT's 0.02 from a width of 768 on. In between it falls
    as 1/width: at 236 the two rules are equal."""
    return max(BASE_INIT, min(1 / math.sqrt(width), BASE_INIT * BASE_WIDTH / width))


def finetuning_lr(width: int) -> float:
    """Returns the fine-tuning learning rate for AdamW and an encoder of that width.

    Source: benchmarks/finetune-defaults.
    """
    return min(BASE_LR * (BASE_WIDTH / width) ** 2, LARGEST_LR)
