"""Settings whose default depends on the model or on the data. A run resolves them once, before config.toml is written,
so that config.toml shows their values and the run continues with the same ones."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from lambert.core.errors import UsageError
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.optim.config import OptimConfig
from lambert.runs.config import TrainConfig

BASE_WIDTH, BASE_LR = 768, 2e-5
"""BERT-base: its width and a fine-tuning learning rate (Devlin et al., 2018, appendix A.3)."""
LARGEST_LR = 1e-3
"""The largest fine-tuning learning rate that was measured to train (benchmarks/fine_tuning_rates)."""
EPOCHS, LEAST_UPDATES = 3, 300
"""Length of a fine-tuning run: three epochs as in Devlin et al., 2018, and on few examples more, since runs of fewer
updates end before they have converged (Zhang et al., 2021, "Revisiting Few-sample BERT Fine-tuning", section 5)."""

_OF_THE_FAMILY = ("segment_types", "position_offset", "embedding", "activation")
"""Settings of an encoder that are left out where they have their default value."""

Freeze = int | Literal["embeddings", "encoder"]
"""What a run freezes: the embeddings, the embeddings and that many of the lowest blocks, or the encoder; 0: nothing."""


@dataclass(frozen=True, slots=True)
class FreshModernConfig(ModernConfig):
    """Settings of blocks with rotary positions: ModernBERT has all of them, NomicBERT and GTE only `theta`, and
    EuroBERT `theta`, `kv_heads`, `attention_bias`, `mlp_bias` and `pooling`. Defaults: Warner et al., "Smarter,
    Better, Faster, Longer", 2024, table 3."""

    theta: float | None = None  # type: ignore[assignment]
    """Base of the rotary angles of global layers. Unset: that of the model in init, or 160,000; in a fresh NomicBERT
    1,000, in a fresh EuroBERT 10,000."""
    local_theta: float | None = None  # type: ignore[assignment]
    """Base of the rotary angles of local layers. Unset: that of the model in init, or 10,000."""


@dataclass(frozen=True, slots=True)
class FreshEncoderConfig(EncoderConfig):
    """The shape of an encoder. Defaults are BERT-tiny with the constants of Devlin et al., 2018, section 3 and A.2.

    A setting that the family, the tokenizer or the model in init determines may be left out: another value than that is
    an error. A value that is the default of EncoderConfig counts as left out.
    """

    layers: int | None = None  # type: ignore[assignment]
    """Number of blocks. Unset: that of the model in init, or 2."""
    hidden: int | None = None  # type: ignore[assignment]
    """Width of the states, D. Unset: that of the model in init, or 128."""
    heads: int | None = None  # type: ignore[assignment]
    """Number of attention heads, H; must divide the width. Unset: that of the model in init, or 2."""
    intermediate: int | None = None  # type: ignore[assignment]
    """Width of the feed-forward layer, F. Unset: that of the model in init, or 512."""
    positions: int | None = None  # type: ignore[assignment]
    """Maximum length of a sequence, in tokens. Unset: that of the model in init, or 512."""
    dropout: float | None = None  # type: ignore[assignment]
    """Probability of dropping an element of a layer's output. Unset: that of the model in init, or 0.1; in a fresh
    NomicBERT, EuroBERT and ModernBERT 0, as in the settings that were published with them."""
    attention_dropout: float | None = None  # type: ignore[assignment]
    """Probability of dropping an attention weight. Unset: that of the model in init, or 0.1; in a fresh ModernBERT,
    NomicBERT, GTE and EuroBERT 0."""
    norm_eps: float | None = None  # type: ignore[assignment]
    """Epsilon that norms add to the variance. Unset: that of the model in init, or 1e-12; in a fresh ModernBERT and
    EuroBERT 1e-5."""
    init_range: float | None = None  # type: ignore[assignment]
    """Standard deviation of fresh weights, which are truncated at two standard deviations. Unset: that of the model in
    init, or 0.02."""
    block: str | None = None  # type: ignore[assignment]
    """Family of the encoder (bert, modernbert, roberta, xlm-roberta, camembert, distilbert, electra, mpnet, nomic_bert,
    gte, eurobert), or package.module:name of a block that takes the place of BERT's. Unset: that of the model in init,
    or bert."""
    modern: FreshModernConfig = field(default_factory=FreshModernConfig)
    """Settings of blocks with rotary positions."""

    def __post_init__(self) -> None:
        self._fill(EncoderConfig())

    def shape(self, vocabulary: int, pad: int = 0) -> EncoderConfig:
        """Returns the settings of a fresh encoder for a tokenizer of that many pieces and with that padding token.

        Raises UsageError for a setting that the tokenizer or the family determines otherwise.
        """
        from lambert.model.families import family_of  # `--help` does not wait for torch

        usual = EncoderConfig(block=self.block or EncoderConfig().block)
        family = family_of(usual)
        defaults: dict[str, Any] = {**family.defaults}
        given = self._fill(dataclasses.replace(usual, **defaults))
        shape = family.complete(dataclasses.replace(given, vocabulary=vocabulary, pad=pad))
        for name in (one.name for one in dataclasses.fields(given)):
            value, found = getattr(given, name), getattr(shape, name)
            if value not in (found, getattr(usual, name)):
                raise UsageError(
                    f"model.{name} = {value}, but a fresh {family.title} for this tokenizer has {found}: leave it out."
                )
        return shape

    def resolve(self, shape: EncoderConfig) -> Self:
        """Returns these settings with those of `shape` in place of unset ones and of defaults."""
        usual, found = EncoderConfig(), self._fill(shape)
        kept = {one.name: getattr(found, one.name) for one in dataclasses.fields(found)}
        kept |= {name: getattr(shape, name) for name in _OF_THE_FAMILY if kept[name] == getattr(usual, name)}
        modern = dataclasses.asdict(found.modern)
        for name, value in dataclasses.asdict(FreshModernConfig()).items():
            if getattr(self.modern, name) == value:
                modern[name] = getattr(shape.modern, name)
        return type(self)(**kept | {"modern": FreshModernConfig(**modern)})

    def _fill(self, shape: EncoderConfig) -> EncoderConfig:
        """Returns these settings with those of `shape` in place of unset ones."""
        own = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        own |= {name: getattr(shape, name) for name, value in own.items() if value is None}
        modern = dataclasses.asdict(self.modern)
        modern |= {name: getattr(shape.modern, name) for name, value in modern.items() if value is None}
        return EncoderConfig(**own | {"modern": ModernConfig(**modern)})


