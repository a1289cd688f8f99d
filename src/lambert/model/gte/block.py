"""gte's block: attention with rotary positions and a gated feed-forward layer, each followed by a residual sum and a
layer norm.

Source: transformers, GteLayer; gated units: Shazeer, "GLU variants improve transformer", 2020, equation 6.
"""

from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.attention import attention
from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.linear import project
from lambert.model.modernbert.rotary import rotated


class GteBlock(nn.Module):
    """Maps states [T, D] to states [T, D]. `attention_biased` and `down_biased`: which linear layers have biases.
    `inner_dropped`: whether the product of the gated units is dropped too."""

    attention_biased = down_biased = inner_dropped = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden
        self.heads = config.heads
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout
        self.attention_in = nn.Linear(width, 3 * width, bias=self.attention_biased)
        self.attention_out = nn.Linear(width, width, bias=self.attention_biased)
        self.attention_norm = nn.LayerNorm(width, config.norm_eps)
        self.make_units(width, config.intermediate)
        self.down = nn.Linear(config.intermediate, width, bias=self.down_biased)
        self.norm = nn.LayerNorm(width, config.norm_eps)
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"

    def make_units(self, width: int, inner: int) -> None:
        """Makes the layers of `units`."""
        self.up = nn.Linear(width, 2 * inner, bias=False)

    def units(self) -> list[nn.Linear]:
        """Returns the layers whose concatenated outputs are the units before the gate, and the gates before their
        activation."""
        return [self.up]

    def activated(self, gate_TF: Tensor) -> Tensor:
        """Returns the activation of the gates."""
        return nn.functional.gelu(gate_TF, approximate=self.approximate)

    def qkv(self, states_TD: Tensor, batch: Batch) -> Tensor:
        """Returns the queries, keys and values of all heads before the rotation, [T, 3 D]."""
        return project(states_TD, self.attention_in, compute=batch.compute)

    def forward(self, states_TD: Tensor, batch: Batch, angles_TE: Tensor) -> Tensor:
        """Returns the states after the block. `angles_TE` are the rotary angles of the tokens."""
        compute = batch.compute
        qkv_T3HE = self.qkv(states_TD, batch).view(len(states_TD), 3, self.heads, -1)
        drop = self.attention_dropout if self.training else 0.0
        mixed_THE = attention(rotated(qkv_T3HE, angles_TE), batch.bounds_S1, longest=batch.longest, dropout=drop)
        out_TD = project(mixed_THE.flatten(1), self.attention_out, compute=compute)
        states_TD = self.attention_norm(states_TD + dropout(out_TD, self.dropout, self.training))
        up_TF, gate_TF = project(states_TD, *self.units(), compute=compute).chunk(2, dim=-1)
        inner_TF = self.activated(gate_TF) * up_TF
        if self.inner_dropped:
            inner_TF = dropout(inner_TF, self.dropout, self.training)
        out_TD = project(inner_TF, self.down, compute=compute)
        states_TD = self.norm(states_TD + dropout(out_TD, self.dropout, self.training))
        return states_TD
