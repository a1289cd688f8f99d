"""BERT's block (Devlin et al., "BERT", 2018, section 3)."""

from torch import nn

from lambert.model.config import EncoderConfig
from lambert.model.post_norm import PostNormBlock


class BertBlock(PostNormBlock):
    """Maps states [T, D] to states [T, D]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        width = config.hidden
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.up = nn.Linear(width, config.intermediate)
        self.down = nn.Linear(config.intermediate, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
