"""The World of a process: its rank, the world size, and the collectives. This module implements a world of one process,
so other code needs no branch for it; `distributed.group.Group` has the same interface for several processes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self, TypeVar

import torch
from torch import Tensor

from lambert.core.batch import Batch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """A world of one process; `Group` is a world of several. Each method returns what the collective returns for a
    world size of 1.

    As a context manager, a World ends on all ranks together: a rank that fails reports its error to its peers, so they
    do not wait for it.
    """

    rank: int = 0
    """Rank of this process, from 0."""
    size: int = 1
    """World size: number of processes that train together."""
    local_rank: int = 0
    """Rank of this process on its node, from 0."""
    local_size: int = 1
    """Number of processes on every node; 1 if the nodes have different numbers of processes."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """The device on which this process computes."""
    reason: str = "one process"
    """Which launcher or variables rank and size come from."""

    @property
    def is_first(self) -> bool:
        """Whether this process is rank 0, which writes files and prints."""
        return self.rank == 0

    def put(self, batch: Batch) -> Batch:
        """Returns the batch on this world's device."""
        return self.pin(batch).to(self.device)

    def pin(self, batch: Batch) -> Batch:
        """Returns a batch in host memory from where the host need not wait for a copy to this world's device."""
        return batch.map(Tensor.pin_memory) if self.device.type == "cuda" else batch

    def sum(self, tensor: Tensor) -> Tensor:
        """Sums `tensor` over all ranks (all-reduce), in place, and returns it."""
        return tensor

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrites `tensors` with those of rank 0."""

    def broadcast_text(self, text: str, seconds: float | None = None) -> str:
        """Returns rank 0's `text` on every rank, sent as bytes, never as a pickle. `seconds` is how long the other
        ranks wait for it, if that may exceed the time-out of a collective."""
        return text

    def run_on_first(self, work: Callable[[], T], seconds: float | None = None) -> T:
        """Returns on all ranks what `work()` returns on rank 0, a value that JSON represents. If it raises a
        LambertError there, all ranks raise that error. `seconds` is that of `broadcast_text`."""
        return work()

    def gather_text(self, text: str) -> list[str]:
        """Returns the texts of all ranks, in the order of ranks, on every rank."""
        return [text]

    def gather_tensors(self, named: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]]:
        """Returns the named tensors of all ranks, in the order of ranks, on every rank. Ranks may have different names,
        shapes and dtypes. With several ranks, the tensors returned are in host memory."""
        return [named]

    def add(self, numbers: Sequence[float]) -> list[float]:
        """Returns the sums of `numbers` over the ranks, exact for whole numbers of up to 2^53. They are exchanged
        between hosts, without waiting for the device."""
        return [*numbers]

    def largest(self, number: int) -> int:
        """Returns the largest `number` of all ranks. It is exchanged between hosts, without waiting for the device."""
        return number

    @contextmanager
    def fail_together(self, what: str) -> Iterator[None]:
        """A context in which all ranks fail if one raises a LambertError: the others raise an error that names the rank
        and `what` it was doing. The code in the context must not call a collective."""
        yield

    def close(self) -> None:
        """Leaves the group and ends its threads. Must be called before the interpreter exits."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
