"""ModernBERT's model folder: names of tensors and keys of config.json, as Hugging Face writes them.

transformers 4 and 5 name the rotary bases and the kinds of layers differently. Both are read, the newer ones first, and
both are written, since a reader that does not find its own takes defaults without a word.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, shown
from lambert.model.bert import folder as bert
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.family import check_fixed, numbers

LAYER = "model.layers."
NAMES = (
    (r"encoder\.words\.", "model.embeddings.tok_embeddings."),
    (r"encoder\.norm\.", "model.embeddings.norm."),
    (r"encoder\.final_norm\.", "model.final_norm."),
    (r"encoder\.blocks\.(\d+)\.attention_norm\.", r"model.layers.\1.attn_norm."),
    (r"encoder\.blocks\.(\d+)\.attention_in\.", r"model.layers.\1.attn.Wqkv."),
    (r"encoder\.blocks\.(\d+)\.attention_out\.", r"model.layers.\1.attn.Wo."),
    (r"encoder\.blocks\.(\d+)\.norm\.", r"model.layers.\1.mlp_norm."),
    (r"encoder\.blocks\.(\d+)\.up\.", r"model.layers.\1.mlp.Wi."),
    (r"encoder\.blocks\.(\d+)\.down\.", r"model.layers.\1.mlp.Wo."),
    (r"encoder\.blocks\.", LAYER),
    (r"pooler\.", "head."),
    (r"heads\.(mlm|tag|span)\.transform\.", "head."),
    (r"heads\.mlm\.bias$", "decoder.bias"),
    (r"heads\.(label|multilabel|value|choice|tag|span)\.classifier\.", "classifier."),
)
TIED = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "ModernBertForQuestionAnswering": ("span",),
    "ModernBertForTokenClassification": ("tag",),
    "ModernBertForSequenceClassification": ("label",),
    "ModernBertForMultipleChoice": ("choice",),
    "ModernBertForMaskedLM": ("mlm",),
    "ModernBertModel": (),
}
_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "dropout": "mlp_dropout",
    "attention_dropout": "attention_dropout",
    "norm_eps": "norm_eps",
    "init_range": "initializer_range",
}
"""Field of EncoderConfig -> key of config.json."""
_DEFAULTS = {
    "layers": 22, "hidden": 768, "heads": 12, "intermediate": 1152, "vocabulary": 50368, "positions": 8192,
    "dropout": 0.0, "attention_dropout": 0.0, "norm_eps": 1e-5, "init_range": 0.02,
}  # fmt: skip
"""Values of fields whose key a file omits, as in transformers.ModernBertConfig."""
_BIASES = {
    "attention_bias": ("attention_bias", False), "mlp_bias": ("mlp_bias", False), "norm_bias": ("norm_bias", False),
    "head_bias": ("classifier_bias", False), "decoder_bias": ("decoder_bias", True),
}  # fmt: skip
"""Field of ModernConfig -> key of config.json, and its default."""
_FULL, _LOCAL = "full_attention", "sliding_attention"


def current_name(name: str) -> str:
    """Returns the name that files of today have for a tensor: the prefix that files without heads omit is added."""
    return re.sub(r"^(?=(embeddings|layers|final_norm)\.)", "model.", name)


def to_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json that describe the encoder."""
    modern = config.modern
    return {theirs: getattr(config, ours) for ours, theirs in _KEYS.items()} | {
        **{theirs: getattr(modern, ours) for ours, (theirs, _) in _BIASES.items()},
        "embedding_dropout": config.dropout,
        "classifier_dropout": config.dropout,
        "classifier_pooling": modern.pooling,
        "hidden_activation": bert.WRITTEN_ACTIVATIONS[config.activation],
        "classifier_activation": "gelu",
        "local_attention": 2 * modern.window,
        "global_attn_every_n_layers": modern.global_every,
        "global_rope_theta": modern.theta,
        "local_rope_theta": modern.local_theta,
        "layer_types": [_LOCAL if number % modern.global_every else _FULL for number in range(config.layers)],
        "rope_parameters": {
            _FULL: {"rope_type": "default", "rope_theta": modern.theta},
            _LOCAL: {"rope_type": "default", "rope_theta": modern.local_theta},
        },
        "initializer_cutoff_factor": 2.0,
        "tie_word_embeddings": True,
        "pad_token_id": config.pad,
        # transformers would take those of ModernBERT's own vocabulary.
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    }


