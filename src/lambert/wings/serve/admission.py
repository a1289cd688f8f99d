"""Decides which requests are accepted and when each begins. Overload is refused before anything is parsed or tokenized.

A request that was accepted waits for a turn, is parsed and tokenized, and gives the turn back when its tokens are
submitted to the scheduler. There are few turns, so most waiting requests are bodies of known size, whose work has not
begun. The time that a new request would wait is estimated from the sizes before it, the speed at which turns have been
given back, and the tokens that wait in the scheduler. A request that would wait too long is refused; one that was
accepted is answered.
"""

import asyncio
import math
import time
from collections import deque
from contextvars import ContextVar

from lambert.inference.scheduler import OverloadedError, Scheduler
from lambert.wings.serve.refusals import Refusal

_REQUEST = 256
"""Fixed cost of a request, as the number of bytes that take as long to parse and tokenize (our choice)."""
_WINDOW = 0.1
"""Seconds with all turns taken after which the speed is estimated again (our choice)."""
_NEW_WEIGHT = 0.2
"""Weight of a new estimate, or of the tokens of one request, in its average (our choice)."""
_MOST_BODIES = 32
"""Maximum size of all bodies in memory, as a number of bodies of the maximum size (our choice)."""


class Admission:
    """The requests that a service has accepted.

    Args:
        scheduler: Computes their tokens, and estimates how long these wait.
        turns: Maximum number of requests that are parsed and tokenized at the same time.
        requests: Maximum number of requests in progress.
        body_bytes: Maximum bytes of a body.
    """

    def __init__(self, scheduler: Scheduler, turns: int, requests: int, body_bytes: int) -> None:
        self.scheduler, self._most_requests, self._most_bytes = scheduler, requests, _MOST_BODIES * body_bytes
        self.requests, self.bytes = 0, 0
        """Number of requests that have not been answered, and the bytes of their bodies."""
        self._free_turns = turns
        self._queue: deque[asyncio.Future[None]] = deque()
        self._size = 0
        """Bytes of the requests that wait for a turn or have one, plus _REQUEST for each request."""
        self._speed = 0.0
        """Speed at which these bytes are processed while requests wait, in bytes per second; 0 until it is known."""
        self._tokens_per_byte = 0.0
        self._window, self._window_bytes, self._since = 0.0, 0, 0.0

    def expect(self, bytes_per_second: float, tokens_per_byte: float) -> None:
        """Sets the assumed speed and tokens per byte, which hold until they are measured."""
        self._speed = self._speed or bytes_per_second
        self._tokens_per_byte = self._tokens_per_byte or tokens_per_byte

    def check(self, more: int) -> None:
        """Raises Refusal if a request whose body has this many bytes that are not in memory yet cannot be accepted."""
        if self.requests >= self._most_requests:
            raise Refusal(429, "requests", f"{self.requests:,} requests are being answered: try again in 1 s.", retry=1)
        self.check_bytes(more)
        self.check_wait(more)

    def check_bytes(self, more: int) -> None:
        """Raises Refusal if all bodies together would be too large with this many more bytes."""
        if self.bytes + more > self._most_bytes:
            raise Refusal(429, "bodies", f"{self.bytes:,} bytes of bodies are in memory: try again in 1 s.", retry=1)

    def check_wait(self, size: int) -> None:
        """Raises Refusal if a body of this many bytes would wait too long."""
        seconds = self._size / self._speed if self._speed else 0.0
        coming, own = self._size * self._tokens_per_byte, (size + _REQUEST) * self._tokens_per_byte
        try:
            self.scheduler.check(math.ceil(own), coming=math.ceil(coming), seconds=seconds)
        except OverloadedError as error:
            retry = min(3600, max(1, math.ceil(error.seconds)))
            raise Refusal(429, "overloaded", str(error), retry=retry) from error

    async def _wait_for_turn(self) -> None:
        """Waits for a turn."""
        if self._free_turns:
            self._free_turns -= 1
            return
        if not self._since:
            self._since = time.monotonic()
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(given)
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self._pass_on_turn()
            raise

    def _give_back(self, size: int) -> None:
        """Takes back the turn of a request of this size."""
        if self._since:
            self._window_bytes += size
            now = time.monotonic()
            self._window, self._since = self._window + now - self._since, now
            if self._window >= _WINDOW:
                speed = self._window_bytes / self._window
                self._speed += (_NEW_WEIGHT if self._speed else 1.0) * (speed - self._speed)
                self._window, self._window_bytes = 0.0, 0
        self._pass_on_turn()

    def _pass_on_turn(self) -> None:
        # Not at once: the event loop reads other requests, and refuses them, between two turns.
        asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        """Gives a turn to the first request in the queue."""
        while self._queue:
            given = self._queue.popleft()
            if not given.done():
                given.set_result(None)
                return
        self._free_turns += 1
        self._since = 0.0

    def _learn(self, size: int, tokens: int) -> None:
        weight = _NEW_WEIGHT if self._tokens_per_byte else 1.0
        self._tokens_per_byte += weight * (tokens / size - self._tokens_per_byte)


class Accepted:
    """A request that was accepted, from its headers to its answer."""

    def __init__(self, admission: Admission) -> None:
        self._admission, self._size, self._bytes, self._tokens = admission, _REQUEST, 0, 0
        self._counted, self._has_turn = False, False
        admission.requests += 1

    def add_bytes(self, count: int) -> None:
        """Records that this many more bytes of its body are in memory."""
        self._bytes += count
        self._size += count
        self._admission.bytes += count

    def count(self) -> None:
        """Counts the request, whose body is complete, as work that others wait for. Raises Refusal if it would wait too
        long itself. Requests that arrive at the same time see each other."""
        self._admission.check_wait(self._bytes)
        self._count()

    async def wait_for_turn(self) -> None:
        """Waits until the request may be parsed and tokenized."""
        if not self._has_turn:
            self._count()
            await self._admission._wait_for_turn()
            self._has_turn = True

    def _count(self) -> None:
        if not self._counted:
            self._counted = True
            self._admission._size += self._size

    def give_back_turn(self, tokens: int) -> None:
        """Gives back its turn, because its tokens are in the scheduler."""
        self._tokens += tokens
        self._end_turn()

    def end(self) -> None:
        """Ends the request, which was answered or whose client has left."""
        self._end_turn()
        if self._tokens:
            self._admission._learn(self._size, self._tokens)
        self._admission.bytes -= self._bytes
        self._admission.requests -= 1

    def _end_turn(self) -> None:
        if self._counted:
            self._counted = False
            self._admission._size -= self._size
        if self._has_turn:
            self._has_turn = False
            self._admission._give_back(self._size)


CURRENT: ContextVar[Accepted | None] = ContextVar("CURRENT", default=None)
"""The accepted request that is being answered."""
