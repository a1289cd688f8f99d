"""The sizes have the parameters that are published, and operations are counted as torch counts them."""

from typing import Any

import pytest
import torch
from flat import make_batch
from torch.utils.flop_counter import FlopCounterMode

from lambert.core.batch import JointTarget, Target
from lambert.model.config import SIZES, EncoderConfig, ModernConfig
from lambert.model.heads import Model
from lambert.planning import operations as flops

MINILM = {"layers": 6, "hidden": 384, "heads": 12, "intermediate": 1536}
# transformers.BertModel (encoder and pooler), BertForPreTraining
PARAMETERS = {
    "tiny": (4_385_920, 4_433_468),
    "mini": (11_170_560, 11_267_900),
    "small": (28_763_648, 29_058_876),
    "medium": (41_373_184, 41_668_412),
    "minilm": (22_713_216, 22_893_116),
    "base": (109_482_240, 110_106_428),
    "large": (335_141_888, 336_226_108),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    config = EncoderConfig(vocabulary=30522, **{**SIZES, "minilm": MINILM}[name])
    with torch.device("meta"):
        model = Model(config, {"mlm": 0, "nsp": 0})
    total = sum(parameter.numel() for parameter in model.parameters())
    heads = sum(parameter.numel() for parameter in model.heads.parameters())
    assert (total - heads, total) == PARAMETERS[name]


HEADS: list[dict[str, int]] = [
    {"mlm": 0}, {"label": 4}, {"multilabel": 4}, {"value": 0}, {"choice": 0}, {"tag": 9}, {"span": 0}, {"vector": 0},
    {"label": 4, "tag": 9},
]  # fmt: skip
FAMILY_SETTINGS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"segment_types": 1, "position_offset": 2},
    "distilbert": {"segment_types": 0},
    "electra": {"embedding": 48},
    "modernbert": {"segment_types": 0},
    "mpnet": {"segment_types": 0, "position_offset": 2},
    "nomic_bert": {},
    "gte": {"segment_types": 1},
    "eurobert": {"segment_types": 0, "modern": ModernConfig(kv_heads=1, pooling="late")},
}


@pytest.mark.parametrize("heads", [{"mlm": 0, "nsp": 0}, *HEADS], ids="+".join)
@pytest.mark.parametrize("family", [*FAMILY_SETTINGS])
def test_operations_are_those_that_torch_counts(family: str, heads: dict[str, int]) -> None:
    if "nsp" in heads and family != "bert":
        pytest.skip("a head of BERT")
    config = EncoderConfig(layers=3, vocabulary=100, block=family, **FAMILY_SETTINGS[family])
    lengths = [5, 12, 5, 1]
    batch = make_batch(
        lengths,
        100,
        mlm=Target(torch.tensor([0, 3, 4]), torch.tensor([1, 2, 3])),
        nsp=Target(torch.arange(4), torch.zeros(4, dtype=torch.int64)),
        label=Target(torch.arange(4), torch.zeros(4, dtype=torch.int64)),
        multilabel=Target(torch.arange(3), torch.zeros(3, 4)),
        value=Target(torch.arange(4), torch.zeros(4)),
        choice=Target(torch.tensor([0, 2]), torch.tensor([[2, 1], [2, 0]])),
        tag=Target(torch.tensor([2, 9]), torch.tensor([1, 2])),
        span=Target(torch.arange(4), torch.zeros(4, 2, dtype=torch.int64)),
        vector=JointTarget(torch.arange(4), torch.zeros(4, 1), loss=lambda rows_SD, _: rows_SD.sum(1)),
    )
    counts = {name: batch.targets[name].count for name in heads}
    model = Model(config, heads)
    with FlopCounterMode(display=False) as counter:
        sums_K = model(batch)
        forward = counter.get_total_flops()
        sums_K.sum().backward()
    assert forward == flops.encoder_forward(config, lengths) + flops.heads_forward(config, lengths, counts, heads)
    assert counter.get_total_flops() == flops.count_training(config, lengths, counts, heads)
