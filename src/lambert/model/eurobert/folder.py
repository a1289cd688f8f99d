"""EuroBERT's model folder: names of tensors and keys of config.json, as Hugging Face writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, shown
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import COMMON, ConfigKeys
from lambert.model.gte.folder import rotary, rotary_json
from lambert.model.tensor_names import TensorNames

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
        raise DataError(f"{path} has num_key_value_heads = {shown(shared)}; it must divide num_attention_heads.")
    return rotary(found, settings, path, THETA) | {"modern.kv_heads": 0 if shared == heads else shared}


def _written(config: EncoderConfig) -> dict[str, Any]:
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
    write=_written,
)  # fmt: skip
