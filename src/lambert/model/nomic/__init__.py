"""The NomicBERT family (Nussbaum et al., "Nomic Embed", 2024): gte's blocks without biases, gated with silu."""

from dataclasses import replace
from functools import partial

from lambert.model.config import ModernConfig
from lambert.model.gte import GTE, costs
from lambert.model.nomic import folder, heads
from lambert.model.nomic.encoder import NomicBlock, NomicEncoder

NOMIC_BERT = replace(
    GTE,
    title="NomicBERT",
    encoder=NomicEncoder,
    heads=heads.HEADS,
    segments=True,
    defaults={"dropout": 0.0, "attention_dropout": 0.0, "modern": ModernConfig(theta=folder.THETA)},
    completed=lambda config: config,
    names=folder.NAMES,
    layer=folder.LAYER,
    current_name=folder.current_name,
    tied=folder.TIED,
    architectures=folder.ARCHITECTURES,
    to_json=folder.to_json,
    from_json=folder.from_json,
    weight_count=partial(costs.weight_count, block=NomicBlock),
)
