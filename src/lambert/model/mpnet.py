"""The MPNet family (Song et al., "MPNet", 2020): BERT's encoder without segments, with biases of attention by distance.

The biases, one for each head and distance of two tokens, are one table for all layers. Distances are in buckets: 8 of
one distance each on both sides, and 8 whose width grows with the logarithm, up to a distance of 128. torch's operators
compute this attention: no kernel of `model/attention.py` has such biases and their gradient. On a GPU sequences are
padded to the longest one, because flash attention has no biases. Two kernels for flat batches have not been tried: the
memory-efficient kernel with bounds and biases, and FlexAttention, which must be compiled.

Lambert does not have MPNet's permuted objective: the family is pre-trained with BERT's, and fine-tuned.

Source of the biases: Raffel et al., "Exploring the limits of transfer learning", 2020, section 2.1 and their code
(mesh_tensorflow, `_relative_position_bucket`); in an encoder: transformers, MPNetEncoder.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.errors import UsageError
from lambert.model import roberta
from lambert.model.attention import attend_rows, equal_lengths, mask_scores, pad_rows
from lambert.model.bert import BERT, BertCosts
from lambert.model.bert.block import BertBlock
from lambert.model.bert.encoder import BertEncoder
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import architectures
from lambert.model.dropout import dropout as drop_out
from lambert.model.embedding import embed

BUCKETS, FARTHEST = 32, 128

Biases = dict[int, Tensor]
"""Biases [H, M, M] by the length of the sequences, M; those of padded rows under 0."""


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
    those of the longest one, which needs no synchronization."""
    device = batch.bounds_S1.device
    if batch.mask_BM is not None:
        return {0: _of_length(table, batch.longest, batch)}
    lengths = {*batch.bounds_S1.diff().tolist()} if device.type == "cpu" else {batch.longest}
    return {length: _of_length(table, length, batch) for length in lengths}


def _of_length(table: nn.Embedding, length: int, batch: Batch) -> Tensor:
    rows = embed(buckets(length, batch.bounds_S1.device).flatten(), table, batch.compute)
    return rows.view(length, length, -1).permute(2, 0, 1)


def attend_with_biases(qkv_T3HE: Tensor, batch: Batch, of_length: Biases, dropout: float) -> Tensor:
    """Returns softmax(q k' / sqrt(E) + bias) v for each sequence, [T, H, E].

    Args:
        qkv_T3HE: Queries, keys and values, [T, 3, H, E].
        batch: The sequences.
        of_length: Their biases.
        dropout: Probability of dropping an attention weight.
    """
    if batch.mask_BM is not None:
        return attend_rows(qkv_T3HE, batch.mask_BM, of_length[0] + mask_scores(batch.mask_BM))
    if qkv_T3HE.device.type != "cpu":
        return _attend_padded(qkv_T3HE, batch, of_length[batch.longest], dropout)
    T, _, H, E = qkv_T3HE.shape
    mixed_THE = qkv_T3HE.new_empty(T, H, E)
    for rows, G, M in equal_lengths(batch.bounds_S1.tolist()):
        q_GHME, k_GHME, v_GHME = qkv_T3HE[rows].view(G, M, 3, H, E).permute(2, 0, 3, 1, 4)
        scores_GHMM = q_GHME @ k_GHME.mT * E**-0.5 + of_length[M]
        weights_GHMM = drop_out(scores_GHMM.softmax(-1).to(v_GHME.dtype), dropout, True)
        mixed_THE[rows] = (weights_GHMM @ v_GHME).transpose(1, 2).reshape(G * M, H, E).to(mixed_THE.dtype)
    return mixed_THE


