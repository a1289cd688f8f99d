"""Attention whose scores have a bias for each head and distance of two tokens, shared by all layers.

Distances are in buckets: 8 of one distance each on both sides, and 8 whose width grows with the logarithm, up to a
distance of 128. torch's operators compute it: no kernel of `model/attention.py` has such biases and their gradient. On
a GPU sequences are padded to the longest one, since flash attention has no biases. Two others for flat batches have not
been tried: the memory-efficient kernel with bounds and biases at once, and FlexAttention, which must be compiled.

Source: Raffel et al., "Exploring the limits of transfer learning", 2020, section 2.1 and their code (mesh_tensorflow,
`_relative_position_bucket`); in an encoder: transformers, MPNetEncoder.
"""

import math

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.attention import equal_lengths, padded_rows
from lambert.model.dropout import dropout as drop_out
from lambert.model.embedding import embed

BUCKETS, FARTHEST = 32, 128

Biases = dict[int, Tensor]
"""Biases [H, M, M] by the length of the sequences, M."""


def buckets(length: int, device: torch.device) -> Tensor:
    """Returns the bucket of each pair of tokens of a sequence, int64 [M, M]: rows are queries, columns keys."""
    places_M = torch.arange(length, device=device)
    distance_MM = places_M[:, None] - places_M
    side, exact = BUCKETS // 2, BUCKETS // 4
    far_MM = distance_MM.abs()
    growth_MM = torch.log(far_MM.float() / exact) / math.log(FARTHEST / exact) * (side - exact)
    near_MM = torch.where(far_MM < exact, far_MM, (exact + growth_MM.clamp_(min=0).long()).clamp_(max=side - 1))
    return near_MM + side * (distance_MM < 0)


def biases(table: nn.Embedding, batch: Batch) -> Biases:
    """Returns the biases of the sequences from the table [buckets, H]: on a CPU those of every length, on other devices
    those of the longest one, so that the host does not wait."""
    device = batch.bounds_S1.device
    lengths = {*batch.bounds_S1.diff().tolist()} if device.type == "cpu" else {batch.longest}
    found: Biases = {}
    for length in lengths:
        rows = embed(buckets(length, device).flatten(), table, batch.compute)
        found[length] = rows.view(length, length, -1).permute(2, 0, 1)
    return found


def biased_attention(qkv_T3HE: Tensor, batch: Batch, of_length: Biases, dropout: float) -> Tensor:
    """Returns softmax(q k' / sqrt(E) + bias) v for each sequence, [T, H, E].

    Args:
        qkv_T3HE: Queries, keys and values, [T, 3, H, E].
        batch: The sequences.
        of_length: Their biases.
        dropout: Probability of dropping an attention weight.
    """
    if qkv_T3HE.device.type != "cpu":
        return _padded(qkv_T3HE, batch, of_length[batch.longest], dropout)
    T, _, H, E = qkv_T3HE.shape
    mixed_THE = qkv_T3HE.new_empty(T, H, E)
    for rows, G, M in equal_lengths(batch.bounds_S1.tolist()):
        q_GHME, k_GHME, v_GHME = qkv_T3HE[rows].view(G, M, 3, H, E).permute(2, 0, 3, 1, 4)
        scores_GHMM = q_GHME @ k_GHME.mT * E**-0.5 + of_length[M]
        weights_GHMM = drop_out(scores_GHMM.softmax(-1).to(v_GHME.dtype), dropout, True)
        mixed_THE[rows] = (weights_GHMM @ v_GHME).transpose(1, 2).reshape(G * M, H, E).to(mixed_THE.dtype)
    return mixed_THE


def _padded(qkv_T3HE: Tensor, batch: Batch, bias_HMM: Tensor, dropout: float) -> Tensor:
    """Computes the same on padded rows, without waiting for the device."""
    rows_SM, inside_SM, back_T = padded_rows(batch.bounds_S1, batch.longest, len(qkv_T3HE))
    q_SHME, k_SHME, v_SHME = qkv_T3HE[rows_SM].permute(2, 0, 3, 1, 4)
    outside_S1MM = torch.zeros(inside_SM.shape, dtype=q_SHME.dtype, device=inside_SM.device)
    outside_S1MM = outside_S1MM.masked_fill(~inside_SM, -torch.inf)[:, None, None, :]
    mixed_SHME = nn.functional.scaled_dot_product_attention(
        q_SHME, k_SHME, v_SHME, attn_mask=bias_HMM.to(q_SHME.dtype) + outside_S1MM, dropout_p=dropout
    )
    mixed_THE: Tensor = mixed_SHME.transpose(1, 2).flatten(0, 1)[back_T]
    return mixed_THE
