"""gte's model folder: names of tensors and keys of config.json, as Hugging Face writes them.

The names are those of the models' first releases, which transformers 5 reads and writes too; its own are other ones.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, shown
from lambert.model.bert import folder as bert
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.family import check_fixed, numbers

LAYER = "gte.encoder.layer."
_OWN = rf"{LAYER}\1."
NAMES = (
    (r"encoder\.words\.", "gte.embeddings.word_embeddings."),
    (r"encoder\.types\.", "gte.embeddings.token_type_embeddings."),
    (r"encoder\.norm\.", "gte.embeddings.LayerNorm."),
    (r"encoder\.blocks\.(\d+)\.attention_in\.", f"{_OWN}attention.qkv_proj."),
    (r"encoder\.blocks\.(\d+)\.attention_out\.", f"{_OWN}attention.o_proj."),
    (r"encoder\.blocks\.(\d+)\.attention_norm\.", f"{_OWN}attn_ln."),
    (r"encoder\.blocks\.(\d+)\.up\.", f"{_OWN}mlp.up_gate_proj."),
    (r"encoder\.blocks\.(\d+)\.down\.", f"{_OWN}mlp.down_proj."),
    (r"encoder\.blocks\.(\d+)\.norm\.", f"{_OWN}mlp_ln."),
    (r"encoder\.blocks\.", LAYER),
    (r"pooler\.", "gte.pooler.dense."),
    (r"heads\.mlm\.dense\.", "lm_head.dense."),
    (r"heads\.mlm\.norm\.", "lm_head.norm."),
    (r"heads\.mlm\.bias$", "lm_head.decoder.bias"),
    (r"heads\.(label|multilabel|value|choice|tag)\.classifier\.", "classifier."),
    (r"heads\.span\.classifier\.", "qa_outputs."),
)
TIED = {"lm_head.decoder.weight": "gte.embeddings.word_embeddings.weight"}
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "GteForQuestionAnswering": ("span",),  # not in transformers
    "GteForTokenClassification": ("tag",),
    "GteForSequenceClassification": ("label",),
    "GteForMultipleChoice": ("choice",),  # not in transformers
    "GteForMaskedLM": ("mlm",),
    "GteModel": (),
}
KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
    "init_range": "initializer_range",
}
"""Field of EncoderConfig -> key of config.json."""
DEFAULTS = {
    "layers": 12, "hidden": 768, "heads": 12, "intermediate": 3072, "dropout": 0.0, "attention_dropout": 0.0,
    "norm_eps": 1e-12, "init_range": 0.02,
}  # fmt: skip
"""Values of fields whose key a file omits, as in transformers."""
THETA = 160_000.0


def current_name(name: str) -> str:
    """Returns the name that files of today have for a tensor: another prefix is replaced, and the one that files
    without heads omit is added."""
    return re.sub(r"^(new\.|(?=(embeddings|encoder|pooler)\.))", "gte.", name)


def to_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json that describe the encoder."""
    return {theirs: getattr(config, ours) for ours, theirs in KEYS.items()} | {
        "hidden_act": bert.WRITTEN_ACTIVATIONS[config.activation],
        "type_vocab_size": config.segment_types,
        **rotary_json(config),
    }


def rotary_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json that all families with rotary positions in every layer write."""
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": config.modern.theta},
        "rope_theta": config.modern.theta,
        "classifier_dropout": None,
        "tie_word_embeddings": True,
        "pad_token_id": config.pad,
        **dict.fromkeys(("bos_token_id", "eos_token_id")),
    }


def from_json(settings: Mapping[str, Any], path: Path) -> EncoderConfig:
    """Returns the encoder that `settings`, the config.json at `path`, describes. Raises as BERT's."""
    check_fixed(settings, {"tie_word_embeddings": True}, path)
    types = settings.get("type_vocab_size", 1)
    if types not in (0, 1) or isinstance(types, bool):
        raise DataError(f"{path} has type_vocab_size = {shown(types)}; supported: 0, 1.")
    defaults = DEFAULTS | {"vocabulary": 250_048, "positions": 8192, "dropout": 0.1}
    return EncoderConfig(
        activation=bert.activation(settings, "hidden_act", path), pad=bert.pad(settings, 1, path), segment_types=types,
        block="gte", modern=ModernConfig(theta=theta(settings, THETA, path)), **numbers(settings, KEYS, defaults, path),
    )  # fmt: skip


def theta(settings: Mapping[str, Any], default: float, path: Path) -> float:
    """Returns the base of the rotary angles that config.json names. Raises DataError for scaled angles, and for heads
    of another width than hidden / heads."""
    rotary = settings.get("rope_parameters") or {}
    if not isinstance(rotary, dict):
        raise DataError(f"{path} has rope_parameters = {shown(rotary)}; it must be a table.")
    check_fixed(rotary, {"rope_type": "default", "partial_rotary_factor": 1.0}, path)
    check_fixed(settings, {"rope_scaling": None}, path)
    older = settings.get("rope_theta", default)
    found = rotary.get("rope_theta", older)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 1 < found < 1e18:
        raise DataError(f"{path} has rope_theta = {shown(found)}; it must be a number above 1.")
    if "rope_theta" in settings and older != found:
        raise DataError(
            f"{path} has rope_theta = {shown(older)} and {shown(found)} in rope_parameters, which contradict each "
            "other. Remove the wrong one."
        )
    width, heads, hidden = settings.get("head_dim"), settings.get("num_attention_heads"), settings.get("hidden_size")
    if width is not None and isinstance(heads, int) and isinstance(hidden, int) and width * heads != hidden:
        raise DataError(f"{path} has head_dim = {shown(width)}; only hidden_size / num_attention_heads is supported.")
    return float(found)
