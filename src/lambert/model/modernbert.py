"""The ModernBERT family (Warner et al., "Smarter, Better, Faster, Longer", 2024), with Ettin and mmBERT.

Rotary positions instead of a table, norms before attention and the feed-forward layer, which is gated, alternating
local and global attention, and no biases.

transformers 4 and 5 name the rotary bases and the kinds of layers differently in config.json. Both are read, the newer
ones first, and both are written, because a reader that does not find its own keys takes defaults without a warning.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.compute import PLAIN, Compute
from lambert.core.errors import DataError, quote
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import COMMON, ConfigKeys, Settings, architectures, check_agreement, rotary_base
from lambert.model.costs import Costs
from lambert.model.dropout import dropout
from lambert.model.embedding import embed
from lambert.model.family import ADJUSTABLE, Family
from lambert.model.objectives import Head, MaskedLanguageModel, Span, Tag
from lambert.model.pooling import first_vectors, mean_vectors
from lambert.model.pre_norm import PreNormBlock, PreNormEncoder
from lambert.model.tensor_names import TensorNames
from lambert.model.transform import transform


class ModernBertBlock(PreNormBlock):
    """Maps states [T, D] to states [T, D] (Warner et al., 2024, section 2.1). `number` is that of the layer, from 0."""

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


class ModernBertEncoder(PreNormEncoder):
    """The encoder of Warner et al., 2024, section 2.1."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, config.norm_eps, bias=config.modern.norm_bias)
        self.blocks = nn.ModuleList(ModernBertBlock(config, number) for number in range(config.layers))
        self.final_norm = nn.LayerNorm(config.hidden, config.norm_eps, bias=config.modern.norm_bias)

    def embed(self, batch: Batch) -> Tensor:
        embedded_TD: Tensor = self.norm(embed(batch.ids_T, self.words, batch.compute))
        return dropout(embedded_TD, self.config.dropout, self.training)


def initial_deviation(config: EncoderConfig, name: str) -> float:
    """Returns the standard deviation of the initial weights of a matrix: `init_range`, divided by the root of twice the
    number of layers for matrices that write to the residual stream and in the heads, and hidden^-1/2 for logits.

    Source: transformers, ModernBertPreTrainedModel._init_weights.
    """
    if ".classifier." in name:
        return float(config.hidden**-0.5)
    if ".attention_out." in name or ".down." in name or ".dense." in name:
        return config.init_range / math.sqrt(2.0 * config.layers)
    return config.init_range


class _Transform(nn.Module):
    """norm(gelu(dense(x))), before the logits of all heads. The heads of sentences apply it to the pooled state.

    Source: transformers, ModernBertPredictionHead.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden, config.hidden, bias=config.modern.head_bias)
        self.norm = nn.LayerNorm(config.hidden, config.norm_eps, bias=config.modern.norm_bias)

    def forward(self, rows_ND: Tensor, compute: Compute = PLAIN) -> Tensor:
        return transform(rows_ND, self.dense, self.norm, "none", compute)


class ModernPooler(_Transform):
    """Maps states [T, D] to one row per sequence [S, D]: the mean state or that of the first token, transformed."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.pooling = config.modern.pooling

    def forward(self, states_TD: Tensor, batch: Batch) -> Tensor:  # type: ignore[override]
        pool = mean_vectors if self.pooling == "mean" else first_vectors
        return self.transform(pool(states_TD, batch).to(states_TD.dtype), batch.compute)

    def transform(self, rows_SD: Tensor, compute: Compute = PLAIN) -> Tensor:
        """Returns the pooled rows [S, D] from the means of states or the states of the first tokens."""
        return super().forward(rows_SD, compute)


class ModernPrediction(MaskedLanguageModel):
    """Predicts the original ids of the masked tokens."""

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, labels)
        self.transform = _Transform(config)
        del self.dense, self.norm
        if not config.modern.decoder_bias:
            del self.bias
            self.bias = None  # type: ignore[assignment]

    def prepare_rows(self, rows_ND: Tensor, compute: Compute) -> Tensor:
        out_ND: Tensor = self.transform(rows_ND, compute)
        return out_ND


