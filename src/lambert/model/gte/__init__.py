"""The family of gte (Zhang et al., "mGTE", 2024): BERT's order of norms, with rotary positions and gated units.

Its blocks are the base of those of NomicBERT. Read in this order: block, encoder, folder, costs, cpu.
"""

from dataclasses import replace
from functools import partial

from lambert.model.config_keys import architectures
from lambert.model.family import ADJUSTABLE, Family
from lambert.model.gte import costs, folder, heads
from lambert.model.gte.block import GteBlock
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
    matrices=costs.matrices,
    weight_count=partial(costs.weight_count, block=GteBlock),
    operations=costs.operations,
    kernels_lack=costs.kernels_lack,
    saved_per_token=costs.saved_per_token,
    for_cpu=for_cpu,
)
