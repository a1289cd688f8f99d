"""Attention over padded rows, for runtimes that do not know flat batches. It consists of plain products, so that every
exporter can trace it.

In shape suffixes, B is the number of rows and M their length.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_MASKED = -10_000.0
"""Added to the scores of masked tokens, which makes their probability 0 in float32. Unlike infinity, it leaves no NaN
where all tokens are masked, and unlike the smallest float32 it is a number in float16 and bfloat16 too. Source:
google-research/bert, modeling.py."""


def join_layers(*layers: nn.Linear, scale: Sequence[float] = ()) -> nn.Linear:
    """Returns one layer with the outputs of several, concatenated, each times its `scale` (default 1)."""
    scales = [*scale, *[1.0] * (len(layers) - len(scale))]
    weights = [layer.weight.detach() * by for layer, by in zip(layers, scales, strict=True)]
    biases = [layer.bias.detach() * by for layer, by in zip(layers, scales, strict=True) if layer.bias is not None]
    out = nn.Linear(1, 1, bias=bool(biases))
    out.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
    if biases:
        out.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    out.in_features, out.out_features = out.weight.shape[1], out.weight.shape[0]
    return out


def mask_scores(mask_BM: Tensor, window: int = 0) -> Tensor:
    """Returns what is added to the scores of attention: [B, 1, 1, M], or [B, 1, M, M] if tokens read only those at most
    `window` positions away. `mask_BM` is 1 for tokens and 0 for padding."""
    seen = mask_BM[:, None, None, :] > 0
    if window:
        places_M = torch.arange(mask_BM.shape[1], device=mask_BM.device)
        seen = seen & ((places_M[:, None] - places_M).abs() <= window)
    return torch.where(seen, 0.0, _MASKED)


def attend(q_BHME: Tensor, k_BHME: Tensor, v_BHME: Tensor, scores_B11M: Tensor) -> Tensor:
    """Returns attention [B, M, H E] for queries that are already scaled."""
    weights_BHMM = torch.softmax(q_BHME @ k_BHME.transpose(2, 3) + scores_B11M, -1)
    return (weights_BHMM @ v_BHME).transpose(1, 2).flatten(2)


def split_heads(qkv_BMF: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries, keys and values [B, H, M, E] of a layer that computes all three."""
    parts = (part.reshape(*part.shape[:2], heads, -1).transpose(1, 2) for part in qkv_BMF.chunk(3, -1))
    q_BHME, k_BHME, v_BHME = parts
    return q_BHME, k_BHME, v_BHME
