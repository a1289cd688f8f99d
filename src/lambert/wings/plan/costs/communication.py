"""Predicts how long the exchange of gradients between devices takes.

A ring all-reduce (Patarasuk and Yuan, 2009) moves its bytes once over every link of the ring at the same time, so it
lasts as long as its slowest link. In two levels, the ranks of a node reduce first and their leaders sum between the
nodes (`distributed/exchange/hierarchy.py`), one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod

from lambert.core.wire import BLOCKS, ring_bytes, sent_bytes
from lambert.distributed.config import TRAITS
from lambert.wings.plan.costs.devices import Cluster

BANDWIDTH_SHARE = 0.75
"""Share of a link's bandwidth that collectives reach (our choice; NVIDIA/nccl-tests, doc/PERFORMANCE.md, has similar
figures for NVLink)."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The exchange of one update's gradients."""

    seconds: float
    """Seconds on the links."""
    sent: int
    """Bytes that one rank sends."""
    coding: float
    """Seconds for compressing and restoring."""


def predict_exchange(
    cluster: Cluster, method: str, shapes: Sequence[Sequence[int]], *, rank: int = 32, two_levels: bool = False,
    bucket_mb: float = 25.0,
) -> Exchange:  # fmt: skip
    """Returns the exchange of gradients of these shapes.

    Args:
        cluster: The devices and their links.
        method: Name of an exchange method.
        rank: Rank of PowerSGD's matrices.
        two_levels: Sum within each node first, in float32, then between nodes by the method.
        bucket_mb: MB of float32 gradients that are sent together. Each bucket pays the latency.
    """
    ranks, nodes, each = cluster.devices, cluster.nodes, cluster.each
    if ranks == 1:
        return Exchange(0.0, 0, 0.0)
    traits, elements = TRAITS[method], sum(map(prod, shapes))
    buckets = max(1, ceil(4 * elements / (1e6 * bucket_mb)))
    inside, network = BANDWIDTH_SHARE * cluster.inside.bandwidth, BANDWIDTH_SHARE * cluster.network.bandwidth
    latency = buckets * (
        2 * ceil(log2(each)) * cluster.inside.latency + 2 * ceil(log2(nodes)) * cluster.network.latency
    )
    if two_levels and nodes > 1:
        sent = sent_bytes(traits.bits, shapes, nodes, rank)
        seconds = ring_bytes(4 * elements, each) / inside + sent / network
    else:
        sent = sent_bytes(traits.bits, shapes, ranks, rank)
        # In a ring, only one rank of a node sends to the next node; in an all-to-all, each sends to all others.
        leaving = each * (ranks - each) / (ranks - 1) if traits.bits in BLOCKS else 1.0
        seconds = max(sent / inside, sent * leaving / network if nodes > 1 else 0.0)
    coding = traits.coding_bytes * elements / cluster.device.bandwidth
    return Exchange(seconds + latency, sent, coding)


def find_exposed(seconds: float, backward: float, last: float) -> float:
    """Returns the seconds by which an exchange lengthens an update whose buckets are sent during the backward pass.

    Args:
        seconds: Duration of the whole exchange.
        backward: Duration of the backward pass during which gradients become ready.
        last: Share of the gradients that is ready only when the pass ends: the token table, tied to the decoder.
    """
    return max(last * seconds, seconds - backward)
