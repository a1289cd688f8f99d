"""ELECTRA's model folder: names of tensors and keys of config.json, as Hugging Face writes them."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, shown
from lambert.model.bert import folder as bert
from lambert.model.config import EncoderConfig

NAMES = (
    *bert.encoder_names("electra"),
    (r"encoder\.widen\.", "electra.embeddings_project."),
    (r"heads\.mlm\.dense\.", "generator_predictions.dense."),
    (r"heads\.mlm\.norm\.", "generator_predictions.LayerNorm."),
    (r"heads\.mlm\.bias$", "generator_lm_head.bias"),
    (r"heads\.(label|multilabel|value)\.dense\.", "classifier.dense."),
    (r"heads\.(label|multilabel|value)\.classifier\.", "classifier.out_proj."),
    (r"pooler\.", "sequence_summary.summary."),
    (r"heads\.(choice|tag)\.classifier\.", "classifier."),
    (r"heads\.span\.classifier\.", "qa_outputs."),
)
LAYER = "electra.encoder.layer."
TIED = {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "ElectraForQuestionAnswering": ("span",),
    "ElectraForTokenClassification": ("tag",),
    "ElectraForSequenceClassification": ("label",),
    "ElectraForMultipleChoice": ("choice",),
    "ElectraForMaskedLM": ("mlm",),
    "ElectraModel": (),
    "ElectraForPreTraining": (),  # read only: the discriminator, whose head is left aside
}


def to_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json that describe the encoder."""
    return bert.to_json(config) | {
        "embedding_size": config.table_width,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
    }


def from_json(settings: Mapping[str, Any], path: Path) -> EncoderConfig:
    """Returns the encoder that `settings`, the config.json at `path`, describes. Raises as BERT's."""
    config = bert.from_json(settings, path)
    width = settings.get("embedding_size", 128)
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise DataError(f"{path} has embedding_size = {shown(width)}; it must be a whole number from 1.")
    return dataclasses.replace(config, embedding=0 if width == config.hidden else width)
