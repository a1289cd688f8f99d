"""What EuroBERT's encoder costs: weights, floating-point operations, and memory for the backward pass."""

from lambert.model.config import EncoderConfig
from lambert.model.costs import Costs
from lambert.model.eurobert.block import key_width


class EuroBertCosts(Costs):
    """The costs of EuroBERT's encoder."""

    norms = 6
    """Inputs of two norms, normalised and scaled."""

    def matrices(self, config: EncoderConfig) -> tuple[tuple[int, int], ...]:
        width, inner = config.hidden, config.intermediate
        return (width, width + 2 * key_width(config)), (width, width), (width, 2 * inner), (inner, width)

    def weight_count(self, config: EncoderConfig) -> int:
        modern, width = config.modern, config.hidden
        biased = (modern.attention_bias, modern.attention_bias, modern.mlp_bias, modern.mlp_bias)
        matrices = zip(self.matrices(config), biased, strict=True)
        block = sum((inputs + bias) * outputs for (inputs, outputs), bias in matrices)
        return (config.vocabulary + 1) * width + config.layers * (block + 2 * width)

    def saved_values(self, config: EncoderConfig) -> int:
        # Queries, keys and values before and after the rotation, the output of attention; units, gates before and after
        # their activation, and the product; dropout masks.
        return 7 * config.hidden + 4 * config.intermediate + (2 * config.hidden if config.dropout else 0)
