"""The EuroBERT family (Boizard et al., "EuroBERT", 2025): Llama's block with attention in both directions.

Rotary positions, RMS norms before attention and the gated feed-forward layer, heads that may share keys and values,
and an untied decoder: the masked-LM head is a table and nothing else. A text is classified from the mean or the
first of its states through a layer with gelu, or from the mean of the outputs of this layer ("late").

Source: Boizard et al., 2025, section 2.1; RMS norms: Zhang and Sennrich, "Root mean square layer normalization", 2019;
shared keys and values: Ainslie et al., "GQA", 2023; heads: transformers, EuroBertForMaskedLM and
EuroBertForSequenceClassification.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.compute import PLAIN, Compute
from lambert.core.errors import DataError, quote
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.config_keys import COMMON, ConfigKeys, architectures
from lambert.model.costs import Costs
from lambert.model.dropout import dropout
from lambert.model.embedding import embed
from lambert.model.family import ADJUSTABLE, Family
from lambert.model.gte import rotary, rotary_json
from lambert.model.objectives import MaskedLanguageModel, Pooler
from lambert.model.pooling import first_vectors, mean_vectors
from lambert.model.pre_norm import PreNormBlock, PreNormEncoder
from lambert.model.tensor_names import TensorNames


def key_width(config: EncoderConfig) -> int:
    """Returns the width of the keys of all heads together, which is that of the values. Raises UsageError through
    EncoderConfig if the heads cannot share them."""
    return config.hidden // config.heads * (config.modern.kv_heads or config.heads)


class EuroBertBlock(PreNormBlock):
    """Maps states [T, D] to states [T, D]."""

    products = (("query", "key", "value"), ("attention_out",), ("gate", "up"), ("down",))
    last_dropped = True
    sizes = 32, 64

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        modern, width, inner = config.modern, config.hidden, config.intermediate
        self.kv_heads, self.activation = modern.kv_heads or config.heads, "silu"
        self.attention_norm = nn.RMSNorm(width, config.norm_eps)
        self.query = nn.Linear(width, width, bias=modern.attention_bias)
        self.key, self.value = (nn.Linear(width, key_width(config), bias=modern.attention_bias) for _ in range(2))
        self.attention_out = nn.Linear(width, width, bias=modern.attention_bias)
        self.norm = nn.RMSNorm(width, config.norm_eps)
        self.gate, self.up = (nn.Linear(width, inner, bias=modern.mlp_bias) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=modern.mlp_bias)

    @classmethod
    def find_unsupported(cls, config: EncoderConfig) -> str:
        if found := super().find_unsupported(config):
            return found
        width = key_width(config)
        return f"keys of width {width}, which is not a multiple of 64" if width % 64 else ""


class EuroBertEncoder(PreNormEncoder):
    """The encoder of Boizard et al., 2025, section 2.1."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(EuroBertBlock(config) for _ in range(config.layers))
        self.final_norm = nn.RMSNorm(config.hidden, config.norm_eps)

    def embed(self, batch: Batch) -> Tensor:
        return dropout(embed(batch.ids_T, self.words, batch.compute), self.config.dropout, self.training)


def pools_last(config: EncoderConfig) -> bool:
    """Returns whether the layer of the pooler reads the states of all tokens, and its outputs are pooled."""
    return config.modern.pooling == "late"


class EuroPooler(Pooler):
    """Maps states [T, D] to one row per sequence [S, D]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, nn.functional.gelu)
        self.pooling, self.last = config.modern.pooling, pools_last(config)

    def forward(self, states_TD: Tensor, batch: Batch) -> Tensor:  # type: ignore[override]
        pool = first_vectors if self.pooling == "cls" else mean_vectors
        if not self.last:
            states_TD = pool(states_TD, batch).to(states_TD.dtype)
        rows = self.transform(states_TD, batch.compute)
        return pool(rows, batch).to(rows.dtype) if self.last else rows


class OwnDecoder(MaskedLanguageModel):
    """Predicts the original ids of the masked tokens."""

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, labels)
        del self.dense, self.norm
        self.decoder = nn.Parameter(torch.zeros(config.vocabulary, config.hidden))
        if not config.modern.mlp_bias:
            del self.bias
            self.bias = None  # type: ignore[assignment]

    def forward(
        self, states_TD: Tensor, at_N: Tensor | None = None, words_VD: Tensor | None = None, compute: Compute = PLAIN
    ) -> Tensor:
        return super().forward(states_TD, at_N, self.decoder, compute)

    def prepare_rows(self, rows_ND: Tensor, compute: Compute) -> Tensor:
        return rows_ND


NAMES = TensorNames(
    prefix="model.",
    encoder={"words": "embed_tokens", "final_norm": "norm"},
    layers="layers.",
    block={
        "attention_norm": "input_layernorm",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "attention_out": "self_attn.o_proj",
        "norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
    pooler="dense",
    heads={"mlm.decoder": "lm_head.weight", "mlm.bias": "lm_head.bias"},
)
THETA = 10_000.0


def _read(found: Mapping[str, Any], settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the base of the rotary angles and the number of heads of keys and values."""
    heads, shared = found["heads"], found["modern.kv_heads"]
    if shared and heads % shared:
        raise DataError(f"{path} has num_key_value_heads = {quote(shared)}; it must divide num_attention_heads.")
    return rotary(found, settings, path, THETA) | {"modern.kv_heads": 0 if shared == heads else shared}


