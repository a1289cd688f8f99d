"""The RoBERTa family (Liu et al., 2019): RoBERTa, XLM-R (Conneau et al., 2020) and CamemBERT (Martin et al., 2020).

The encoder is BERT's without segments, and its table of positions begins with unused rows. A text is classified from
the state of its first token, by two layers of the head.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lambert.core.errors import DataError
from lambert.model.bert import BERT
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import architectures
from lambert.model.family import Family
from lambert.model.objectives import Label, MakeHead, MaskedLanguageModel, MultiLabel, Value

HEADS: dict[str, MakeHead] = {
    "mlm": partial(MaskedLanguageModel, activation="none"),  # the exact gelu, whichever the blocks have
    "label": partial(Label, activation=torch.tanh),
    "multilabel": partial(MultiLabel, activation=torch.tanh),
    "value": partial(Value, activation=torch.tanh),
}
NAMES = replace(
    BERT.names,
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
    BERT.keys,
    defaults={**BERT.keys.defaults, "pad": 1},
    read=after_padding,
    write=lambda config: {"max_position_embeddings": config.positions + config.position_offset},
)


def determine(config: EncoderConfig) -> EncoderConfig:
    """Returns the settings of a fresh encoder with one segment type and with the positions of transformers."""
    return replace(config, segment_types=1, position_offset=config.pad + 1)


def _family(title: str, stem: str) -> Family:
    """Returns a family with the names of its architectures, which begin with `stem`."""
    return replace(
        BERT,
        title=title,
        heads=HEADS,
        segments=False,
        determine=determine,
        names=NAMES,
        keys=KEYS,
        architectures=architectures(stem),
    )


ROBERTA = _family("RoBERTa", "Roberta")
XLM_ROBERTA = _family("XLM-RoBERTa", "XLMRoberta")
CAMEMBERT = _family("CamemBERT", "Camembert")
