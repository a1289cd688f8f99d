"""The NomicBERT family (Nussbaum et al., "Nomic Embed", 2024): gte's blocks without biases, gated with silu."""

from dataclasses import replace

from lambert.model.config import ModernConfig
from lambert.model.gte import GTE
from lambert.model.gte.costs import GteCosts
from lambert.model.nomic import folder, heads
from lambert.model.nomic.encoder import NomicBlock, NomicEncoder

NOMIC_BERT = replace(
    GTE,
    title="NomicBERT",
    encoder=NomicEncoder,
    heads=heads.HEADS,
    segments=True,
    defaults={"dropout": 0.0, "attention_dropout": 0.0, "modern": ModernConfig(theta=folder.THETA)},
    fresh=lambda config: config,
    names=folder.NAMES,
    keys=folder.KEYS,
    architectures=folder.ARCHITECTURES,
    costs=GteCosts(NomicBlock),
)
