"""Process sets: subsets of the ranks that run collectives among themselves."""

from collections.abc import Iterable, Sequence
from typing import Any

from lambert.wings.horovod import session
from lambert.wings.horovod.requests import Entry, Request


class ProcessSet:
    """A set of ranks for the `process_set` argument of the collectives.

    It can be used after it is registered with `init(process_sets=[...])` or `add_process_set`, which set
    `process_set_id`.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        if not isinstance(ranks_or_comm, Iterable):
            raise ValueError("a ProcessSet takes a list of ranks; MPI communicators are not supported")
        ranks = sorted(ranks_or_comm)
        if any(not isinstance(rank, int) for rank in ranks):
            raise ValueError(f"a ProcessSet takes ranks, which are integers, not {ranks}")
        self.ranks = ranks

    def size(self) -> int | None:
        """Returns the number of ranks, or None before the set is registered."""
        return None if self.process_set_id is None else len(find_ranks(self))

    def rank(self) -> int | None:
        """Returns the rank of this process within the set, or None before the set is registered. Raises ValueError if
        this process is not a member."""
        if self.process_set_id is None:
            return None
        ranks = find_ranks(self)
        me = session.current().process.rank
        if me not in ranks:
            raise ValueError(f"rank {me} is not a member of {self}")
        return ranks.index(me)

    def included(self) -> bool | None:
        """Returns whether this process is a member, or None if the ranks are not known."""
        return None if self.ranks is None else session.current().process.rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


global_process_set = ProcessSet([])
"""The process set of all ranks."""
global_process_set.process_set_id = 0


def find_ranks(process_set: ProcessSet) -> list[int]:
    """Returns the ranks of a registered set. Raises ValueError if the set is not, or no longer, registered."""
    number = process_set.process_set_id
    ranks = session.current().executor.sets.get(number) if number is not None else None
    if ranks is None:
        raise ValueError(f"{process_set} is not registered: pass it to hvd.init() or hvd.add_process_set()")
    return ranks


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a process set and returns it. All ranks, also those outside the set, must register the same sets in the
    same order.

    Raises:
        ValueError: The ranks are not distinct ranks of this job, or a set of these ranks is already registered.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    now = session.current()
    ranks = process_set.ranks or []
    if not ranks or len(set(ranks)) < len(ranks) or not 0 <= ranks[0] <= ranks[-1] < now.process.size:
        raise ValueError(f"{process_set} must have distinct ranks between 0 and {now.process.size - 1}")
    if ranks in now.executor.sets.values():
        raise ValueError(f"a process set of these ranks exists already: {process_set}")
    process_set.process_set_id = _agree("add_process_set", ranks)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set. All ranks must call this function. Returns False if the set is not registered or is the
    global process set, which cannot be removed."""
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    process_set.process_set_id = None
    if number not in session.current().executor.sets:
        return False
    _agree("remove_process_set", [number])
    return True


def _agree(kind: str, numbers: list[int]) -> int:
    negotiator = session.current().negotiator
    entry = Entry(Request(kind, negotiator.name(kind, 0, None), 0, numbers=tuple(numbers)))
    negotiator.submit(entry)
    negotiator.wait(entry)
    result: int = entry.result
    return result
