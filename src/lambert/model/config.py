"""Settings of an encoder, and the published sizes of BERT."""

from dataclasses import dataclass, field
from typing import Any, Literal

from lambert.core.errors import UsageError
from lambert.core.settings import check

ACTIVATIONS = ("gelu", "gelu_tanh")


@dataclass(frozen=True, slots=True)
class ModernConfig:
    """What blocks with rotary positions have: ModernBERT all of these settings, NomicBERT and GTE `theta` alone, and
    EuroBERT `theta`, `kv_heads`, `attention_bias`, `mlp_bias` and `pooling`. Defaults: Warner et al., "Smarter,
    Better, Faster, Longer", 2024, table 3."""

    theta: float = 160_000.0
    """Base of the rotary angles of global layers."""
    local_theta: float = 10_000.0
    """Base of the rotary angles of local layers."""
    window: int = 64
    """Tokens on each side of a token to which it attends in local layers."""
    global_every: int = 3
    """One in this many layers, beginning with the first, attends to the whole sequence. 1: all layers do."""
    attention_bias: bool = False
    """Biases of the layers of attention."""
    mlp_bias: bool = False
    """Biases of the feed-forward layers."""
    norm_bias: bool = False
    """Biases of the norms."""
    head_bias: bool = False
    """Bias of the layer that all heads have before their logits."""
    decoder_bias: bool = True
    """Bias of the masked-LM logits."""
    pooling: Literal["mean", "cls", "late"] = "mean"
    """What the heads of sentences read: the mean of the states, the state of the first token, or in EuroBERT the mean
    of the states after the layer that these heads have (`late`)."""
    kv_heads: int = 0
    """Number of heads of keys and values in EuroBERT, which consecutive heads share; it must divide the heads. 0: each
    head has its own."""

    def __post_init__(self) -> None:
        check(
            self, "modern.", theta="(1, inf)", local_theta="(1, inf)", window="[1, inf)", global_every="[1, inf)",
            kv_heads="[0, inf)",
        )  # fmt: skip
        if self.pooling not in ("mean", "cls", "late"):
            raise UsageError(f"modern.pooling = {self.pooling!r} is unknown. Known: mean, cls, late.")


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The shape of an encoder. Defaults are BERT-tiny with the constants of Devlin et al., 2018, section 3 and A.2."""

    layers: int = 2
    """Number of blocks."""
    hidden: int = 128
    """Width of the states, D."""
    heads: int = 2
    """Number of attention heads, H; must divide the width."""
    intermediate: int = 512
    """Width of the feed-forward layer, F."""
    vocabulary: int = 0
    """Number of pieces in the vocabulary, V. 0: taken from the tokenizer."""
    positions: int = 512
    """Maximum length of a sequence, in tokens."""
    segment_types: int = 2
    """Number of segment types; 2: segments A and B; 0: the encoder has none (DistilBERT)."""
    position_offset: int = 0
    """Number of rows of the table of positions before that of the first position: in RoBERTa and MPNet the id of the
    padding token plus one, so a recipe leaves it out; in the other families 0."""
    embedding: int = 0
    """Width of the embeddings, which a layer maps to `hidden`, in ELECTRA. 0: they have the width `hidden`."""
    pad: int = 0
    """Id of the padding token, which transformers reads from config.json. Taken from the tokenizer, so a recipe leaves
    it out."""
    activation: str = "gelu"
    """`gelu` (with the error function, as first released and in Hugging Face) or `gelu_tanh` (the tanh approximation,
    Google since 2019). NomicBERT and EuroBERT have silu instead, and no such setting."""
    dropout: float = 0.1
    """Probability of dropping an element of a layer's output."""
    attention_dropout: float = 0.1
    """Probability of dropping an attention weight."""
    norm_eps: float = 1e-12
    """Epsilon that layer norms add to the variance."""
    init_range: float = 0.02
    """Standard deviation of initial weights. Weights of a fresh encoder are truncated at two standard deviations
    (google-research/bert, create_initializer); weights of the heads of tasks only in ModernBERT, as in transformers."""
    block: str = "bert"
    """Family of the encoder (bert, modernbert, roberta, xlm-roberta, camembert, distilbert, electra, mpnet,
    nomic_bert, gte, eurobert), or package.module:name of a block that takes the place of BERT's."""

    modern: ModernConfig = field(default_factory=ModernConfig)
    """Settings of blocks with rotary positions."""

    def __post_init__(self) -> None:
        count = "[1, inf)"
        check(
            self,
            layers=count, hidden=count, heads=count, intermediate=count, positions=count,
            segment_types="[0, inf)", position_offset="[0, inf)", embedding="[0, inf)", pad="[0, inf)",
            dropout="[0, 1)", attention_dropout="[0, 1)",
        )  # fmt: skip
        if self.hidden % self.heads:
            raise UsageError(f"heads = {self.heads} does not divide hidden = {self.hidden}.")
        if self.modern.kv_heads and self.heads % self.modern.kv_heads:
            raise UsageError(f"modern.kv_heads = {self.modern.kv_heads} does not divide heads = {self.heads}.")
        if self.activation not in ACTIVATIONS:
            raise UsageError(f"activation = {self.activation!r} is unknown. Known: {', '.join(ACTIVATIONS)}.")

    @property
    def table_width(self) -> int:
        """Width of the tables of embeddings."""
        return self.embedding or self.hidden

    @property
    def custom_block(self) -> bool:
        """Whether the blocks are from outside Lambert."""
        return ":" in self.block


def _size(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    return {"layers": layers, "hidden": hidden, "heads": heads, "intermediate": 4 * hidden}


SIZES: dict[str, dict[str, Any]] = {
    # Turc et al., "Well-Read Students Learn Better", 2019, table 1; base and large: Devlin et al., 2018, section 3
    "tiny": _size(2, 128, 2),
    "mini": _size(4, 256, 4),
    "small": _size(4, 512, 8),
    "medium": _size(8, 512, 8),
    "base": _size(12, 768, 12),
    "large": _size(24, 1024, 16),
}
"""Fields of EncoderConfig for each published size."""


def _modern(layers: int, hidden: int, heads: int, intermediate: int) -> dict[str, Any]:
    shape = {"layers": layers, "hidden": hidden, "heads": heads, "intermediate": intermediate}
    return shape | {"block": "modernbert", "segment_types": 0, "norm_eps": 1e-5}


MODERN_SIZES: dict[str, dict[str, Any]] = {
    # JHU-CLSP/ettin-encoder-vs-decoder, 17M, 32M and 68M; Warner et al., 2024, table 3
    "mini": _modern(7, 256, 4, 384),
    "small": _modern(10, 384, 6, 576),
    "medium": _modern(19, 512, 8, 768),
    "base": _modern(22, 768, 12, 1152),
    "large": _modern(28, 1024, 16, 2624),
}
"""Fields of EncoderConfig for the published sizes of ModernBERT."""
