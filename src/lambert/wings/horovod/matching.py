"""Matching of the requests of a process set: a request is ready when all ranks of the set have made it. The coordinator
runs this module on one rank; the module does not communicate.

A request that is repeated gets a number, with which the ranks can refer to it. A rank's repeated requests are then the
bits of one integer, and the ready requests are the AND of the ranks' integers, whatever the number of tensors.
"""

from collections import OrderedDict
from functools import reduce
from typing import Any, NamedTuple

from lambert.wings.horovod.requests import FIRST_DIMENSION_IS_FREE, Request, find_disagreement


class Match(NamedTuple):
    """The requests of one name, after all ranks have made it. It is sent as a JSON list."""

    name: str
    error: str | None
    """The reason if the requests cannot run together."""
    number: int | None
    """The number with which the ranks may repeat the request from now on."""
    requests: list[Request]
    """One request per rank of the process set if requests may differ, else one request for all ranks."""

    @classmethod
    def parse(cls, fields: list[Any]) -> "Match":
        """Returns the match of a JSON list."""
        name, error, number, requests = fields
        return cls(name, error, number, [Request.parse(request) for request in requests])


class Matching:
    """The requests of one process set that are not yet made by all of its ranks."""

    def __init__(self, ranks: list[int], capacity: int) -> None:
        self.ranks = ranks
        self._capacity = capacity
        self._waiting: dict[str, dict[int, Request]] = {}
        self._since: dict[str, float] = {}
        self._repeated = dict.fromkeys(ranks, 0)
        self._repeated_since: dict[int, list[tuple[float, int]]] = {rank: [] for rank in ranks}
        self._numbered: list[Request] = []
        self._numbers: dict[str, int] = {}
        self._seen_once: OrderedDict[str, Request] = OrderedDict()
        self._spelled_out = 0
        """Bits of the numbered requests that some rank has sent in full because they changed. They are matched in
        full."""
        self._changed: dict[str, None] = {}

    def add(self, rank: int, repeated: int, requests: list[Request], now: float) -> None:
        """Adds a rank's new requests: the bits `repeated` of numbered requests, and requests in full. `now` is the time
        in seconds."""
        if repeated:
            self._repeated[rank] |= repeated
            self._repeated_since[rank].append((now, repeated))
        for request in requests:
            number = self._numbers.get(request.name)
            if number is not None:
                self._spelled_out |= 1 << number
            self._wait(rank, request, now)
        if self._spelled_out:
            for other, bits in self._repeated.items():
                for number in find_set_bits(bits & self._spelled_out):
                    self._wait(other, self._numbered[number], now)
                self._repeated[other] = bits & ~self._spelled_out

    def _wait(self, rank: int, request: Request, now: float) -> None:
        self._waiting.setdefault(request.name, {})[rank] = request
        self._since.setdefault(request.name, now)
        self._changed[request.name] = None

    def recheck(self) -> None:
        """Makes the next `take_ready` check all requests again, because a rank has joined."""
        self._changed.update(dict.fromkeys(self._waiting))

    def take_ready(self, joined: list[int]) -> tuple[int, list[Match]]:
        """Removes and returns the ready requests: the bits of repeated requests, and the matches of requests in full.
        Ranks in `joined` need not make a request."""
        ready = reduce(int.__and__, (-1 if rank in joined else self._repeated[rank] for rank in self.ranks))
        if ready == -1:
            ready = 0
        if ready:
            for rank in self.ranks:
                self._repeated[rank] &= ~ready
                left = self._repeated[rank]
                self._repeated_since[rank] = [entry for entry in self._repeated_since[rank] if entry[1] & left]
        matches = []
        for name in sorted(self._changed, key=lambda name: self._since[name]):
            if all(rank in self._waiting[name] or rank in joined for rank in self.ranks):
                matches.append(self._match(name, joined))
        self._changed.clear()
        return ready, matches

    def _match(self, name: str, joined: list[int]) -> Match:
        requests = dict(sorted(self._waiting.pop(name).items()))
        del self._since[name]
        if name in self._numbers:
            self._spelled_out &= ~(1 << self._numbers[name])
        absent = [rank for rank in self.ranks if rank in joined and rank not in requests]
        error = find_disagreement(requests, absent)
        if error is not None:
            return Match(name, error, None, [])
        first = next(iter(requests.values()))
        if first.kind in FIRST_DIMENSION_IS_FREE:
            return Match(name, None, None, list(requests.values()))
        return Match(name, None, self._number(first), [first])

    def _number(self, request: Request) -> int | None:
        """Returns a number for a request that occurs for the second time, else None. A name that occurs only once gets
        no number, because such names would fill the table."""
        if request.kind != "allreduce" or request.name in self._numbers or len(self._numbered) >= self._capacity:
            return None
        if self._seen_once.pop(request.name, None) != request:
            self._seen_once[request.name] = request
            if len(self._seen_once) > self._capacity:
                self._seen_once.popitem(last=False)
            return None
        self._numbers[request.name] = len(self._numbered)
        self._numbered.append(request)
        return len(self._numbered) - 1

    def find_stalled(self, moment: float, joined: list[int]) -> dict[str, list[int]]:
        """Returns the names of requests that have waited since `moment` or longer, with the ranks that have not made
        the request."""
        stalled = {}
        for name, since in self._since.items():
            if since <= moment:
                stalled[name] = [r for r in self.ranks if r not in self._waiting[name] and r not in joined]
        for rank in self.ranks:
            for since, bits in self._repeated_since[rank]:
                if since <= moment:
                    for number in find_set_bits(bits & self._repeated[rank]):
                        missing = [r for r in self.ranks if not self._repeated[r] >> number & 1 and r not in joined]
                        stalled[self._numbered[number].name] = missing
        return stalled


def find_set_bits(bits: int) -> list[int]:
    """Returns the positions of the set bits, ascending."""
    positions = []
    while bits:
        lowest = bits & -bits
        positions.append(lowest.bit_length() - 1)
        bits ^= lowest
    return positions
