"""The MPNet family (Song et al., "MPNet", 2020): BERT's encoder without segments, with biases of attention by distance.

The biases, one for each head and distance of two tokens, are one table for all layers. Distances are in buckets: 8 of
one distance each on both sides, and 8 whose width grows with the logarithm, up to a distance of 128. On a GPU sequences
are padded to the longest one, because flash attention has no biases. Two kernels for flat batches have not been tried:
the memory-efficient kernel with bounds and biases, and FlexAttention, which must be compiled.

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
from lambert.model.bert import BERT, BertCosts, BertEncoder
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import architectures
from lambert.model.embedding import embed

BUCKETS, FARTHEST = 32, 128


def buckets(longest: int, device: torch.device) -> Tensor:
    """Returns the bucket of each distance of two tokens, key - query, from 1 - longest to longest - 1, int64 [L]."""
    distance_L = torch.arange(1 - longest, longest, device=device)
    side, exact = BUCKETS // 2, BUCKETS // 4
    far_L = distance_L.abs()
    growth_L = torch.log(far_L.float() / exact) / math.log(FARTHEST / exact) * (side - exact)
    near_L = torch.where(far_L < exact, far_L, (exact + growth_L.clamp_(min=0).long()).clamp_(max=side - 1))
    return near_L + side * (distance_L > 0)


class MpnetEncoder(BertEncoder):
    """The encoder of Song et al., 2020, in the form of transformers."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.relative = nn.Embedding(BUCKETS, config.heads)

    def states(self, batch: Batch) -> Iterator[Tensor]:
        states_TD = self.embed(batch)
        rows_LH = embed(buckets(batch.longest, batch.ids_T.device), self.relative, batch.compute)
        biases_HL = rows_LH.t().to(torch.promote_types(rows_LH.dtype, torch.float32)).contiguous()
        blocks: list[Any] = [*self.blocks]
        for block in blocks:
            yield states_TD
            states_TD = block(states_TD, batch, None, biases_HL)
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


def determine(config: EncoderConfig) -> EncoderConfig:
    """Returns the settings of a fresh encoder with the positions of transformers. Raises UsageError for another padding
    token than transformers assumes."""
    if config.pad != PAD:
        raise UsageError(
            f"A fresh MPNet needs a tokenizer whose padding token has the id {PAD}, after which transformers counts "
            f"positions; here it is {config.pad}. Use MPNet's own tokenizer, or another model.block."
        )
    return replace(config, position_offset=PAD + 1)


class MpnetCosts(BertCosts):
    """The costs of MPNet's encoder."""

    def weight_count(self, config: EncoderConfig) -> int:
        return super().weight_count(config) + BUCKETS * config.heads

    def saved_per_token(
        self, config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int, *, native: bool
    ) -> int:
        if native:
            return super().saved_per_token(config, dtype, device, longest, native=True)
        # Scores, which have biases, and probabilities in float32; the latter in the type of the products too.
        attention = config.heads * longest * (2 * torch.float32.itemsize + dtype.itemsize)
        return self.saved_with(config, dtype, attention)


MPNET = replace(
    BERT,
    title="MPNet",
    encoder=MpnetEncoder,
    heads=roberta.HEADS,
    segments=False,
    determine=determine,
    names=NAMES,
    keys=KEYS,
    architectures=architectures("MPNet"),
    costs=MpnetCosts(),
)
