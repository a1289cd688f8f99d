"""What MPNet's encoder costs beside BERT's."""

import torch

from lambert.model.bert.costs import BertCosts
from lambert.model.config import EncoderConfig
from lambert.model.mpnet.relative import BUCKETS


class MpnetCosts(BertCosts):
    """The costs of MPNet's encoder, on every device with torch's operators for attention."""

    def weight_count(self, config: EncoderConfig) -> int:
        return super().weight_count(config) + BUCKETS * config.heads

    def saved_per_token(
        self, config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int, *, native: bool
    ) -> int:
        # Scores, which have biases, and probabilities in float32; the latter in the type of the products too.
        attention = config.heads * longest * (2 * torch.float32.itemsize + dtype.itemsize)
        return self.saved_with(config, dtype, attention)
