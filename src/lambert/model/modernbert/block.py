"""ModernBERT's block: attention with rotary positions and a gated feed-forward layer, each after a layer norm and added
to what it reads.

Source: Warner et al., 2024, section 2.1; gated units: Shazeer, "GLU variants improve transformer", 2020, equation 6.
"""

from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.attention import attention
from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.encoder import Block
from lambert.model.linear import project
from lambert.model.modernbert import native
from lambert.model.modernbert.rotary import rotate
from lambert.model.packed import has_products


class ModernBertBlock(Block):
    """Maps states [T, D] to states [T, D]. `number` is that of the layer, from 0."""

    products = (("attention_in",), ("attention_out",), ("up",), ("down",))

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        modern, width = config.modern, config.hidden
        self.heads, self.fits = config.heads, native.fits(config)
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout
        self.window = 0 if number % modern.global_every == 0 else modern.window
        self.theta = modern.local_theta if self.window else modern.theta
        # The embeddings are normalised already.
        self.attention_norm = nn.LayerNorm(width, config.norm_eps, bias=modern.norm_bias) if number else None
        self.attention_in = nn.Linear(width, 3 * width, bias=modern.attention_bias)
        self.attention_out = nn.Linear(width, width, bias=modern.attention_bias)
        self.norm = nn.LayerNorm(width, config.norm_eps, bias=modern.norm_bias)
        self.up = nn.Linear(width, 2 * config.intermediate, bias=modern.mlp_bias)
        self.down = nn.Linear(config.intermediate, width, bias=modern.mlp_bias)
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"

    def has_kernels(self, kind: str) -> bool:
        return self.fits and has_products(kind, native.layers(self))

    def qkv(self, states_TD: Tensor, batch: Batch) -> Tensor:
        """Returns the queries, keys and values of all heads before the rotation, [T, 3 D]."""
        normed_TD = states_TD if self.attention_norm is None else self.attention_norm(states_TD)
        return project(normed_TD, self.attention_in, compute=batch.compute)

    def forward(self, states_TD: Tensor, batch: Batch, angles_TE: Tensor) -> Tensor:
        """Returns the states after the block. `angles_TE` are the rotary angles for `theta`."""
        compute = batch.compute
        qkv_T3HE = self.qkv(states_TD, batch).view(len(states_TD), 3, self.heads, -1)
        drop = self.attention_dropout if self.training else 0.0
        mixed_THE = attention(
            rotate(qkv_T3HE, angles_TE), batch.bounds_S1, longest=batch.longest, dropout=drop, window=self.window
        )
        out_TD = project(mixed_THE.flatten(1), self.attention_out, compute=compute)
        states_TD = states_TD + dropout(out_TD, self.dropout, self.training)
        active_TF, gate_TF = project(self.norm(states_TD), self.up, compute=compute).chunk(2, dim=-1)
        inner_TF = nn.functional.gelu(active_TF, approximate=self.approximate) * gate_TF
        out_TD = project(dropout(inner_TF, self.dropout, self.training), self.down, compute=compute)
        return states_TD + out_TD
