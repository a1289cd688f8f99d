"""Settings of an encoder, and the published sizes of BERT."""

from dataclasses import dataclass
from typing import Any

from lambert.core.errors import UsageError
from lambert.core.settings import check

ACTIVATIONS = ("gelu", "gelu_tanh")


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
    """Number of segment types; 2: segments A and B."""
    activation: str = "gelu"
    """`gelu` (with the error function, as first released and in Hugging Face) or `gelu_tanh` (the tanh approximation,
    Google since 2019)."""
    dropout: float = 0.1
    """Probability of dropping an element of a layer's output."""
    attention_dropout: float = 0.1
    """Probability of dropping an attention weight."""
    norm_eps: float = 1e-12
    """Epsilon that layer norms add to the variance."""
    init_range: float = 0.02
    """Standard deviation of initial weights, truncated at two standard deviations (google-research/bert,
    create_initializer)."""
    block: str = "bert"
    """Family of the encoder (bert), or package.module:name of a block that takes the place of BERT's."""

    def __post_init__(self) -> None:
        count = "[1, inf)"
        check(
            self,
            layers=count, hidden=count, heads=count, intermediate=count, positions=count, segment_types=count,
            dropout="[0, 1)", attention_dropout="[0, 1)",
        )  # fmt: skip
        if self.hidden % self.heads:
            raise UsageError(f"heads = {self.heads} does not divide hidden = {self.hidden}.")
        if self.activation not in ACTIVATIONS:
            raise UsageError(f"activation = {self.activation!r} is unknown. Known: {', '.join(ACTIVATIONS)}.")

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
