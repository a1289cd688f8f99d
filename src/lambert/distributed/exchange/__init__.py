"""The gradient exchange: sums the gradients of all ranks while the backward pass still runs.

The gradient buffer is divided into buckets in the order in which a backward pass finishes them. As soon as the last
backward pass of an update has finished a bucket, the communication thread sums the bucket over the ranks by the chosen
method while the backward pass continues. The order of buckets is the same on every rank. docs/design/0006 explains why
this is not torch's DistributedDataParallel.
"""

from torch import nn

from lambert.core.world import World
from lambert.distributed.config import ExchangeConfig
from lambert.engine.exchange import Exchange

__all__ = ["Exchange", "build"]


def build(
    net: nn.Module, world: World, config: ExchangeConfig, *, updates: int = 0, deterministic: bool = False
) -> Exchange:
    """Returns the exchange for `world`: `Exchange` for one process, else `DistributedExchange` or `LocalSGD`.

    Args:
        updates: Number of updates of the whole run.
        deterministic: Sum gradients in an order that does not depend on the number of ranks.
    """
    if type(world) is World:
        return Exchange(net, deterministic=deterministic)
    from lambert.distributed.exchange.local_sgd import LocalSGD
    from lambert.distributed.exchange.overlapped import DistributedExchange
    from lambert.distributed.group import Group

    assert isinstance(world, Group)
    kind = LocalSGD if config.sync_every > 1 else DistributedExchange
    return kind(net, world, config, updates=updates, deterministic=deterministic)