def _to_json(config: EncoderConfig) -> dict[str, Any]:
    kv_heads = config.modern.kv_heads or config.heads
    return rotary_json(config) | {"num_key_value_heads": kv_heads, "head_dim": config.hidden // config.heads}


KEYS = ConfigKeys(
    fields=COMMON
    | {
        "dropout": "hidden_dropout",  # of Lambert: transformers has no dropout of states, and ignores the key
        "attention_dropout": "attention_dropout",
        "norm_eps": "rms_norm_eps",
        "modern.kv_heads": "num_key_value_heads",
        "modern.attention_bias": "attention_bias",
        "modern.mlp_bias": "mlp_bias",
        "modern.pooling": "classifier_pooling",
    },
    defaults={  # as in transformers.EuroBertConfig
        "layers": 12, "hidden": 768, "heads": 12, "intermediate": 3072, "vocabulary": 128_256, "positions": 8192,
        "dropout": 0.0, "attention_dropout": 0.0, "norm_eps": 1e-5, "init_range": 0.02, "pad": 128_001,
        "modern.kv_heads": 0, "modern.attention_bias": False, "modern.mlp_bias": False, "modern.pooling": "late",
    },
    values={"modern.pooling": {"late": "late", "mean": "mean", "bos": "cls"}},
    constants={"segment_types": 0},
    fixed={"tie_word_embeddings": False, "hidden_act": "silu"},
    written={
        "hidden_act": "silu", "classifier_dropout": None, "tie_word_embeddings": False, "bos_token_id": None,
        "eos_token_id": None,
    },
    older={"clf_pooling": "classifier_pooling"},
    read=_read,
    write=_to_json,
)  # fmt: skip


class EuroBertCosts(Costs):
    """The costs of EuroBERT's encoder."""

    norms = 6
    """Inputs of two norms, normalised and scaled."""

    def matrices(self, config: EncoderConfig) -> tuple[tuple[int, int], ...]:
        _, *others = super().matrices(config)
        return (config.hidden, config.hidden + 2 * key_width(config)), *others

    def weight_count(self, config: EncoderConfig) -> int:
        modern, width = config.modern, config.hidden
        biased = (modern.attention_bias, modern.attention_bias, modern.mlp_bias, modern.mlp_bias)
        own = self.linear_weights(config, biased) + 2 * width
        return (config.vocabulary + 1) * width + config.layers * own

    def saved_values(self, config: EncoderConfig) -> int:
        # Queries, keys and values before and after the rotation, the output of attention; units, gates before and after
        # their activation, and the product; dropout masks.
        return 7 * config.hidden + 4 * config.intermediate + (2 * config.hidden if config.dropout else 0)


EUROBERT = Family(
    title="EuroBERT",
    encoder=EuroBertEncoder,
    heads={"mlm": OwnDecoder},
    pooler=EuroPooler,
    pools_last=pools_last,
    segments=False,
    defaults={
        "dropout": 0.0, "attention_dropout": 0.0, "norm_eps": 1e-5, "modern": ModernConfig(theta=THETA),
    },
    adjustable=ADJUSTABLE | {"positions", "modern.theta"},
    names=NAMES,
    keys=KEYS,
    architectures=architectures("EuroBert"),
    own_heads=frozenset({"span", "choice"}),
    costs=EuroBertCosts(),
    kernels_lack=EuroBertBlock.find_unsupported,
)  # fmt: skip