def _attend_padded(qkv_T3HE: Tensor, batch: Batch, bias_HMM: Tensor, dropout: float) -> Tensor:
    """Computes the same on padded rows, without waiting for the device."""
    rows_SM, inside_SM, back_T = pad_rows(batch.bounds_S1, batch.longest, len(qkv_T3HE))
    q_SHME, k_SHME, v_SHME = qkv_T3HE[rows_SM].permute(2, 0, 3, 1, 4)
    outside_S1MM = torch.zeros(inside_SM.shape, dtype=q_SHME.dtype, device=inside_SM.device)
    outside_S1MM = outside_S1MM.masked_fill(~inside_SM, -torch.inf)[:, None, None, :]
    mixed_SHME = nn.functional.scaled_dot_product_attention(
        q_SHME, k_SHME, v_SHME, attn_mask=bias_HMM.to(q_SHME.dtype) + outside_S1MM, dropout_p=dropout
    )
    mixed_THE: Tensor = mixed_SHME.transpose(1, 2).flatten(0, 1)[back_T]
    return mixed_THE


class MpnetBlock(BertBlock):
    """Maps states [T, D] to states [T, D]."""

    def has_kernels(self, kind: str) -> bool:
        return False  # they have no biases of attention

    def forward(self, states_TD: Tensor, batch: Batch, biases: Biases) -> Tensor:  # type: ignore[override]
        """Returns the states after the block. `biases` are those of the lengths of the sequences."""
        qkv_T3HE = self.qkv(states_TD, batch).view(*states_TD.shape[:-1], 3, self.heads, -1)
        drop = self.attention_dropout if self.training else 0.0
        return self.after(states_TD, attend_with_biases(qkv_T3HE, batch, biases, drop), batch)


class MpnetEncoder(BertEncoder):
    """The encoder of Song et al., 2020, in the form of transformers."""

    block_type = MpnetBlock

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.relative = nn.Embedding(BUCKETS, config.heads)

    def states(self, batch: Batch) -> Iterator[Tensor]:
        states_TD, found = self.embed(batch), biases(self.relative, batch)
        blocks: list[Any] = [*self.blocks]
        for block in blocks:
            yield states_TD
            states_TD = block(states_TD, batch, found)
        yield states_TD


PAD = 1
"""Id of the padding token, for which transformers has a constant: positions of other tokens follow it."""
NAMES = replace(
    roberta.NAMES,
    prefix="mpnet.",
    encoder={
        "words": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "norm": "embeddings.LayerNorm",
        "relative": "encoder.relative_attention_bias",
    },
    block={
        **BERT.names.block,
        "query": "attention.attn.q",
        "key": "attention.attn.k",
        "value": "attention.attn.v",
        "attention_out": "attention.attn.o",
        "attention_norm": "attention.LayerNorm",
    },
    pooler="mpnet.pooler.dense",
)
KEYS = replace(
    roberta.KEYS,
    fields={name: key for name, key in roberta.KEYS.fields.items() if name != "segment_types"},
    constants={"segment_types": 0},
    fixed={**BERT.keys.fixed, "relative_attention_num_buckets": BUCKETS, "pad_token_id": PAD},
    written={"tie_word_embeddings": True, "relative_attention_num_buckets": BUCKETS},
)


def fresh(config: EncoderConfig) -> EncoderConfig:
    """Returns the settings of a fresh encoder with the positions of transformers. Raises UsageError for another padding
    token than transformers assumes."""
    if config.pad != PAD:
        raise UsageError(
            f"A fresh MPNet needs a tokenizer whose padding token has the id {PAD}, after which transformers counts "
            f"positions; here it is {config.pad}. Use MPNet's own tokenizer, or another model.block."
        )
    return replace(config, position_offset=PAD + 1)


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


MPNET = replace(
    BERT,
    title="MPNet",
    encoder=MpnetEncoder,
    heads=roberta.HEADS,
    segments=False,
    fresh=fresh,
    names=NAMES,
    keys=KEYS,
    architectures=architectures("MPNet"),
    costs=MpnetCosts(),
    kernels_lack=lambda config: "biases of attention by distance",
)
