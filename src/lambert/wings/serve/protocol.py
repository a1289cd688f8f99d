"""HTTP/1.1 of uvicorn with the limits that it lacks: time of headers and answers, size of headers, connections.

A connection has one timer for its request: it runs from the start of the connection, or from the first byte of a
request, until the headers are complete, and then until the answer is written. A second timer runs until the client has
read everything that was written. Between requests, uvicorn's own timer of idle connections runs.

Under overload most requests are refused. That is done here, in 20 microseconds, before a task is created for the
request.
"""

import asyncio
import math
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lambert.runs.result import Say
from lambert.wings.serve.admission import Admission
from lambert.wings.serve.config import ServeConfig
from lambert.wings.serve.gate import OPEN_PATHS
from lambert.wings.serve.metrics import Metrics
from lambert.wings.serve.refusals import Refusal, encode_error

_CLOSING_SECONDS = 5.0
_HEADER_SECONDS = 10.0
"""Maximum time from the first byte of a request, or from the start of a connection, to the end of the headers."""
_STALLED_SECONDS = 10.0
"""Maximum time in which a client reads nothing of its answer."""
_HEADER_BYTES, _HEADERS = 32_768, 100
"""Maximum bytes of the path and of all headers, and maximum number of headers."""
_UNREAD_BODIES = 8
"""Maximum size of all answers that clients have not read, as a number of bodies of the maximum size. Beyond it, the
connection that has been stalled for longest is closed."""
_READ_SECONDS = 1.0
"""Seconds between checks of how much of an answer a client has read."""
_SAID_SECONDS = 60.0
"""Seconds between two warnings about too many connections."""
_LINGER_SECONDS = 1.0
"""Seconds in which a new connection may still send its request when the service ends."""


class _TooLarge(Exception):
    pass


class Limits:
    """The limits of the connections of a service, with at most `connections` open ones. `say` gets a line when
    connections are refused."""

    def __init__(self, config: ServeConfig, connections: int, admission: Admission, metrics: Metrics, say: Say) -> None:
        self.connections, self.admission, self.metrics = connections, admission, metrics
        self.seconds, self.body_bytes = config.seconds, config.body_bytes
        self.header_seconds = min(_HEADER_SECONDS, config.seconds)
        self.stalled_seconds = min(_STALLED_SECONDS, config.seconds)
        self.reading: set[LimitedProtocol] = set()
        """Connections whose clients have not read everything that was written."""
        self._say, self._said = say, -math.inf

    def count_refused_connection(self, now: float) -> None:
        """Counts a refused connection, and warns at most once in `_SAID_SECONDS`."""
        self.metrics.count_refusal("connections")
        if now - self._said >= _SAID_SECONDS:
            self._said = now
            self._say(
                f"warning: {self.connections:,} connections are open, as many as the limit of open files allows "
                "(ulimit -n): others are closed at once."
            )

    def close_stalled(self, now: float) -> None:
        """Closes connections whose clients had read nothing at the last check, the longest stalled first, until the
        others have at most `_UNREAD_BODIES` maximum bodies of unread bytes."""
        most, total = _UNREAD_BODIES * self.body_bytes, sum(connection.unread for connection in self.reading)
        for connection in sorted(self.reading, key=lambda one: one.moved):
            if total <= most or now - connection.moved < _READ_SECONDS:
                return
            total -= connection.unread
            connection.transport.abort()


