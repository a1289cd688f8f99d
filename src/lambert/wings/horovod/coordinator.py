"""The coordinator of the negotiation: a thread on rank 0 that decides which collectives run next. The coordinator
sleeps until a message arrives, and moves no tensors.

Every rank, including rank 0, has one connection to the coordinator. Ranks send their requests. When all ranks of a
process set have sent a request, the coordinator tells all of them to run it. All ranks receive the same messages in the
same order, so all ranks run the same collectives in the same order, in whatever order their programs submitted them.
"""

import hmac
import logging
import selectors
import socket
import threading
import time
from typing import Any

from lambert.wings.horovod.channel import Channel
from lambert.wings.horovod.matching import Match, Matching
from lambert.wings.horovod.requests import Request

log = logging.getLogger("lambert.horovod")

GOODBYE_SECONDS = 10.0
"""Seconds that the coordinator and the ranks wait at the end for collectives that still run."""


class Coordinator(threading.Thread):
    """The coordinator's thread, which runs from `init` until the first rank leaves.

    Args:
        listener: The socket to which the ranks connect.
        size: Number of ranks.
        token: The secret that identifies a rank.
        cache_capacity: Maximum number of requests that ranks can repeat as one bit.
        warn_seconds: Waiting time after which a warning names the missing ranks; 0: never.
        end_seconds: Waiting time after which the job ends; 0: never.
    """

    def __init__(
        self, listener: socket.socket, size: int, token: str, cache_capacity: int, warn_seconds: float,
        end_seconds: float,
    ) -> None:  # fmt: skip
        super().__init__(name="lambert.horovod coordinator", daemon=True)
        self._listener = listener
        self._size = size
        self._token = token
        self._cache_capacity = cache_capacity
        self._warn_seconds, self._end_seconds = warn_seconds, end_seconds
        self._selector = selectors.DefaultSelector()
        self._channels: dict[int, Channel] = {}
        self._hosts: dict[int, str] = {}
        self._sets = {0: Matching(list(range(size)), cache_capacity)}
        self._next_set = 1
        self._joined: list[int] = []
        self._closed = False
        self._warned: set[str] = set()

    def run(self) -> None:
        """Processes messages until a rank leaves, informs the other ranks, and waits until they have disconnected."""
        try:
            self._answer()
        finally:
            for channel in self._channels.values():
                channel.close()
            self._listener.close()
            self._selector.close()

    def _answer(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        checks = [seconds for seconds in (self._warn_seconds, self._end_seconds) if seconds > 0]
        interval = min(checks) / 4 if checks else None
        checked, deadline = time.monotonic(), None
        while deadline is None or (self._channels and time.monotonic() < deadline):
            for key, _ in self._selector.select(1.0 if deadline else interval):
                if key.data is None:
                    self._accept()
                else:
                    self._receive(key.data)
            if self._closed and deadline is None:
                deadline = time.monotonic() + GOODBYE_SECONDS
            elif interval and not self._closed and time.monotonic() - checked >= interval:
                checked = time.monotonic()
                self._check_stalls(checked)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(True)
        self._selector.register(connection, selectors.EVENT_READ, Channel(connection))

    def _receive(self, channel: Channel) -> None:
        try:
            for message in channel.receive():
                self._act(channel, message)
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._lose(channel, str(error))

    def _lose(self, channel: Channel, reason: str) -> None:
        self._selector.unregister(channel.socket)
        channel.close()
        if channel.rank is not None:
            self._channels.pop(channel.rank, None)
            self._close(f"rank {channel.rank} has disconnected ({reason})")

    def _act(self, channel: Channel, message: list[Any]) -> None:
        kind, *content = message
        if channel.rank is None:
            token, rank, host = content
            if kind != "hello" or not hmac.compare_digest(token, self._token) or rank in self._channels:
                raise ValueError("the connection is not from a rank of this job")
            channel.rank = rank
            self._channels[rank], self._hosts[rank] = channel, host
            if len(self._channels) == self._size:
                self._tell(range(self._size), ["welcome", [self._hosts[rank] for rank in range(self._size)]])
        elif self._closed:
            return
        elif kind == "submit":
            now = time.monotonic()
            for number, bits, requests in content[0]:
                if number in self._sets:  # otherwise all ranks have removed the process set
                    parsed = [Request.parse(request) for request in requests]
                    self._sets[number].add(channel.rank, int(bits, 16), parsed, now)
                    self._advance(number)
        elif kind == "join":
            self._join(channel.rank)
        elif kind == "leave":
            self._close(content[0])

    def _advance(self, number: int) -> None:
        matching = self._sets[number]
        ready, matches = matching.take_ready(self._joined)
        if ready or matches:
            matches = [self._change_sets(match) for match in matches]
            self._tell(matching.ranks, ["batch", number, f"{ready:x}", matches])

    def _change_sets(self, match: Match) -> Match:
        if match.error is not None or not match.requests[0].kind.endswith("process_set"):
            return match
        request = match.requests[0]
        if request.kind == "add_process_set":
            number = self._next_set
            self._next_set += 1
            self._sets[number] = Matching(list(request.numbers), self._cache_capacity)
        else:
            number = request.numbers[0]
            self._sets.pop(number, None)
        return Match(match.name, None, number, match.requests)

    def _join(self, rank: int) -> None:
        self._joined.append(rank)
        for number, matching in list(self._sets.items()):
            matching.recheck()
            self._advance(number)
        if len(self._joined) == self._size:
            self._joined.clear()
            self._tell(range(self._size), ["joined", rank])

    def _check_stalls(self, now: float) -> None:
        warn, end = self._warn_seconds, self._end_seconds
        stalled, overdue = self._find_stalled(now, warn), self._find_stalled(now, end)
        for name, missing in stalled.items():
            if name not in self._warned:
                log.warning(
                    "%s has waited more than %g s for ranks %s, which have not requested it", name, warn, missing
                )
        self._warned = set(stalled)
        for name, missing in overdue.items():
            self._close(f"{name} has waited more than {end:g} s for ranks {missing}, which have not requested it")

    def _find_stalled(self, now: float, limit: float) -> dict[str, list[int]]:
        stalled: dict[str, list[int]] = {}
        for matching in self._sets.values() if limit > 0 else ():
            stalled |= matching.find_stalled(now - limit, self._joined)
        return stalled

    def _close(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._tell(range(self._size), ["closed", reason])

    def _tell(self, ranks: Any, message: list[Any]) -> None:
        for rank in ranks:
            channel = self._channels.get(rank)
            if channel is not None:
                try:
                    channel.send(message)
                except OSError as error:
                    # The next receive reports the broken connection; the other ranks must still get this message.
                    log.debug("rank %d did not receive %s: %s", rank, message[0], error)
