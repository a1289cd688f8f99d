"""Subsets of the ranks that run operations among themselves."""

from collections.abc import Iterable, Sequence
from typing import Any

from lambert.horovod import session
from lambert.horovod.negotiation import Entry
from lambert.horovod.requests import Request


class ProcessSet:
    """Ranks that work together, for the `process_set` argument of the operations.

    Becomes usable through `init(process_sets=[...])` or `add_process_set`, which set `process_set_id`.
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
        """The number of ranks; None before the set is registered."""
        return None if self.process_set_id is None else len(registered_ranks(self))

    def rank(self) -> int | None:
        """This process's number in the set; None before it is registered. ValueError where it is not a member."""
        if self.process_set_id is None:
            return None
        ranks = registered_ranks(self)
        me = session.current().launch.rank
        if me not in ranks:
            raise ValueError(f"rank {me} is not a member of {self}")
        return ranks.index(me)

    def included(self) -> bool | None:
        """Whether this process is a member; None where the ranks are not known."""
        return None if self.ranks is None else session.current().launch.rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


global_process_set = ProcessSet([])
"""All ranks."""
global_process_set.process_set_id = 0


def registered_ranks(process_set: ProcessSet) -> list[int]:
    """The ranks of a set that can be used. ValueError where it is not, or no longer, registered."""
    number = process_set.process_set_id
    ranks = session.current().sets.get(number) if number is not None else None
    if ranks is None:
        raise ValueError(f"{process_set} is not registered: give it to hvd.init() or hvd.add_process_set()")
    return ranks


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set and gives it back. All ranks have to call it, members or not, in the same order.

    ValueError where these ranks are a set already, or not ranks of this job.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    now = session.current()
    ranks = process_set.ranks or []
    if not ranks or len(set(ranks)) < len(ranks) or not 0 <= ranks[0] <= ranks[-1] < now.launch.size:
        raise ValueError(f"{process_set} needs different ranks between 0 and {now.launch.size - 1}")
    if ranks in now.sets.values():
        raise ValueError(f"a process set of these ranks exists already: {process_set}")
    process_set.process_set_id = _agree("add_process_set", ranks)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a set, and says whether there was one to forget: not the global one. All ranks have to call it."""
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    process_set.process_set_id = None
    if number not in session.current().sets:
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