class LimitedProtocol(HttpToolsProtocol):
    """A connection with the `limits` of its service."""

    timer: asyncio.TimerHandle | None = None
    look: asyncio.TimerHandle | None = None
    deadline, unread, moved = 0.0, 0, 0.0
    """When the answer must be read; its unread bytes at the last check, and since when that number is unchanged."""
    skipping = False
    """The request is refused, and its body is not kept."""
    running: RequestResponseCycle | None = None
    in_headers, begun, ending = False, False, False
    unfinished, size, refusal = 0, 0, 0

    def __init__(self, limits: Limits, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self.limits.count_refused_connection(self.loop.time())
            transport.abort()
        self._arm(self.limits.header_seconds, self._end_slow_request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._end_looks()
        super().connection_lost(exc)
        if self.running is not None:  # uvicorn reports only the last of several requests in a row
            self.running.disconnected = self.running.disconnected or not self.running.response_complete
            self.running.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if not self.begun:
            self.begun = True
            self._arm(self.limits.header_seconds, self._end_slow_request)
        before = self.in_headers
        super().data_received(data)
        if before and self.in_headers and not self.transport.is_closing():
            self.unfinished += len(data)
            if self.unfinished > _HEADER_BYTES:
                self.refusal = 431
                self.send_400_response("")

    def on_message_begin(self) -> None:
        self.in_headers, self.unfinished, self.size = True, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._measure(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._measure(len(name) + len(value))

    def _measure(self, size: int) -> None:
        self.size += size
        if self.size > _HEADER_BYTES or len(self.headers) > _HEADERS:
            self.refusal = 431
            raise _TooLarge

    def on_headers_complete(self) -> None:
        # Until the answer is written, and again until the client has read it.
        seconds = (1 if self.ending else 2) * self.limits.seconds
        self._arm(seconds, self._abort)
        if not self.look:
            self.deadline = self.loop.time() + seconds
        self.in_headers = False
        if (refusal := self._find_refusal()) is not None:
            self.skipping = True
            self.limits.metrics.count_refusal(refusal.reason)
            self.limits.metrics.count_answer("other", "", 429, 0.0)
            self.transport.write(_format_answer(429, refusal.detail, f"retry-after: {refusal.retry}"))
            return
        super().on_headers_complete()
        if self.ending:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if not self.skipping:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.skipping:
            self.skipping = False
            self.on_response_complete()
        else:
            super().on_message_complete()

    def _find_refusal(self) -> Refusal | None:
        """Returns why the load of the service makes it refuse the request. The gate decides about requests that
        share their connection with other answers, or whose connection must close."""
        alone = self.cycle is None or self.cycle.response_complete
        if not alone or self.ending or self.expect_100_continue or not self.parser.should_keep_alive():
            return None
        if self.parser.get_method() != b"POST" or self.url in _OPEN or self.parser.should_upgrade():
            return None
        length = next((value for name, value in self.headers if name == b"content-length"), b"")
        if not length.isdigit() or len(length) > 18 or int(length) > self.limits.body_bytes:
            return None
        try:
            self.limits.admission.check(int(length))
        except Refusal as refusal:
            return refusal
        return None

    def on_response_complete(self) -> None:
        waiting = bool(self.pipeline)
        super().on_response_complete()
        if self.transport.get_write_buffer_size() and not self.look:
            self.unread, self.moved = self.transport.get_write_buffer_size(), self.loop.time()
            self.limits.reading.add(self)
            self.look = self.loop.call_later(_READ_SECONDS, self._read)
            self.limits.close_stalled(self.loop.time())
        if self.transport.is_closing() or (not self.in_headers and not waiting):
            self._disarm()
            self.begun = False

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection unless a request has arrived on it meanwhile."""
        self.timeout_keep_alive_task = self.loop.call_later(0.01, super().timeout_keep_alive_handler)

    def _read(self) -> None:
        """Checks how much the client has read."""
        now, unread = self.loop.time(), self.transport.get_write_buffer_size()
        if not unread:
            self._end_looks()
            return
        if unread != self.unread:
            self.unread, self.moved = unread, now
        if now >= min(self.deadline, self.moved + self.limits.stalled_seconds):
            self.limits.metrics.count_refusal("unread")
            self.transport.abort()
        else:
            self.look = self.loop.call_later(_READ_SECONDS, self._read)

    def _end_looks(self) -> None:
        self.limits.reading.discard(self)
        if self.look is not None:
            self.look.cancel()
            self.look = None

    def shutdown(self) -> None:
        """Ends the connection: a request that has begun is answered, an idle connection is closed."""
        self.ending = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            self._arm(self.limits.seconds, self._abort)
        elif self.in_headers or self.cycle is None:
            if not self.begun:
                self._arm(min(_LINGER_SECONDS, self.limits.header_seconds), self.transport.close)
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answers a request that is not HTTP, whose headers are too large, or too slow."""
        status, self.refusal = self.refusal or 400, 0
        reason, message = _ANSWERS[status]
        self.limits.metrics.count_refusal(reason)
        self.transport.write(_format_answer(status, message, "connection: close"))
        self.transport.close()
        self._arm(_CLOSING_SECONDS, self._abort)

    def _end_slow_request(self) -> None:
        if self.begun and (self.cycle is None or self.cycle.response_complete):
            self.refusal = 408
            self.send_400_response("")
        else:
            self.transport.close()

    def _abort(self) -> None:
        self.transport.abort()

    def _arm(self, seconds: float, call: Callable[[], None]) -> None:
        self._disarm()
        self.timer = self.loop.call_later(seconds, call)

    def _disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def _format_answer(status: int, message: str, header: str) -> bytes:
    content = encode_error(message)
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n{header}\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


_OPEN = frozenset(path.encode() for path in OPEN_PATHS)
_ANSWERS: dict[int, tuple[str, str]] = {
    400: ("malformed", "This is not HTTP/1.1."),
    408: ("header_time", "The headers were not complete in time."),
    431: ("headers", "The headers are too large or too many: send less."),
}
