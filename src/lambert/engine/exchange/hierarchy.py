"""Sums in two steps: within a machine, where links are fast, and between machines by any method."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from lambert.core.errors import UsageError
from lambert.engine.cluster.dist import TIMEOUT_SECONDS
from lambert.engine.exchange.reduction import Bucket, Method


class Hierarchical:
    """The ranks of a machine give their float32 sum to the first of them, its leader; leaders sum by the `inner`
    method; machines are told by their leaders. What the inner method holds back lives on leaders."""

    def __init__(self, local_group: ProcessGroup, leaders_group: ProcessGroup | None, inner: Method) -> None:
        """Groups as `machines` gives them. `inner` is on the group of the leaders; other ranks do not call it."""
        self._local, self._leads, self._inner = local_group, leaders_group is not None, inner

    def reduce(self, bucket: Bucket) -> None:
        dist.reduce(bucket.flat, group=self._local, group_dst=0)
        if self._leads:
            self._inner.reduce(bucket)
        dist.broadcast(bucket.flat, group=self._local, group_src=0)

    def rescale(self, scale: Callable[[], float]) -> None:
        if self._leads:
            self._inner.rescale(scale)

    def settle(self, buckets: Sequence[Bucket]) -> None:
        if self._leads:
            self._inner.settle(buckets)

    def state(self) -> dict[str, Tensor]:
        """Of leaders, the first of all ranks among them; others hold nothing."""
        return self._inner.state() if self._leads else {}

    def load(self, state: Mapping[str, Tensor], buckets: Sequence[Bucket]) -> None:
        if self._leads:
            self._inner.load(state, buckets)

    def wire_bytes(self, bucket: Bucket) -> int:
        """Of a leader, to other machines."""
        return self._inner.wire_bytes(bucket)


def machines(
    world_size: int, local_size: int, timeout: float = TIMEOUT_SECONDS
) -> tuple[ProcessGroup, ProcessGroup | None]:
    """This rank's group within its machine, and on the first rank of a machine the group of those, else none.

    Machines have `local_size` ranks each, numbered one after the other. All ranks must call it at the same point.
    `timeout` in seconds, of every collective in these groups.
    Raises UsageError where machines are not equal.
    """
    if local_size < 1 or world_size % local_size:
        raise UsageError(
            f"{world_size} ranks are not whole machines of {local_size}: start as many on each, or sum in one step."
        )
    rank, firsts, patience = dist.get_rank(), range(0, world_size, local_size), timedelta(seconds=timeout)
    locals_ = [dist.new_group([*range(first, first + local_size)], timeout=patience) for first in firsts]
    leaders = dist.new_group([*firsts], timeout=patience)
    return locals_[rank // local_size], leaders if rank % local_size == 0 else None
