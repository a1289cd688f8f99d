"""The family of gte (Zhang et al., "mGTE", 2024): BERT's order of norms, with rotary positions and gated units.

Its blocks are the base of those of NomicBERT. Read in this order: block, encoder, folder, costs, cpu.
"""

from dataclasses import replace
from functools import partial

from lambert.model.config_keys import architectures
from lambert.model.family import ADJUSTABLE, Family
from lambert.model.gte import folder, heads
from lambert.model.gte.costs import GteCosts
from lambert.model.gte.cpu import for_cpu
from lambert.model.gte.encoder import GteEncoder

GTE = Family(
    title="GTE",
    encoder=GteEncoder,
    heads=heads.HEADS,
    segments=False,
    defaults={"attention_dropout": 0.0},
    fresh=partial(replace, segment_types=1),
    adjustable=ADJUSTABLE | {"positions", "modern.theta"},
    names=folder.NAMES,
    keys=folder.KEYS,
    architectures=architectures("Gte"),
    own_heads=frozenset({"span", "choice"}),
    costs=GteCosts(),
    kernels_lack=lambda config: "gated blocks whose norms are last",
    for_cpu=for_cpu,
)
