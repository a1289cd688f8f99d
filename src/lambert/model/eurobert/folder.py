"""EuroBERT's model folder: names of tensors and keys of config.json, as Hugging Face writes them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lambert.core.errors import DataError, shown
from lambert.model.bert import folder as bert
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.family import check_fixed, numbers
from lambert.model.gte import folder as gte

LAYER = "model.layers."
_OWN = rf"{LAYER}\1."
NAMES = (
    (r"encoder\.words\.", "model.embed_tokens."),
    (r"encoder\.final_norm\.", "model.norm."),
    (r"encoder\.blocks\.(\d+)\.attention_norm\.", f"{_OWN}input_layernorm."),
    (r"encoder\.blocks\.(\d+)\.query\.", f"{_OWN}self_attn.q_proj."),
    (r"encoder\.blocks\.(\d+)\.key\.", f"{_OWN}self_attn.k_proj."),
    (r"encoder\.blocks\.(\d+)\.value\.", f"{_OWN}self_attn.v_proj."),
    (r"encoder\.blocks\.(\d+)\.attention_out\.", f"{_OWN}self_attn.o_proj."),
    (r"encoder\.blocks\.(\d+)\.norm\.", f"{_OWN}post_attention_layernorm."),
    (r"encoder\.blocks\.(\d+)\.(gate|up|down)\.", rf"{_OWN}mlp.\2_proj."),
    (r"encoder\.blocks\.", LAYER),
    (r"pooler\.", "dense."),
    (r"heads\.mlm\.decoder$", "lm_head.weight"),
    (r"heads\.mlm\.bias$", "lm_head.bias"),
    (r"heads\.(label|multilabel|value|choice|tag)\.classifier\.", "classifier."),
    (r"heads\.span\.classifier\.", "qa_outputs."),
)
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "EuroBertForQuestionAnswering": ("span",),  # not in transformers
    "EuroBertForTokenClassification": ("tag",),
    "EuroBertForSequenceClassification": ("label",),
    "EuroBertForMultipleChoice": ("choice",),  # not in transformers
    "EuroBertForMaskedLM": ("mlm",),
    "EuroBertModel": (),
}
_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout",
    "norm_eps": "rms_norm_eps",
    "init_range": "initializer_range",
}
"""Field of EncoderConfig -> key of config.json. transformers has no dropout of states: it ignores the key."""
_DEFAULTS = {
    "layers": 12, "hidden": 768, "heads": 12, "intermediate": 3072, "vocabulary": 128_256, "positions": 8192,
    "dropout": 0.0, "attention_dropout": 0.0, "norm_eps": 1e-5, "init_range": 0.02,
}  # fmt: skip
"""Values of fields whose key a file omits, as in transformers.EuroBertConfig."""
_POOLING: dict[str, Literal["mean", "cls", "late"]] = {"late": "late", "mean": "mean", "bos": "cls"}
THETA = 10_000.0


def current_name(name: str) -> str:
    """Returns the name that files of today have for a tensor: the prefix that files without heads omit is added. Empty
    for the angles of the rotation, which are no weights."""
    return "" if name.endswith("rotary_emb.inv_freq") else re.sub(r"^(?=(embed_tokens|layers|norm)\.)", "model.", name)


def to_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json that describe the encoder."""
    modern = config.modern
    return {theirs: getattr(config, ours) for ours, theirs in _KEYS.items()} | {
        **gte.rotary_json(config),
        "num_key_value_heads": modern.kv_heads or config.heads,
        "head_dim": config.hidden // config.heads,
        "hidden_act": "silu",
        "attention_bias": modern.attention_bias,
        "mlp_bias": modern.mlp_bias,
        "classifier_pooling": {ours: theirs for theirs, ours in _POOLING.items()}[modern.pooling],
        "tie_word_embeddings": False,
    }


def from_json(settings: Mapping[str, Any], path: Path) -> EncoderConfig:
    """Returns the encoder that `settings`, the config.json at `path`, describes. Raises as BERT's."""
    check_fixed(settings, {"tie_word_embeddings": False, "hidden_act": "silu"}, path)
    found = numbers(settings, _KEYS, _DEFAULTS, path)
    biases = {name: settings.get(name, False) for name in ("attention_bias", "mlp_bias")}
    for name, value in biases.items():
        if not isinstance(value, bool):
            raise DataError(f"{path} has {name} = {shown(value)}; it must be true or false.")
    pooling = settings.get("classifier_pooling", settings.get("clf_pooling", "late"))
    if pooling not in _POOLING:
        raise DataError(f"{path} has classifier_pooling = {shown(pooling)}; supported: {', '.join(_POOLING)}.")
    shared = settings.get("num_key_value_heads")
    shared = found["heads"] if shared is None else shared
    if not isinstance(shared, int) or isinstance(shared, bool) or shared < 1 or found["heads"] % shared:
        raise DataError(f"{path} has num_key_value_heads = {shown(shared)}; it must divide num_attention_heads.")
    modern = ModernConfig(
        theta=gte.theta(settings, THETA, path), pooling=_POOLING[pooling],
        kv_heads=0 if shared == found["heads"] else shared, **biases,
    )  # fmt: skip
    return EncoderConfig(
        pad=bert.pad(settings, 128_001, path), segment_types=0, block="eurobert", modern=modern, **found
    )
