"""What ModernBERT's encoder costs: weights, floating-point operations, and memory for the backward pass."""

from collections.abc import Collection

from lambert.model.config import EncoderConfig
from lambert.model.costs import Costs


class ModernBertCosts(Costs):
    """The costs of ModernBERT's encoder."""

    def matrices(self, config: EncoderConfig) -> tuple[tuple[int, int], ...]:
        width, inner = config.hidden, config.intermediate
        return (width, 3 * width), (width, width), (width, 2 * inner), (inner, width)

    def weight_count(self, config: EncoderConfig) -> int:
        modern, width = config.modern, config.hidden
        biased = (modern.attention_bias, modern.attention_bias, modern.mlp_bias, modern.mlp_bias)
        matrices = zip(self.matrices(config), biased, strict=True)
        block = sum((inputs + bias) * outputs for (inputs, outputs), bias in matrices)
        norms = 2 * config.layers + 1  # one in the first block, two in the others, and those around them
        return config.vocabulary * width + config.layers * block + norms * width * (1 + modern.norm_bias)

    def pairs(self, config: EncoderConfig, lengths: Collection[int]) -> int:
        everywhere = -(-config.layers // config.modern.global_every)
        wide = 2 * config.modern.window + 1
        near = (config.layers - everywhere) * sum(length * min(length, wide) for length in lengths)
        return everywhere * sum(length**2 for length in lengths) + near

    def saved_values(self, config: EncoderConfig) -> int:
        # Queries, keys and values before and after the rotation, the output of attention; both halves of the
        # feed-forward layer, the activated one and the product.
        return 7 * config.hidden + 4 * config.intermediate

    def probabilities(self, config: EncoderConfig, longest: int) -> int:
        everywhere, near = 1 / config.modern.global_every, min(longest, 3 * config.modern.window)
        return round(config.heads * (everywhere * longest + (1 - everywhere) * near))
