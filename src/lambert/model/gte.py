"""The GTE family (Zhang et al., "mGTE", 2024): BERT's order of norms, with rotary positions and gated units.

NomicBERT's blocks derive from its blocks. The names of tensors are those of the models' first releases, which
transformers 5 reads and writes besides its own.

Source of the block: transformers, GteLayer; gated units: Shazeer, "GLU variants improve transformer", 2020, equation 6.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.errors import DataError, quote
from lambert.model import roberta
from lambert.model.bert import BERT
from lambert.model.block import saved_by_kernels
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import ConfigKeys, architectures, rotary_base
from lambert.model.costs import Costs
from lambert.model.dropout import dropout
from lambert.model.embedding import embed
from lambert.model.encoder import Encoder
from lambert.model.family import ADJUSTABLE, Family
from lambert.model.linear import in_product_dtype
from lambert.model.post_norm import PostNormBlock
from lambert.model.rotary import rotation_of
from lambert.model.tensor_names import TensorNames


class GteBlock(PostNormBlock):
    """Maps states [T, D] to states [T, D].

    `attention_biased` and `down_biased`: which linear layers have biases.
    """

    products: ClassVar[Sequence[Sequence[str]]] = (("attention_in",), ("attention_out",), ("up",), ("down",))
    attention_biased = down_biased = inner_dropped = gated = True
    sizes = 32, 32

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        width = config.hidden
        self.attention_in = nn.Linear(width, 3 * width, bias=self.attention_biased)
        self.attention_out = nn.Linear(width, width, bias=self.attention_biased)
        self.attention_norm = nn.LayerNorm(width, config.norm_eps)
        self.make_units(width, config.intermediate)
        self.down = nn.Linear(config.intermediate, width, bias=self.down_biased)
        self.norm = nn.LayerNorm(width, config.norm_eps)

    def make_units(self, width: int, inner: int) -> None:
        """Creates the layers whose concatenated outputs are the units before the gate, and the gates before their
        activation."""
        self.up = nn.Linear(width, 2 * inner, bias=False)


class GteEncoder(Encoder):
    """The encoder of Zhang et al., 2024, section 3.1, in the form of transformers."""

    block_type: type[GteBlock] = GteBlock
    """Class of the blocks of the family."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.types = nn.Embedding(config.segment_types, config.hidden) if config.segment_types else None
        self.norm = nn.LayerNorm(config.hidden, config.norm_eps)
        self.blocks = nn.ModuleList(self.block_type(config) for _ in range(config.layers))

    def embed(self, batch: Batch) -> Tensor:
        embedded_TD = embed(batch.ids_T, self.words, batch.compute)
        if self.types is not None:
            types_T = batch.types_T if self.config.segment_types > 1 else torch.zeros_like(batch.types_T)
            embedded_TD = embedded_TD + embed(types_T, self.types, batch.compute)
        return dropout(in_product_dtype(self.norm(embedded_TD)), self.config.dropout, self.training)

    def states(self, batch: Batch) -> Iterator[Tensor]:
        width, theta = self.config.hidden // self.config.heads, self.config.modern.theta
        rotation, states_TD = rotation_of(batch, width, theta), self.embed(batch)
        blocks: list[Any] = [*self.blocks]
        for block in blocks:
            yield states_TD
            states_TD = block(states_TD, batch, rotation)
        yield states_TD


NAMES = TensorNames(
    prefix="gte.",
    former="new.",
    encoder={
        "words": "embeddings.word_embeddings",
        "types": "embeddings.token_type_embeddings",
        "norm": "embeddings.LayerNorm",
    },
    layers="encoder.layer.",
    block={
        "attention_in": "attention.qkv_proj",
        "attention_out": "attention.o_proj",
        "attention_norm": "attn_ln",
        "up": "mlp.up_gate_proj",
        "down": "mlp.down_proj",
        "norm": "mlp_ln",
    },
    pooler="gte.pooler.dense",
    heads={"mlm.dense": "lm_head.dense", "mlm.norm": "lm_head.norm", "mlm.bias": "lm_head.decoder.bias"},
    decoder="lm_head.decoder",
)


def rotary(found: Mapping[str, Any], settings: Mapping[str, Any], path: Path, default: float) -> dict[str, float]:
    """Returns the base of the rotary angles that config.json gives all layers. Raises DataError for scaled angles, and
    for heads of another width than hidden / heads."""
    newer = settings.get("rope_parameters") or {}
    if not isinstance(newer, dict):
        raise DataError(f"{path} has rope_parameters = {quote(newer)}; it must be a table.")
    width = settings.get("head_dim")
    if width not in (None, found["hidden"] / found["heads"]):
        raise DataError(f"{path} has head_dim = {quote(width)}; only hidden_size / num_attention_heads is supported.")
    return {"modern.theta": rotary_base(settings, "rope_theta", newer, default, path)}


def rotary_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json for the base of the rotary angles of all layers."""
    theta = config.modern.theta
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}, "rope_theta": theta}


KEYS = ConfigKeys(
    fields=BERT.keys.fields,
    defaults={  # as in transformers.GteConfig
        "layers": 12, "hidden": 768, "heads": 12, "intermediate": 3072, "vocabulary": 250_048, "positions": 8192,
        "segment_types": 1, "dropout": 0.1, "attention_dropout": 0.0, "norm_eps": 1e-12, "init_range": 0.02,
        "activation": "gelu", "pad": 1,
    },
    values={"segment_types": {0: 0, 1: 1}},
    fixed={"tie_word_embeddings": True},
    written={"classifier_dropout": None, "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None},
    read=partial(rotary, default=160_000.0),
    write=rotary_json,
)  # fmt: skip


class GteCosts(Costs):
    """The costs of an encoder with gte's blocks, or those of NomicBERT."""

    def __init__(self, block: type[GteBlock] = GteBlock) -> None:
        self._block = block

    def weight_count(self, config: EncoderConfig) -> int:
        width, attention, down = config.hidden, self._block.attention_biased, self._block.down_biased
        own = self.linear_weights(config, (attention, attention, False, down)) + 4 * width
        return (config.vocabulary + config.segment_types + 2) * width + config.layers * own

    def saved_values(self, config: EncoderConfig) -> int:
        # Queries, keys and values before and after the rotation, the output of attention; units, gates before and after
        # their activation, and the product.
        masks = 2 * config.hidden + config.intermediate if config.dropout else 0
        return 7 * config.hidden + 4 * config.intermediate + masks

    def saved_per_token(
        self, config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int, *, native: bool
    ) -> int:
        if not native or self._block.find_unsupported(config):
            return super().saved_per_token(config, dtype, device, longest, native=native)
        return saved_by_kernels(config, dtype, 3)


GTE = Family(
    title="GTE",
    encoder=GteEncoder,
    heads={"mlm": roberta.HEADS["mlm"]},
    segments=False,
    defaults={"attention_dropout": 0.0},
    determine=partial(replace, segment_types=1),
    adjustable=ADJUSTABLE | {"positions", "modern.theta"},
    names=NAMES,
    keys=KEYS,
    architectures=architectures("Gte"),
    own_heads=frozenset({"span", "choice"}),
    costs=GteCosts(),
    kernels_lack=GteBlock.find_unsupported,
)
