"""What BERT's encoder costs: weights, floating-point operations, and memory for the backward pass."""

from collections.abc import Collection

import torch

from lambert.model.config import EncoderConfig
from lambert.model.costs import Costs


class BertCosts(Costs):
    """The costs of BERT's encoder, and of those that have its blocks."""

    def matrices(self, config: EncoderConfig) -> tuple[tuple[int, int], ...]:
        width, inner = config.hidden, config.intermediate
        return (width, 3 * width), (width, width), (width, inner), (inner, width)

    def weight_count(self, config: EncoderConfig) -> int:
        rows = config.vocabulary + config.positions + config.position_offset + config.segment_types
        width = config.table_width
        tables = (rows + 2) * width + (width + 1) * config.hidden * bool(config.embedding)
        block = sum((inputs + 1) * outputs for inputs, outputs in self.matrices(config)) + 4 * config.hidden
        return tables + config.layers * block * (not config.custom_block)

    def operations(self, config: EncoderConfig, lengths: Collection[int]) -> int:
        return super().operations(config, lengths) + 2 * config.embedding * config.hidden * sum(lengths)

    def saved_values(self, config: EncoderConfig) -> int:
        # Query, key, value and attention output; the feed-forward layer before and after its activation; dropout masks.
        return (4 + 2 * bool(config.dropout)) * config.hidden + 2 * config.intermediate

    def saved_per_token(
        self, config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int, *, native: bool
    ) -> int:
        if not native:
            return super().saved_per_token(config, dtype, device, longest, native=False)
        # Query, key, value, attention output, two sums and two norms; the feed-forward layer before and after gelu.
        values = 8 * config.hidden + 2 * config.intermediate
        return (config.layers + 2) * (values * dtype.itemsize + config.heads * 4) + 3 * config.hidden * 4
