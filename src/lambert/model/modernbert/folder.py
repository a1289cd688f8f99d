"""ModernBERT's model folder: names of tensors and keys of config.json, as Hugging Face writes them.

transformers 4 and 5 name the rotary bases and the kinds of layers differently. Both are read, the newer ones first, and
both are written, since a reader that does not find its own takes defaults without a word.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, quote
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import COMMON, ConfigKeys, rotary_base
from lambert.model.tensor_names import TensorNames

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
        "modern.window": found["modern.window"] // 2,
        "modern.global_every": _global_every(found, settings.get("layer_types"), path),
    }


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
        f"{path} has layer_types = {quote(kinds)}; supported: {layers} times {_FULL} or {_LOCAL}, where every so many "
        "layers, from the first one, are global."
    )


def _kinds(layers: int, every: int) -> list[str]:
    return [_LOCAL if number % every else _FULL for number in range(layers)]


def _written(config: EncoderConfig) -> dict[str, Any]:
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
    write=_written,
)  # fmt: skip
