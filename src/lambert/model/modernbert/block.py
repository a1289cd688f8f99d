"""ModernBERT's block (Warner et al., "ModernBERT", 2024, section 2.1)."""

from torch import nn

from lambert.model.config import EncoderConfig
from lambert.model.pre_norm import PreNormBlock


class ModernBertBlock(PreNormBlock):
    """Maps states [T, D] to states [T, D]. `number` is that of the layer, from 0."""

    products = (("attention_in",), ("attention_out",), ("up",), ("down",))
    inner_dropped = True

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__(config)
        modern, width = config.modern, config.hidden
        self.window = 0 if number % modern.global_every == 0 else modern.window
        self.theta = modern.local_theta if self.window else modern.theta
        # The embeddings are normalised already.
        self.attention_norm = nn.LayerNorm(width, config.norm_eps, bias=modern.norm_bias) if number else None
        self.attention_in = nn.Linear(width, 3 * width, bias=modern.attention_bias)
        self.attention_out = nn.Linear(width, width, bias=modern.attention_bias)
        self.norm = nn.LayerNorm(width, config.norm_eps, bias=modern.norm_bias)
        self.up = nn.Linear(width, 2 * config.intermediate, bias=modern.mlp_bias)
        self.down = nn.Linear(config.intermediate, width, bias=modern.mlp_bias)
