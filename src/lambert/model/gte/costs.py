"""What gte's encoder costs: weights, floating-point operations, and memory for the backward pass."""

from lambert.model.config import EncoderConfig
from lambert.model.costs import Costs
from lambert.model.gte.block import GteBlock


class GteCosts(Costs):
    """The costs of an encoder with gte's blocks, or those of NomicBERT."""

    def __init__(self, block: type[GteBlock] = GteBlock) -> None:
        self._block = block

    def matrices(self, config: EncoderConfig) -> tuple[tuple[int, int], ...]:
        width, inner = config.hidden, config.intermediate
        return (width, 3 * width), (width, width), (width, 2 * inner), (inner, width)

    def weight_count(self, config: EncoderConfig) -> int:
        width = config.hidden
        biases = width * (4 * self._block.attention_biased + self._block.down_biased)
        own = sum(inputs * outputs for inputs, outputs in self.matrices(config)) + biases + 4 * width
        return (config.vocabulary + config.segment_types + 2) * width + config.layers * own

    def saved_values(self, config: EncoderConfig) -> int:
        # Queries, keys and values before and after the rotation, the output of attention; units, gates before and after
        # their activation, and the product.
        masks = 2 * config.hidden + config.intermediate if config.dropout else 0
        return 7 * config.hidden + 4 * config.intermediate + masks
