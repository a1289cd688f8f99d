"""RoBERTa's model folder: names of tensors and keys of config.json, as Hugging Face writes them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError
from lambert.model.bert import folder as bert
from lambert.model.config import EncoderConfig

NAMES = replace(
    bert.NAMES,
    prefix="roberta.",
    pooler="roberta.pooler.dense",
    heads={
        "mlm.dense": "lm_head.dense",
        "mlm.norm": "lm_head.layer_norm",
        "mlm.bias": "lm_head.bias",
        "label.dense": "classifier.dense",
        "label.classifier": "classifier.out_proj",
    },
    decoder="lm_head.decoder",
)


def after_padding(found: Mapping[str, Any], settings: Mapping[str, Any], path: Path) -> dict[str, int]:
    """Returns the positions of an encoder, from the fields that config.json gives. transformers gives the first token
    the position after the id of the padding token, so that many positions fewer can be used. Raises DataError if none
    is left."""
    offset = found["pad"] + 1
    if found["positions"] <= offset:
        raise DataError(
            f"{path} has max_position_embeddings = {found['positions']}; with pad_token_id = {found['pad']} it must be "
            f"above {offset}."
        )
    return {"positions": found["positions"] - offset, "position_offset": offset}


KEYS = replace(
    bert.KEYS,
    defaults={**bert.KEYS.defaults, "pad": 1},
    read=after_padding,
    write=lambda config: {"max_position_embeddings": config.positions + config.position_offset},
)


def fresh(config: EncoderConfig) -> EncoderConfig:
    """Returns the settings of a fresh encoder with one segment type and with the positions of transformers."""
    return replace(config, segment_types=1, position_offset=config.pad + 1)
