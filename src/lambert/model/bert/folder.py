"""BERT's model folder: names of tensors and keys of config.json, as Hugging Face writes them.

Families whose encoders are BERT's take the functions from here, with their own prefix.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, shown
from lambert.model.config import EncoderConfig
from lambert.model.family import check_fixed, numbers


def encoder_names(prefix: str) -> tuple[tuple[str, str], ...]:
    """Returns the names of the tensors of an encoder whose names begin with `prefix`, and a dot."""
    layer = rf"{prefix}.encoder.layer.\1."
    return (
        (r"encoder\.words\.", f"{prefix}.embeddings.word_embeddings."),
        (r"encoder\.positions\.", f"{prefix}.embeddings.position_embeddings."),
        (r"encoder\.types\.", f"{prefix}.embeddings.token_type_embeddings."),
        (r"encoder\.norm\.", f"{prefix}.embeddings.LayerNorm."),
        (r"encoder\.blocks\.(\d+)\.(query|key|value)\.", rf"{layer}attention.self.\2."),
        (r"encoder\.blocks\.(\d+)\.attention_out\.", f"{layer}attention.output.dense."),
        (r"encoder\.blocks\.(\d+)\.attention_norm\.", f"{layer}attention.output.LayerNorm."),
        (r"encoder\.blocks\.(\d+)\.up\.", f"{layer}intermediate.dense."),
        (r"encoder\.blocks\.(\d+)\.down\.", f"{layer}output.dense."),
        (r"encoder\.blocks\.(\d+)\.norm\.", f"{layer}output.LayerNorm."),
        (r"encoder\.blocks\.", f"{prefix}.encoder.blocks."),  # parameters that only a custom block has
    )


NAMES = (
    *encoder_names("bert"),
    (r"pooler\.", "bert.pooler.dense."),
    (r"heads\.mlm\.dense\.", "cls.predictions.transform.dense."),
    (r"heads\.mlm\.norm\.", "cls.predictions.transform.LayerNorm."),
    (r"heads\.mlm\.bias$", "cls.predictions.bias"),
    (r"heads\.nsp\.classifier\.", "cls.seq_relationship."),
    (r"heads\.(label|multilabel|value|choice|tag)\.classifier\.", "classifier."),
    (r"heads\.span\.classifier\.", "qa_outputs."),
)
LAYER = "bert.encoder.layer."
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "BertForQuestionAnswering": ("span",),
    "BertForTokenClassification": ("tag",),
    "BertForSequenceClassification": ("label",),
    "BertForMultipleChoice": ("choice",),
    "BertForPreTraining": ("mlm", "nsp"),
    "BertForMaskedLM": ("mlm",),
    "BertForNextSentencePrediction": ("nsp",),
    "BertModel": (),
}
_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "segment_types": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
    "init_range": "initializer_range",
}
"""Field of EncoderConfig -> key of config.json."""
_DEFAULTS = {"segment_types": 2, "dropout": 0.1, "attention_dropout": 0.1, "norm_eps": 1e-12, "init_range": 0.02}
"""Values of fields whose key a file omits, as in transformers.BertConfig. Google's code has 16 segment types by
default, but none of its checkpoints has 16."""
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
WRITTEN_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}
_FIXED = {
    "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False,
    "tie_word_embeddings": True,
}  # fmt: skip


def current_name(name: str, prefix: str = "bert") -> str:
    """Returns the name that files of today have for a tensor: gamma and beta are renamed, and the prefix that files
    without heads omit is added. Empty for the numbers of positions and segment types, which are no weights."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
    name = re.sub(r"^(?=(embeddings|embeddings_project|encoder|pooler)\.)", f"{prefix}.", name)
    return "" if re.match(rf"{prefix}\.embeddings\.(position_ids|token_type_ids)$", name) else name


def to_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json that describe the encoder."""
    return {theirs: getattr(config, ours) for ours, theirs in _KEYS.items()} | {
        "hidden_act": WRITTEN_ACTIVATIONS[config.activation],
        "pad_token_id": config.pad,
        "tie_word_embeddings": True,
        "classifier_dropout": None,
        "position_embedding_type": "absolute",
        "use_cache": True,
    }


def from_json(settings: Mapping[str, Any], path: Path) -> EncoderConfig:
    """Returns the encoder that `settings`, the config.json at `path`, describes.

    Raises DataError that names the key for an encoder that Lambert does not have, UsageError for sizes that do not fit
    together.
    """
    check_fixed(settings, _FIXED, path)
    return EncoderConfig(
        activation=activation(settings, "hidden_act", path), pad=pad(settings, 0, path),
        **numbers(settings, _KEYS, _DEFAULTS, path),
    )  # fmt: skip


def activation(settings: Mapping[str, Any], key: str, path: Path) -> str:
    """Returns the activation that config.json names. Raises DataError for one that Lambert does not have."""
    found = settings.get(key, "gelu")
    if not isinstance(found, str) or found not in _ACTIVATIONS:
        raise DataError(f"{path} has {key} = {shown(found)}; supported: {', '.join(_ACTIVATIONS)}.")
    return _ACTIVATIONS[found]


def pad(settings: Mapping[str, Any], default: int, path: Path) -> int:
    """Returns the id of the padding token that config.json names. Raises DataError if it is none."""
    found = settings.get("pad_token_id", default)
    found = default if found is None else found
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise DataError(f"{path} has pad_token_id = {shown(found)}; it must be a whole number from 0.")
    return found
