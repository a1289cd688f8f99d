"""What stands before the application: Host and key, number and size of requests, their time, and clients that leave."""

import asyncio
import hmac
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lambert.serving.metrics import Metrics

OPEN_PATHS = ("/", "/healthz", "/readyz", "/metrics", "/openapi.json")
"""Paths that need no key: they tell nothing of texts. Bodies that are sent to them are not read."""
LEFT = 499
"""The status in the metrics of a request whose client has left before the answer."""
OVERLOADED = "Too much work is waiting (262,000 tokens): try again in 5 s."
TOO_LATE = "The request was not computed within 30 s: try again later, or send fewer texts."
_DRAINED, _DRAINED_SECONDS = 100_000_000, 5.0
"""Bytes and seconds of a refused body that are still read."""
_DRAINS = 32
"""Most refused bodies that are read at once; beyond it, the connection is closed without reading."""
_PLACES = 32
"""All bodies in memory together have at most the size of this number of largest ones."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests may be."""

    hosts: frozenset[str]
    """Names that the Host header may have; "*": any."""
    key: str
    """What requests must send as `Authorization: Bearer KEY`; empty: nothing."""
    body_bytes: int
    """Largest body."""
    requests: int
    """Most requests at once, without those that are refused and those to open paths."""
    seconds: float
    """Longest time until a body is complete, and until the answer begins."""


class _Refused(Exception):
    """A request that the application does not get. `unread`: the client may still be sending its body."""

    def __init__(self, status: int, reason: str, message: str, *, unread: bool = True) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.unread = status, reason, message, unread


class Gate:
    """ASGI middleware that reads the body of a request within limits before the application sees it, cancels the
    application if the client leaves or the time is over, and counts.

    Args:
        report: Gets an exception of the application, which is a bug. The application has answered.
    """

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics, report: Callable[[BaseException], None]) -> None:
        self._app, self._limits, self._metrics, self._report = app, limits, metrics, report
        self._requests, self._bytes, self._drains = 0, 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), LEFT

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        scope.setdefault("state", {})
        self._metrics.in_flight.inc()
        try:
            await self._admit(scope, receive, counted)
        finally:
            self._metrics.in_flight.dec()
            path, model = getattr(scope.get("route"), "path", "other"), scope["state"].get("model", "")
            self._metrics.answered(path, model, status, time.perf_counter() - begin)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        end = asyncio.get_running_loop().time() + self._limits.seconds
        body = bytearray()
        try:
            self._check_headers(scope)
            with self._counted(scope["path"]):
                async with asyncio.timeout_at(end):
                    whole = scope["path"] in OPEN_PATHS or await self._read(body, receive)
                if whole:
                    await self._run(scope, bytes(body), receive, send, end)
        except _Refused as refused:
            self._release(body)
            await self._refuse(
                receive if refused.unread else None, send, refused.status, refused.reason, refused.message
            )
        except TimeoutError:
            message = f"The body was not complete after {self._limits.seconds:g} s."
            await self._refuse(None, send, 408, "body_time", message)
        finally:
            self._release(body)

    def _check_headers(self, scope: Scope) -> None:
        """Raises _Refused for a request that is refused by its headers."""
        limits, headers = self._limits, dict(scope["headers"])
        given_hosts = [value for name, value in scope["headers"] if name == b"host"]
        host = given_hosts[0].decode("latin-1") if len(given_hosts) == 1 else ""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if "*" not in limits.hosts and name.lower() not in limits.hosts:
            raise _Refused(400, "host", "This Host is not one of the service's: start it with --hosts NAME.")
        if scope["path"] in OPEN_PATHS:
            return
        if limits.key:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), limits.key.encode()):
                raise _Refused(401, "key", "Send the API key as `Authorization: Bearer KEY`.")
        length = headers.get(b"content-length", b"0")
        if length.isdigit():
            announced = int(length[:18])
            self._check_size(announced, announced)

    @contextmanager
    def _counted(self, path: str) -> Iterator[None]:
        """Counts a request that may be answered, unless its path is open. Raises _Refused if there are too many."""
        if path in OPEN_PATHS:
            yield
            return
        if self._requests >= self._limits.requests:
            raise _Refused(429, "requests", f"{self._requests:,} requests are being answered: try again in 1 s.")
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def _check_size(self, size: int, more: int, *, unread: bool = True) -> None:
        """Raises _Refused for a body of `size` bytes, of which `more` are not in memory yet, if it is too large or if
        all bodies together would be."""
        if size > self._limits.body_bytes:
            message = f"The body is larger than {self._limits.body_bytes:,} bytes: send less."
            raise _Refused(413, "body", message, unread=unread)
        if self._bytes + more > _PLACES * self._limits.body_bytes:
            message = f"{self._bytes:,} bytes of bodies are in memory: try again in 1 s."
            raise _Refused(429, "bodies", message, unread=unread)

    async def _read(self, body: bytearray, receive: Receive) -> bool:
        """Appends the body; False if the client has left. Raises _Refused if the body becomes too large, or all bodies
        together would."""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            part, more = message.get("body", b""), message.get("more_body", False)
            self._check_size(len(body) + len(part), len(part), unread=more)
            body += part
            self._bytes += len(part)
            if not more:
                return True

    def _release(self, body: bytearray) -> None:
        self._bytes -= len(body)
        body.clear()

    async def _run(self, scope: Scope, body: bytes, receive: Receive, send: Send, end: float) -> None:
        """Runs the application until it has answered, the client has left, or the time is over before the answer
        begins."""
        given, begun = False, False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        task = asyncio.ensure_future(self._app(scope, replay, watched))
        left = asyncio.ensure_future(_disconnected(receive))
        try:
            in_time = max(0.0, end - asyncio.get_running_loop().time())
            done, _ = await asyncio.wait((task, left), timeout=in_time, return_when=asyncio.FIRST_COMPLETED)
            if not done and begun:
                done, _ = await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            left.cancel()
        if not done and not begun:
            message = TOO_LATE.replace("30", f"{self._limits.seconds:g}")
            await self._refuse(None, send, 503, "expired", message)
        elif not task.cancelled() and (error := task.exception()) is not None:
            self._report(error)

    async def _refuse(self, receive: Receive | None, send: Send, status: int, reason: str, message: str) -> None:
        """Answers with an error, and closes the connection. If the client may still be sending (`receive`), what it
        sends is read before, within limits: it would not see the answer otherwise."""
        self._metrics.refused(reason)
        if receive is not None:
            await self._drain(receive)
        content = json.dumps({"error": message}).encode()
        headers: list[tuple[bytes, bytes]] = [
            (b"content-type", b"application/json"), (b"content-length", str(len(content)).encode()),
            (b"connection", b"close"),
        ]  # fmt: skip
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if status in (429, 503):
            headers.append((b"retry-after", b"1"))
        start: dict[str, Any] = {"type": "http.response.start", "status": status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": content})

    async def _drain(self, receive: Receive) -> None:
        if self._drains >= _DRAINS:
            return
        self._drains += 1
        left = _DRAINED
        try:
            async with asyncio.timeout(min(_DRAINED_SECONDS, self._limits.seconds)):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            pass
        finally:
            self._drains -= 1


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
