"""The exchange: how the gradients of all ranks become one, while the backward pass still runs.

The gradient buffer is cut into buckets in the order in which a backward pass is done with them. As soon as the last
pass of an update has finished a bucket, a thread of its own sums it over the ranks by the chosen method, bucket after
bucket in the same order on every rank, and the pass goes on. docs/design/0006 says why this is not torch's
DistributedDataParallel.
"""

from torch import nn

from lambert.engine.cluster.dist import Group, World
from lambert.engine.exchange.alone import Exchange
from lambert.engine.exchange.averaging import Averaging
from lambert.engine.exchange.methods import ExchangeConfig
from lambert.engine.exchange.ranks import Ranks

__all__ = ["Averaging", "Exchange", "Ranks", "build"]


def build(
    net: nn.Module, world: World, config: ExchangeConfig, *, updates: int = 0, deterministic: bool = False
) -> Exchange:
    """The exchange of this world, for a run of so many `updates`."""
    if not isinstance(world, Group):
        return Exchange(net, deterministic=deterministic)
    kind = Averaging if config.sync_every > 1 else Ranks
    return kind(net, world, config, updates=updates, deterministic=deterministic)
