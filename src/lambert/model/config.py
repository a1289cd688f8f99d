"""The settings of an encoder, and the published sizes."""

from dataclasses import dataclass
from typing import Any

from lambert.core.errors import UsageError

ACTIVATIONS = ("gelu", "gelu_tanh")


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The shape of an encoder. Defaults are BERT-tiny with the constants of Devlin et al., 2018, section 3 and A.2."""

    layers: int = 2
    """Number of blocks."""
    hidden: int = 128
    """Width of the states, D."""
    heads: int = 2
    """Attention heads, H; they divide the width."""
    intermediate: int = 512
    """Width of the feed-forward layer, F."""
    vocabulary: int = 0
    """Pieces of the vocabulary, V; 0: taken from the tokenizer."""
    positions: int = 512
    """Longest sequence, in tokens."""
    segment_types: int = 2
    """Kinds of segments: A and B."""
    activation: str = "gelu"
    """gelu (by the error function, as first released and as in Hugging Face) or gelu_tanh (Google since 2019)."""
    dropout: float = 0.1
    """Probability of dropping an element of a layer's output."""
    attention_dropout: float = 0.1
    """Probability of dropping an attention weight."""
    norm_eps: float = 1e-12
    """Added to the variance in layer norms."""
    init_range: float = 0.02
    """Standard deviation of fresh weights, truncated at two of them (google-research/bert, create_initializer)."""
    block: str = "bert"
    """Kind of layer, or package.module:name of one's own."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "intermediate", "positions", "segment_types"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)} must be at least 1.")
        if self.vocabulary < 0:
            raise UsageError(f"vocabulary = {self.vocabulary} must not be negative.")
        if self.hidden % self.heads:
            raise UsageError(f"heads = {self.heads} does not divide hidden = {self.hidden}.")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)} must be at least 0 and below 1.")
        if self.activation not in ACTIVATIONS:
            raise UsageError(f"activation = {self.activation!r} is unknown. Known: {', '.join(ACTIVATIONS)}.")


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
"""Fields of EncoderConfig by the name of the size."""
