"""BERT's model folder: names of tensors and keys of config.json, as Hugging Face writes them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, shown
from lambert.model.config import EncoderConfig
from lambert.model.family import check_fixed, numbers

NAMES = (
    (r"encoder\.words\.", "bert.embeddings.word_embeddings."),
    (r"encoder\.positions\.", "bert.embeddings.position_embeddings."),
    (r"encoder\.types\.", "bert.embeddings.token_type_embeddings."),
    (r"encoder\.norm\.", "bert.embeddings.LayerNorm."),
    (r"encoder\.blocks\.(\d+)\.(query|key|value)\.", r"bert.encoder.layer.\1.attention.self.\2."),
    (r"encoder\.blocks\.(\d+)\.attention_out\.", r"bert.encoder.layer.\1.attention.output.dense."),
    (r"encoder\.blocks\.(\d+)\.attention_norm\.", r"bert.encoder.layer.\1.attention.output.LayerNorm."),
    (r"encoder\.blocks\.(\d+)\.up\.", r"bert.encoder.layer.\1.intermediate.dense."),
    (r"encoder\.blocks\.(\d+)\.down\.", r"bert.encoder.layer.\1.output.dense."),
    (r"encoder\.blocks\.(\d+)\.norm\.", r"bert.encoder.layer.\1.output.LayerNorm."),
    (r"encoder\.blocks\.", "bert.encoder.blocks."),  # parameters that only a custom block has
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
_WRITTEN_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}
_FIXED = {
    "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False,
    "tie_word_embeddings": True,
}  # fmt: skip


def current_name(name: str) -> str:
    """Returns the name that files of today have for a tensor: gamma and beta are renamed, and the prefix that files
    without heads omit is added. Empty for the numbers of positions and segment types, which are no weights."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
    name = re.sub(r"^(?=(embeddings|encoder|pooler)\.)", "bert.", name)
    return "" if re.match(r"bert\.embeddings\.(position_ids|token_type_ids)$", name) else name


def to_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json that describe the encoder."""
    return {theirs: getattr(config, ours) for ours, theirs in _KEYS.items()} | {
        "hidden_act": _WRITTEN_ACTIVATIONS[config.activation],
        "pad_token_id": 0,
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
    activation = settings.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise DataError(f"{path} has hidden_act = {shown(activation)}; supported: {', '.join(_ACTIVATIONS)}.")
    return EncoderConfig(activation=_ACTIVATIONS[activation], **numbers(settings, _KEYS, _DEFAULTS, path))
