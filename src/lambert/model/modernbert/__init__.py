"""The ModernBERT family (Warner et al., "Smarter, Better, Faster, Longer", 2024), with Ettin and mmBERT.

Rotary positions instead of a table, norms before attention and the feed-forward layer, which is gated, alternating
local and global attention, and no biases. Read in this order: rotary, block, encoder, heads, folder.
"""

from lambert.model.config_keys import architectures
from lambert.model.family import ADJUSTABLE, Family
from lambert.model.modernbert import folder, heads, native
from lambert.model.modernbert.costs import ModernBertCosts
from lambert.model.modernbert.cpu import for_cpu
from lambert.model.modernbert.encoder import ModernBertEncoder, initial_deviation
from lambert.model.modernbert.padded import PaddedModernBertEncoder

MODERNBERT = Family(
    title="ModernBERT",
    encoder=ModernBertEncoder,
    heads=heads.HEADS,
    pooler=heads.ModernPooler,
    segments=False,
    defaults={"dropout": 0.0, "attention_dropout": 0.0, "norm_eps": 1e-5},
    adjustable=ADJUSTABLE | {"positions", "modern.theta", "modern.local_theta"},
    initial_deviation=initial_deviation,
    truncated=True,
    names=folder.NAMES,
    keys=folder.KEYS,
    architectures=architectures("ModernBert"),
    costs=ModernBertCosts(),
    kernels_lack=native.lacking,
    for_cpu=for_cpu,
    padded=PaddedModernBertEncoder,
)
