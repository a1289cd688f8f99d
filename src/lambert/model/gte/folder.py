"""gte's model folder: names of tensors and keys of config.json, as Hugging Face writes them.

The names are those of the models' first releases, which transformers 5 reads and writes too; its own are other ones.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, shown
from lambert.model.bert import folder as bert
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import ConfigKeys, rotary_base
from lambert.model.tensor_names import TensorNames

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
        raise DataError(f"{path} has rope_parameters = {shown(newer)}; it must be a table.")
    width = settings.get("head_dim")
    if width not in (None, found["hidden"] / found["heads"]):
        raise DataError(f"{path} has head_dim = {shown(width)}; only hidden_size / num_attention_heads is supported.")
    return {"modern.theta": rotary_base(settings, "rope_theta", newer, default, path)}


def rotary_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json for the base of the rotary angles of all layers."""
    theta = config.modern.theta
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}, "rope_theta": theta}


KEYS = ConfigKeys(
    fields=bert.KEYS.fields,
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
