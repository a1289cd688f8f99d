"""RoBERTa's model folder: names of tensors and keys of config.json, as Hugging Face writes them."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError
from lambert.model.bert import folder as bert
from lambert.model.config import EncoderConfig

NAMES = (
    *bert.encoder_names("roberta"),
    (r"pooler\.", "roberta.pooler.dense."),
    (r"heads\.mlm\.dense\.", "lm_head.dense."),
    (r"heads\.mlm\.norm\.", "lm_head.layer_norm."),
    (r"heads\.mlm\.bias$", "lm_head.bias"),
    (r"heads\.(label|multilabel|value)\.dense\.", "classifier.dense."),
    (r"heads\.(label|multilabel|value)\.classifier\.", "classifier.out_proj."),
    (r"heads\.(choice|tag)\.classifier\.", "classifier."),
    (r"heads\.span\.classifier\.", "qa_outputs."),
)
LAYER = "roberta.encoder.layer."
TIED = {
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "ForQuestionAnswering": ("span",),
    "ForTokenClassification": ("tag",),
    "ForSequenceClassification": ("label",),
    "ForMultipleChoice": ("choice",),
    "ForMaskedLM": ("mlm",),
    "Model": (),
}
"""Ends of the names of architectures, and their heads."""


def completed(config: EncoderConfig) -> EncoderConfig:
    """Returns the settings of a fresh encoder with one segment type and with the positions of transformers."""
    return dataclasses.replace(config, segment_types=1, position_offset=config.pad + 1)


def to_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json that describe the encoder."""
    return bert.to_json(config) | {"max_position_embeddings": config.positions + config.position_offset}


def from_json(settings: Mapping[str, Any], path: Path) -> EncoderConfig:
    """Returns the encoder that `settings`, the config.json at `path`, describes. transformers gives the first token the
    position after the id of the padding token, so that many positions fewer can be used. Raises as BERT's."""
    settings = {"pad_token_id": 1, **settings}
    config = bert.from_json(settings, path)
    offset = config.pad + 1
    if config.positions <= offset:
        raise DataError(
            f"{path} has max_position_embeddings = {config.positions}; with pad_token_id = {config.pad} it must be "
            f"above {offset}."
        )
    return dataclasses.replace(config, positions=config.positions - offset, position_offset=offset)
