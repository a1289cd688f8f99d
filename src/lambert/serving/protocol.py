"""HTTP/1.1 of uvicorn with the limits that it lacks: time of headers and answers, size of headers, connections.

A connection has one timer at a time: from its start, or from the first byte of a request, until the headers are
complete; then until the answer is sent; then, if the connection is to be closed, until the client has read it. Between
requests, uvicorn's own timer of idle connections runs.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

Refused = Callable[[str], None]
_CLOSING_SECONDS = 5.0
_LINGER_SECONDS = 1.0
"""When the service ends, a new connection may still send its request for this time."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What connections may do."""

    header_seconds: float
    """Longest time from the first byte of a request, or from the start of a connection, to the end of the headers."""
    answer_seconds: float
    """Longest time from the end of the headers until the client has read the answer."""
    ending_seconds: float
    """Longest time of a request when the service ends."""
    connections: int
    """Most connections at once."""
    header_bytes: int = 32_768
    """Most bytes of the path and of all headers."""
    headers: int = 100
    """Most headers."""


class _TooLarge(Exception):
    pass


def protocol_class(limits: ConnectionLimits, refused: Refused) -> type[HttpToolsProtocol]:
    """Returns the protocol for `uvicorn.Config(http=...)`. `refused` is called with the reason of each refusal."""

    class Protocol(HttpToolsProtocol):
        timer: asyncio.TimerHandle | None = None
        running: RequestResponseCycle | None = None
        in_headers, begun, ending = False, False, False
        unfinished, size, refusal = 0, 0, 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                refused("connections")
                transport.abort()
            self._arm(limits.header_seconds, self._slow)

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)
            if self.running is not None:  # uvicorn tells only the last of several requests in a row
                self.running.disconnected = self.running.disconnected or not self.running.response_complete
                self.running.message_event.set()

        def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
            self.running = cycle
            super()._start_asgi_task(cycle, app)

        def data_received(self, data: bytes) -> None:
            if not self.begun:
                self.begun = True
                self._arm(limits.header_seconds, self._slow)
            before = self.in_headers
            super().data_received(data)
            if before and self.in_headers and not self.transport.is_closing():
                self.unfinished += len(data)
                if self.unfinished > limits.header_bytes:
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
            if self.size > limits.header_bytes or len(self.headers) > limits.headers:
                self.refusal = 431
                raise _TooLarge

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self.in_headers = False
            if self.ending:
                self.cycle.keep_alive = False
            self._arm(limits.ending_seconds if self.ending else limits.answer_seconds, self._abort)

        def on_response_complete(self) -> None:
            waiting = bool(self.pipeline)
            super().on_response_complete()
            if self.transport.is_closing():
                self._arm(_CLOSING_SECONDS, self._abort)
            elif not self.in_headers and not waiting:
                self._disarm()
                self.begun = False

        def shutdown(self) -> None:
            """The service is ending: a request that has begun is answered, an idle connection is closed."""
            self.ending = True
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.keep_alive = False
                self._arm(limits.ending_seconds, self._abort)
            elif self.in_headers or self.cycle is None:
                if not self.begun:
                    self._arm(min(_LINGER_SECONDS, limits.header_seconds), self.transport.close)
            else:
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            """Answers a request that is not HTTP, whose headers are too large, or too slow."""
            status, self.refusal = self.refusal or 400, 0
            reason, phrase, message = _ANSWERS[status]
            refused(reason)
            content = json.dumps({"error": message}).encode()
            head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n"
            self.transport.write(f"{head}connection: close\r\n\r\n".encode() + content)
            self.transport.close()
            self._arm(_CLOSING_SECONDS, self._abort)

        def _slow(self) -> None:
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

    return Protocol


_ANSWERS: dict[int, tuple[str, str, str]] = {
    400: ("malformed", "Bad Request", "This is not HTTP/1.1."),
    408: ("header_time", "Request Timeout", "The headers were not complete in time."),
    431: ("headers", "Request Header Fields Too Large", "The headers are too large or too many: send less."),
}
