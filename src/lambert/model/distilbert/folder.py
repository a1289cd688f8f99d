"""DistilBERT's model folder: names of tensors and keys of config.json, as Hugging Face writes them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.model.bert import folder as bert
from lambert.model.config import EncoderConfig
from lambert.model.family import check_fixed, numbers

LAYER = "distilbert.transformer.layer."
_OWN = rf"{LAYER}\1."
NAMES = (
    (r"encoder\.words\.", "distilbert.embeddings.word_embeddings."),
    (r"encoder\.positions\.", "distilbert.embeddings.position_embeddings."),
    (r"encoder\.norm\.", "distilbert.embeddings.LayerNorm."),
    (r"encoder\.blocks\.(\d+)\.query\.", f"{_OWN}attention.q_lin."),
    (r"encoder\.blocks\.(\d+)\.key\.", f"{_OWN}attention.k_lin."),
    (r"encoder\.blocks\.(\d+)\.value\.", f"{_OWN}attention.v_lin."),
    (r"encoder\.blocks\.(\d+)\.attention_out\.", f"{_OWN}attention.out_lin."),
    (r"encoder\.blocks\.(\d+)\.attention_norm\.", f"{_OWN}sa_layer_norm."),
    (r"encoder\.blocks\.(\d+)\.up\.", f"{_OWN}ffn.lin1."),
    (r"encoder\.blocks\.(\d+)\.down\.", f"{_OWN}ffn.lin2."),
    (r"encoder\.blocks\.(\d+)\.norm\.", f"{_OWN}output_layer_norm."),
    (r"pooler\.", "pre_classifier."),
    (r"heads\.mlm\.dense\.", "vocab_transform."),
    (r"heads\.mlm\.norm\.", "vocab_layer_norm."),
    (r"heads\.mlm\.bias$", "vocab_projector.bias"),
    (r"heads\.(label|multilabel|value|choice|tag)\.classifier\.", "classifier."),
    (r"heads\.span\.classifier\.", "qa_outputs."),
)
TIED = {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "DistilBertForQuestionAnswering": ("span",),
    "DistilBertForTokenClassification": ("tag",),
    "DistilBertForSequenceClassification": ("label",),
    "DistilBertForMultipleChoice": ("choice",),
    "DistilBertForMaskedLM": ("mlm",),
    "DistilBertModel": (),
}
_KEYS = {
    "layers": "n_layers",
    "hidden": "dim",
    "heads": "n_heads",
    "intermediate": "hidden_dim",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "init_range": "initializer_range",
}
"""Field of EncoderConfig -> key of config.json."""
_DEFAULTS = {
    "layers": 6, "hidden": 768, "heads": 12, "intermediate": 3072, "positions": 512, "dropout": 0.1,
    "attention_dropout": 0.1, "init_range": 0.02,
}  # fmt: skip
"""Values of fields whose key a file omits, as in transformers.DistilBertConfig."""


def current_name(name: str) -> str:
    """Returns the name that files of today have for a tensor: the prefix that files without heads omit is added."""
    name = re.sub(r"^(?=(embeddings|transformer)\.)", "distilbert.", name)
    return "" if name == "distilbert.embeddings.position_ids" else name


def to_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json that describe the encoder."""
    return {theirs: getattr(config, ours) for ours, theirs in _KEYS.items()} | {
        "activation": bert.WRITTEN_ACTIVATIONS[config.activation],
        "pad_token_id": config.pad,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "tie_word_embeddings": True,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
    }


def from_json(settings: Mapping[str, Any], path: Path) -> EncoderConfig:
    """Returns the encoder that `settings`, the config.json at `path`, describes. Raises as BERT's."""
    check_fixed(settings, {"tie_word_embeddings": True}, path)
    return EncoderConfig(
        activation=bert.activation(settings, "activation", path), pad=bert.pad(settings, 0, path), segment_types=0,
        norm_eps=1e-12, **numbers(settings, _KEYS, _DEFAULTS, path),
    )  # fmt: skip