@dataclass(frozen=True, slots=True)
class FinetuneOptimConfig(OptimConfig):
    """The optimizer, and the learning rate of each update."""

    name: str = "adamw"
    lr: float = 0.0
    """Peak learning rate, reached at the end of the warm-up. 0: by the width of the model, 2e-5 x (768 / width)^2, at
    most 1e-3 (benchmarks/fine_tuning_rates)."""
    warmup_ratio: float = 0.1
    """Share of all updates of the run over which the learning rate rises linearly, in [0, 1); warmup_steps, where set,
    takes its place."""

    def __post_init__(self) -> None:
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        values["lr"] = self.lr or min(1.0, max(BASE_LR, self.end_lr))
        values["warmup_ratio"] = 0.0 if self.warmup_steps else self.warmup_ratio
        OptimConfig(**values)  # for its errors

    def resolve(self, shape: EncoderConfig) -> Self:
        """Returns these settings with `lr` for an encoder of that shape. Raises UsageError where `end_lr` is larger."""
        return dataclasses.replace(self, lr=self.lr or finetuning_lr(shape.hidden))


@dataclass(frozen=True, slots=True)
class FinetuneTrainConfig(TrainConfig):
    """The length of a run, how it computes, and how often it is scored and saved."""

    batch_size: int = 32
    """Sequences of one update, over all micro-batches and devices together."""
    steps: int | None = None
    """Number of updates of the run. If epochs is set too, the run ends at whichever comes first. Neither set: three
    epochs, at least 300 updates."""
    freeze: Freeze = 0
    """Parts that are not trained: "embeddings"; a number n for the embeddings and the n lowest blocks; or "encoder",
    without the pooler. 0: all parts are trained."""

    def resolve(self, sequences: int) -> Self:
        """Returns these settings with the length of a run on this many sequences."""
        if self.steps is not None or self.epochs is not None:
            return self
        steps = max(math.ceil(EPOCHS * sequences / self.batch_size), LEAST_UPDATES)
        return dataclasses.replace(self, steps=steps)


def finetuning_lr(width: int) -> float:
    """Returns the fine-tuning learning rate for AdamW and an encoder of that width.

    Source: benchmarks/fine_tuning_rates.
    """
    return min(BASE_LR * (BASE_WIDTH / width) ** 2, LARGEST_LR)