class _OfTokens(Head):
    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, labels)
        self.transform = _Transform(config)

    def forward(self, states_TD: Tensor, at_N: Tensor | None = None) -> Tensor:
        return super().forward(self.transform(self.rows(states_TD, at_N)))


class ModernTag(_OfTokens, Tag):
    """Predicts the class of each token."""


class ModernSpan(_OfTokens, Span):
    """Predicts where the answer starts and ends."""


NAMES = TensorNames(
    prefix="model.",
    encoder={"words": "embeddings.tok_embeddings", "norm": "embeddings.norm", "final_norm": "final_norm"},
    layers="layers.",
    block={
        "attention_norm": "attn_norm",
        "attention_in": "attn.Wqkv",
        "attention_out": "attn.Wo",
        "norm": "mlp_norm",
        "up": "mlp.Wi",
        "down": "mlp.Wo",
    },
    pooler="head",
    heads={
        "mlm.transform": "head",
        "tag.transform": "head",
        "span.transform": "head",
        "span.classifier": "classifier",
        "mlm.bias": "decoder.bias",
    },
    decoder="decoder",
)
_FULL, _LOCAL = "full_attention", "sliding_attention"


def _read(found: Mapping[str, Any], settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the rotary bases of both kinds of layers, the window, and which layers are global."""
    newer = settings.get("rope_parameters") or {}
    if newer and not (isinstance(newer, dict) and (_FULL in newer or _LOCAL in newer)):
        raise DataError(f"{path} has rope_parameters = {quote(newer)}; they must be those of {_FULL} and {_LOCAL}.")
    full, local = (table if isinstance(table := newer.get(kind), dict) else {} for kind in (_FULL, _LOCAL))
    default = 10_000.0
    if "local_rope_theta" in settings:  # null: that of global layers
        default = settings.get("global_rope_theta", default)
    return {
        "modern.theta": rotary_base(settings, "global_rope_theta", full, 160_000.0, path),
        "modern.local_theta": rotary_base(settings, "local_rope_theta", local, default, path),
        "modern.window": _window(found, settings, path),
        "modern.global_every": _global_every(found, settings.get("layer_types"), path),
    }


def _window(found: Mapping[str, Any], settings: Settings, path: Path) -> int:
    """Returns the number of tokens on each side that a token attends to: half of local_attention or, for transformers 5
    too, sliding_window."""
    half, window = settings.get("sliding_window"), int(found["modern.window"]) // 2
    if half is None:
        return window
    if type(half) is not int or half < 1:
        raise DataError(f"{path} has sliding_window = {quote(half)}; it must be a whole number from 1.")
    if half != window:
        check_agreement(settings, "sliding_window", "local_attention", 2 * half, path)
    return half


def _global_every(found: Mapping[str, Any], kinds: object, path: Path) -> int:
    """Returns every how many layers one is global, from the first one. Raises DataError for another order."""
    layers, declared = int(found["layers"]), int(found["modern.global_every"])
    if kinds is None:
        return declared
    if isinstance(kinds, list) and len(kinds) == layers:
        second = next((number for number, kind in enumerate(kinds) if number and kind == _FULL), layers)
        for every in (declared, second):
            if kinds == _kinds(layers, every):
                return every
    raise DataError(
        f"{path} has layer_types = {quote(kinds)}; supported: {layers} times {_FULL} or {_LOCAL}, where the first and "
        f"then every n-th layer is {_FULL}."
    )


def _kinds(layers: int, every: int) -> list[str]:
    return [_LOCAL if number % every else _FULL for number in range(layers)]


def _to_json(config: EncoderConfig) -> dict[str, Any]:
    modern = config.modern
    return {
        "embedding_dropout": config.dropout,
        "classifier_dropout": config.dropout,
        "local_attention": 2 * modern.window,
        "global_rope_theta": modern.theta,
        "local_rope_theta": modern.local_theta,
        "layer_types": _kinds(config.layers, modern.global_every),
        "rope_parameters": {
            _FULL: {"rope_type": "default", "rope_theta": modern.theta},
            _LOCAL: {"rope_type": "default", "rope_theta": modern.local_theta},
        },
    }


KEYS = ConfigKeys(
    fields=COMMON
    | {
        "dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "norm_eps": "norm_eps",
        "activation": "hidden_activation",
        "modern.attention_bias": "attention_bias",
        "modern.mlp_bias": "mlp_bias",
        "modern.norm_bias": "norm_bias",
        "modern.head_bias": "classifier_bias",
        "modern.decoder_bias": "decoder_bias",
        "modern.pooling": "classifier_pooling",
        "modern.window": "local_attention",
        "modern.global_every": "global_attn_every_n_layers",
    },
    defaults={  # as in transformers.ModernBertConfig
        "layers": 22, "hidden": 768, "heads": 12, "intermediate": 1152, "vocabulary": 50368, "positions": 8192,
        "dropout": 0.0, "attention_dropout": 0.0, "norm_eps": 1e-5, "init_range": 0.02, "activation": "gelu",
        "pad": 50283, "modern.attention_bias": False, "modern.mlp_bias": False, "modern.norm_bias": False,
        "modern.head_bias": False, "modern.decoder_bias": True, "modern.pooling": "cls", "modern.window": 128,
        "modern.global_every": 3,
    },
    values={"modern.pooling": {"mean": "mean", "cls": "cls"}},
    constants={"segment_types": 0},
    fixed={"tie_word_embeddings": True, "classifier_activation": "gelu"},
    written={
        "classifier_activation": "gelu", "initializer_cutoff_factor": 2.0, "tie_word_embeddings": True,
        # transformers would take those of ModernBERT's own vocabulary.
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    },
    read=_read,
    write=_to_json,
)  # fmt: skip


class ModernBertCosts(Costs):
    """The costs of ModernBERT's encoder."""

    def weight_count(self, config: EncoderConfig) -> int:
        modern, width = config.modern, config.hidden
        biased = (modern.attention_bias, modern.attention_bias, modern.mlp_bias, modern.mlp_bias)
        block = self.linear_weights(config, biased)
        norms = 2 * config.layers + 1  # one in the first block, two in the others, and those around them
        return config.vocabulary * width + config.layers * block + norms * width * (1 + modern.norm_bias)

    def pairs(self, config: EncoderConfig, lengths: Collection[int]) -> int:
        everywhere = -(-config.layers // config.modern.global_every)
        wide = 2 * config.modern.window + 1
        near = (config.layers - everywhere) * sum(length * min(length, wide) for length in lengths)
        return everywhere * sum(length**2 for length in lengths) + near

    def saved_values(self, config: EncoderConfig) -> int:
        # Queries, keys and values before and after the rotation, the output of attention; both halves of the
        # feed-forward layer, the activated one and the product.
        return 7 * config.hidden + 4 * config.intermediate

    def probabilities(self, config: EncoderConfig, longest: int) -> int:
        everywhere, near = 1 / config.modern.global_every, min(longest, 3 * config.modern.window)
        return round(config.heads * (everywhere * longest + (1 - everywhere) * near))


MODERNBERT = Family(
    title="ModernBERT",
    encoder=ModernBertEncoder,
    heads={"mlm": ModernPrediction, "tag": ModernTag, "span": ModernSpan},
    pooler=ModernPooler,
    segments=False,
    defaults={"dropout": 0.0, "attention_dropout": 0.0, "norm_eps": 1e-5},
    adjustable=ADJUSTABLE | {"positions", "modern.theta", "modern.local_theta"},
    initial_deviation=initial_deviation,
    truncated=True,
    names=NAMES,
    keys=KEYS,
    architectures=architectures("ModernBert"),
    costs=ModernBertCosts(),
    kernels_lack=ModernBertBlock.find_unsupported,
)
