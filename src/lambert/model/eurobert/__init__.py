"""The EuroBERT family (Boizard et al., "EuroBERT", 2025): Llama's block with attention in both directions.

Rotary positions, RMS norms before attention and the gated feed-forward layer, heads that may share keys and values,
and a decoder of its own. Read in this order: block, encoder, heads, folder, costs, cpu.
"""

from lambert.model.config import ModernConfig
from lambert.model.config_keys import architectures
from lambert.model.eurobert import folder, heads
from lambert.model.eurobert.costs import EuroBertCosts
from lambert.model.eurobert.cpu import for_cpu
from lambert.model.eurobert.encoder import EuroBertEncoder
from lambert.model.family import ADJUSTABLE, Family

EUROBERT = Family(
    title="EuroBERT",
    encoder=EuroBertEncoder,
    heads=heads.HEADS,
    pooler=heads.EuroPooler,
    segments=False,
    defaults={
        "dropout": 0.0, "attention_dropout": 0.0, "norm_eps": 1e-5, "modern": ModernConfig(theta=folder.THETA),
    },
    adjustable=ADJUSTABLE | {"positions", "modern.theta"},
    names=folder.NAMES,
    keys=folder.KEYS,
    architectures=architectures("EuroBert"),
    own_heads=frozenset({"span", "choice"}),
    costs=EuroBertCosts(),
    kernels_lack=lambda config: "RMS norms",
    for_cpu=for_cpu,
)  # fmt: skip
