"""MPNet's model folder: names of tensors and keys of config.json, as Hugging Face writes them."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, UsageError
from lambert.model.bert import folder as bert
from lambert.model.config import EncoderConfig
from lambert.model.family import check_fixed
from lambert.model.mpnet.relative import BUCKETS

LAYER = "mpnet.encoder.layer."
_OWN = rf"{LAYER}\1."
PAD = 1
"""Id of the padding token, for which transformers has a constant: positions of other tokens follow it."""
NAMES = (
    (r"encoder\.words\.", "mpnet.embeddings.word_embeddings."),
    (r"encoder\.positions\.", "mpnet.embeddings.position_embeddings."),
    (r"encoder\.norm\.", "mpnet.embeddings.LayerNorm."),
    (r"encoder\.relative\.", "mpnet.encoder.relative_attention_bias."),
    (r"encoder\.blocks\.(\d+)\.query\.", f"{_OWN}attention.attn.q."),
    (r"encoder\.blocks\.(\d+)\.key\.", f"{_OWN}attention.attn.k."),
    (r"encoder\.blocks\.(\d+)\.value\.", f"{_OWN}attention.attn.v."),
    (r"encoder\.blocks\.(\d+)\.attention_out\.", f"{_OWN}attention.attn.o."),
    (r"encoder\.blocks\.(\d+)\.attention_norm\.", f"{_OWN}attention.LayerNorm."),
    (r"encoder\.blocks\.(\d+)\.up\.", f"{_OWN}intermediate.dense."),
    (r"encoder\.blocks\.(\d+)\.down\.", f"{_OWN}output.dense."),
    (r"encoder\.blocks\.(\d+)\.norm\.", f"{_OWN}output.LayerNorm."),
    (r"encoder\.blocks\.", LAYER),
    (r"pooler\.", "mpnet.pooler.dense."),
    (r"heads\.mlm\.dense\.", "lm_head.dense."),
    (r"heads\.mlm\.norm\.", "lm_head.layer_norm."),
    (r"heads\.mlm\.bias$", "lm_head.bias"),
    (r"heads\.(label|multilabel|value)\.dense\.", "classifier.dense."),
    (r"heads\.(label|multilabel|value)\.classifier\.", "classifier.out_proj."),
    (r"heads\.(choice|tag)\.classifier\.", "classifier."),
    (r"heads\.span\.classifier\.", "qa_outputs."),
)
TIED = {
    "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "MPNetForQuestionAnswering": ("span",),
    "MPNetForTokenClassification": ("tag",),
    "MPNetForSequenceClassification": ("label",),
    "MPNetForMultipleChoice": ("choice",),
    "MPNetForMaskedLM": ("mlm",),
    "MPNetModel": (),
}


def completed(config: EncoderConfig) -> EncoderConfig:
    """Returns the settings of a fresh encoder without segment types and with the positions of transformers. Raises
    UsageError for another padding token than transformers assumes."""
    if config.pad != PAD:
        raise UsageError(
            f"A fresh MPNet needs a tokenizer whose padding token has the id {PAD}, after which transformers counts "
            f"positions; here it is {config.pad}. Use MPNet's own tokenizer, or another model.block."
        )
    return dataclasses.replace(config, segment_types=0, position_offset=PAD + 1)


def to_json(config: EncoderConfig) -> dict[str, Any]:
    """Returns the keys of config.json that describe the encoder."""
    written = bert.to_json(config) | {
        "max_position_embeddings": config.positions + config.position_offset,
        "relative_attention_num_buckets": BUCKETS,
    }
    without = ("type_vocab_size", "position_embedding_type", "use_cache", "classifier_dropout")
    return {name: value for name, value in written.items() if name not in without}


def from_json(settings: Mapping[str, Any], path: Path) -> EncoderConfig:
    """Returns the encoder that `settings`, the config.json at `path`, describes. Raises as BERT's."""
    settings = {"pad_token_id": PAD, **settings}
    check_fixed(settings, {"relative_attention_num_buckets": BUCKETS, "pad_token_id": PAD}, path)
    config = bert.from_json(settings, path)
    if config.positions <= PAD + 1:
        raise DataError(f"{path} has max_position_embeddings = {config.positions}; it must be above {PAD + 1}.")
    return dataclasses.replace(config, segment_types=0, position_offset=PAD + 1, positions=config.positions - PAD - 1)
