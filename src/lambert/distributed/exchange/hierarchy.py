"""Two-level sums: within each node, where links are fast, in float32; then between nodes by any method."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from lambert.core.errors import UsageError
from lambert.distributed.config import TIMEOUT_SECONDS
from lambert.distributed.exchange.reduction import Method
from lambert.engine.gradients import Bucket


class Hierarchical(Method):
    """The ranks of a node reduce their gradients in float32 to the node's first rank, its leader. The leaders sum by
    the `inner` method, and each leader broadcasts the result within its node. Only leaders store residuals."""

    def __init__(self, local_group: ProcessGroup, leaders_group: ProcessGroup | None, inner: Method) -> None:
        """`local_group` and `leaders_group` are what `nodes` returns. `inner` works on the leaders' group; other ranks
        do not call it."""
        self._local, self._inner = local_group, Method() if leaders_group is None else inner

    def reduce(self, bucket: Bucket) -> None:
        dist.reduce(bucket.flat, group=self._local, group_dst=0)
        self._inner.reduce(bucket)
        dist.broadcast(bucket.flat, group=self._local, group_src=0)

    def rescale(self, scale: Callable[[], float]) -> None:
        self._inner.rescale(scale)

    def average_residuals(self, buckets: Sequence[Bucket]) -> None:
        self._inner.average_residuals(buckets)

    def state(self) -> dict[str, Tensor]:
        """Returns the inner method's state on leaders, of which rank 0 is one; nothing on other ranks."""
        return self._inner.state()

    def load(self, state: Mapping[str, Tensor], buckets: Sequence[Bucket]) -> None:
        self._inner.load(state, buckets)


def nodes(
    world_size: int, local_size: int, timeout: float = TIMEOUT_SECONDS
) -> tuple[ProcessGroup, ProcessGroup | None]:
    """Returns the process group of this rank's node, and the group of the nodes' first ranks (None on other ranks).

    All ranks must call this function at the same point.

    Args:
        local_size: Ranks per node. The ranks of a node are consecutive.
        timeout: Time-out of every collective in these groups, in seconds.

    Raises UsageError if `world_size` is not a multiple of `local_size`.
    """
    if local_size < 1 or world_size % local_size:
        raise UsageError(
            f"{world_size} ranks cannot be divided into nodes of {local_size}: start equally many ranks on each node, "
            "or set exchange.nodes = 'off'."
        )
    rank, firsts, patience = dist.get_rank(), range(0, world_size, local_size), timedelta(seconds=timeout)
    locals_ = [dist.new_group([*range(first, first + local_size)], timeout=patience) for first in firsts]
    leaders = dist.new_group([*firsts], timeout=patience)
    return locals_[rank // local_size], leaders if rank % local_size == 0 else None
