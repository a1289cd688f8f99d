"""EuroBERT's block: attention with rotary positions and a gated feed-forward layer, each after an RMS norm and added to
what it reads.

Source: Boizard et al., 2025, section 2.1; RMS norms: Zhang and Sennrich, "Root mean square layer normalization", 2019;
shared keys and values: Ainslie et al., "GQA", 2023.
"""

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.attention import attention
from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.linear import project
from lambert.model.modernbert.rotary import rotated


def key_width(config: EncoderConfig) -> int:
    """Returns the width of the keys of all heads together, which is that of the values. Raises UsageError through
    EncoderConfig if the heads cannot share them."""
    return config.hidden // config.heads * (config.modern.kv_heads or config.heads)


def expanded(qkv_TF: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Returns queries, keys and values of all heads, [T, 3, H, E], from queries [T, H, E] and the keys and values of
    `kv_heads` heads, concatenated to [T, F]. Consecutive heads share keys and values."""
    own_TE = qkv_TF.view(len(qkv_TF), heads + 2 * kv_heads, -1)
    if kv_heads == heads:
        return own_TE.view(len(qkv_TF), 3, heads, -1)
    parts = torch.split(own_TE, [heads, kv_heads, kv_heads], dim=1)
    shared = (part.repeat_interleave(heads // kv_heads, dim=1) for part in parts[1:])
    return torch.stack([parts[0], *shared], dim=1)


class EuroBertBlock(nn.Module):
    """Maps states [T, D] to states [T, D]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        modern, width, inner = config.modern, config.hidden, config.intermediate
        self.heads, self.kv_heads = config.heads, modern.kv_heads or config.heads
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout
        self.attention_norm = nn.RMSNorm(width, config.norm_eps)
        self.query = nn.Linear(width, width, bias=modern.attention_bias)
        self.key, self.value = (nn.Linear(width, key_width(config), bias=modern.attention_bias) for _ in range(2))
        self.attention_out = nn.Linear(width, width, bias=modern.attention_bias)
        self.norm = nn.RMSNorm(width, config.norm_eps)
        self.gate, self.up = (nn.Linear(width, inner, bias=modern.mlp_bias) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=modern.mlp_bias)

    def qkv(self, states_TD: Tensor, batch: Batch) -> Tensor:
        """Returns the queries, keys and values of all heads before the rotation, [T, 3 D]."""
        normed_TD = self.attention_norm(states_TD)
        qkv_TF = project(normed_TD, self.query, self.key, self.value, compute=batch.compute)
        return expanded(qkv_TF, self.heads, self.kv_heads).flatten(1)

    def forward(self, states_TD: Tensor, batch: Batch, angles_TE: Tensor) -> Tensor:
        """Returns the states after the block. `angles_TE` are the rotary angles of the tokens."""
        compute = batch.compute
        qkv_T3HE = self.qkv(states_TD, batch).view(len(states_TD), 3, self.heads, -1)
        drop = self.attention_dropout if self.training else 0.0
        mixed_THE = attention(rotated(qkv_T3HE, angles_TE), batch.bounds_S1, longest=batch.longest, dropout=drop)
        out_TD = project(mixed_THE.flatten(1), self.attention_out, compute=compute)
        states_TD = states_TD + dropout(out_TD, self.dropout, self.training)
        gate_TF, up_TF = project(self.norm(states_TD), self.gate, self.up, compute=compute).chunk(2, dim=-1)
        out_TD = project(nn.functional.silu(gate_TF) * up_TF, self.down, compute=compute)
        return states_TD + dropout(out_TD, self.dropout, self.training)