def from_json(settings: Mapping[str, Any], path: Path) -> EncoderConfig:
    """Returns the encoder that `settings`, the config.json at `path`, describes. Raises as BERT's."""
    check_fixed(settings, {"tie_word_embeddings": True, "classifier_activation": "gelu", "rope_scaling": None}, path)
    found = numbers(settings, _KEYS, _DEFAULTS, path)
    biases = {ours: settings.get(theirs, default) for ours, (theirs, default) in _BIASES.items()}
    for ours, value in biases.items():
        if not isinstance(value, bool):
            raise DataError(f"{path} has {_BIASES[ours][0]} = {shown(value)}; it must be true or false.")
    pooling = settings.get("classifier_pooling", "cls")
    if pooling not in ("mean", "cls"):
        raise DataError(f"{path} has classifier_pooling = {shown(pooling)}; supported: mean, cls.")
    modern = ModernConfig(
        theta=_theta(settings, _FULL, "global_rope_theta", 160_000.0, path),
        local_theta=_theta(settings, _LOCAL, "local_rope_theta", 10_000.0, path),
        window=_whole(settings, "local_attention", 128, path) // 2,
        global_every=_global_every(settings, found["layers"], path),
        pooling=pooling,
        **biases,
    )
    return EncoderConfig(
        activation=bert.activation(settings, "hidden_activation", path), pad=bert.pad(settings, 50283, path),
        segment_types=0, block="modernbert", modern=modern, **found,
    )  # fmt: skip


def _theta(settings: Mapping[str, Any], kind: str, older: str, default: float, path: Path) -> float:
    """Returns the base of the rotary angles of a kind of layers."""
    newer = settings.get("rope_parameters")
    value: object = settings.get(older)
    if newer and not (isinstance(newer, dict) and (_FULL in newer or _LOCAL in newer)):
        raise DataError(f"{path} has rope_parameters = {shown(newer)}; they must be those of {_FULL} and {_LOCAL}.")
    if isinstance(newer, dict) and isinstance(newer.get(kind), dict):
        if newer[kind].get("rope_type", "default") != "default":
            raise DataError(f"{path} has rope_type = {shown(newer[kind]['rope_type'])}; only 'default' is supported.")
        chosen = newer[kind].get("rope_theta", value)
        if value not in (None, chosen):
            raise DataError(
                f"{path} has {older} = {shown(value)} and rope_theta = {shown(chosen)} of {kind}, which contradict "
                "each other. Remove the wrong one."
            )
        value = chosen
    if value is None:
        value = settings.get("global_rope_theta", default) if kind == _LOCAL and older in settings else default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 < value < 1e18:
        raise DataError(f"{path} has {older} = {shown(value)}; it must be a number above 1.")
    return float(value)


def _whole(settings: Mapping[str, Any], key: str, default: int, path: Path) -> int:
    value = settings.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DataError(f"{path} has {key} = {shown(value)}; it must be a whole number from 1.")
    return value


def _global_every(settings: Mapping[str, Any], layers: int, path: Path) -> int:
    """Returns every how many layers one is global, from the first one. Raises DataError for another order."""
    kinds = settings.get("layer_types")
    declared = _whole(settings, "global_attn_every_n_layers", 3, path)
    if kinds is None or kinds == [_LOCAL if number % declared else _FULL for number in range(layers)]:
        return declared
    full = [number for number, kind in enumerate(kinds) if kind == _FULL] if isinstance(kinds, list) else []
    every = full[1] if len(full) > 1 else layers
    if len(full) == 0 or len(kinds) != layers or full != [*range(0, layers, every)] or {*kinds} - {_FULL, _LOCAL}:
        raise DataError(
            f"{path} has layer_types = {shown(kinds)}; supported: {layers} times {_FULL} or {_LOCAL}, where every so "
            "many layers, from the first one, are global."
        )
    return every
