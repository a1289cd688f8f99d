"""Checks requests before the application gets them: Host, key, encoding, size and time. Cancels those whose client
leaves."""

import asyncio
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lambert.wings.serve.admission import CURRENT, Accepted, Admission, Refusal
from lambert.wings.serve.metrics import Metrics

OPEN_PATHS = ("/", "/healthz", "/readyz", "/metrics", "/openapi.json")
"""Paths that need no key, because they reveal nothing about texts. Bodies sent to them are not read."""
LEFT = 499
"""Status in the metrics of a request whose client left before the answer."""
OVERLOADED = "Too much work is waiting (262,000 tokens): try again in 5 s."
TOO_LATE = "The request was not computed within 30 s: try again later, or send fewer texts."
_DRAINED, _DRAINED_SECONDS = 100_000_000, 5.0
"""Maximum bytes and seconds for which a refused body is still read."""
_DRAINS = 32
"""Maximum number of refused bodies that are read at the same time; beyond it, connections are closed without
reading."""
TRANSFER_ENCODING = "The only Transfer-Encoding that is read is chunked."
BUG = "The service has a bug, which its operator can read about."


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on requests."""

    hosts: frozenset[str]
    """Allowed names in the Host header; "*": any."""
    key: str
    """Key that requests must send as `Authorization: Bearer KEY`; empty: none."""
    body_bytes: int
    """Maximum bytes of a body."""
    seconds: float
    """Maximum seconds until a body is complete, and until the answer begins."""


class _Refused(Exception):
    """A request that is refused before the application gets it.

    Args:
        unread: The client may still be sending its body.
        retry: Seconds after which the request may be sent again; 0: never.
    """

    def __init__(self, status: int, reason: str, message: str, *, unread: bool = True, retry: int = 0) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.unread, self.retry = status, reason, message, unread, retry


class Gate:
    """ASGI middleware. It reads the body of a request within limits before the application sees it, cancels the
    application if the client leaves or the time runs out, and counts requests.

    Args:
        admission: Decides which requests are accepted, except those to open paths.
        report: Called with an exception of the application, which is a bug.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, admission: Admission, metrics: Metrics,
        report: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._app, self._limits, self._metrics, self._report = app, limits, metrics, report
        self.admission, self._drains = admission, 0

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
        accepted: Accepted | None = None
        try:
            self._check_headers(scope)
            if scope["path"] in OPEN_PATHS:
                await self._run(self._app, scope, b"", receive, send, end)
                return
            accepted = self._accept(scope)
            async with asyncio.timeout_at(end):
                body = await self._read(accepted, receive)
            if body is not None:
                await self._run(self._in_turn(accepted), scope, body, receive, send, end)
        except _Refused as refused:
            if accepted is not None:
                accepted.end()
                accepted = None
            await self._refuse(receive, send, refused)
        except TimeoutError:
            message = f"The body was not complete after {self._limits.seconds:g} s."
            await self._refuse(None, send, _Refused(408, "body_time", message))
        finally:
            if accepted is not None:
                accepted.end()

    def _accept(self, scope: Scope) -> Accepted:
        """Accepts a request by its headers, or raises _Refused."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        announced = int(length[:18]) if length.isdigit() else 0
        self._check_size(announced)
        self._check_load(self.admission.refusal(announced))
        return Accepted(self.admission)

    def _in_turn(self, accepted: Accepted) -> ASGIApp:
        """Returns the application, which starts when it is the request's turn."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            CURRENT.set(accepted)
            await accepted.turn()
            await self._app(scope, receive, send)

        return app

    def _check_headers(self, scope: Scope) -> None:
        """Raises _Refused if the headers of a request are not acceptable."""
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
        if scope["method"] == "POST":
            if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
                raise _Refused(415, "encoding", "The body is compressed: send it without Content-Encoding.")
            given = b",".join(value for name, value in scope["headers"] if name == b"transfer-encoding")
            if given.strip().lower() not in (b"", b"chunked"):
                raise _Refused(501, "encoding", TRANSFER_ENCODING)

    def _check_size(self, size: int, *, unread: bool = True) -> None:
        """Raises _Refused if a body of this many bytes is too large."""
        if size > self._limits.body_bytes:
            message = f"The body is larger than {self._limits.body_bytes:,} bytes: send less."
            raise _Refused(413, "body", message, unread=unread)

    def _check_load(self, refusal: Refusal | None, *, unread: bool = True) -> None:
        """Raises _Refused if the admission refuses a request."""
        if refusal is not None:
            raise _Refused(429, refusal.reason, refusal.message, unread=unread, retry=refusal.seconds)

    async def _read(self, accepted: Accepted, receive: Receive) -> bytes | None:
        """Returns the body; None if the client has left. Raises _Refused if it becomes too large, if all bodies
        together do, or if it arrived so slowly that, behind the requests accepted meanwhile, it would wait too long."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part, more = message.get("body", b""), message.get("more_body", False)
            self._check_size(len(body) + len(part), unread=more)
            self._check_load(self.admission.too_many_bytes(len(part)), unread=more)
            body += part
            accepted.read(len(part))
            if not more:
                self._check_load(self.admission.too_long(len(body)), unread=False)
                return bytes(body)

    async def _run(self, app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send, end: float) -> None:
        """Runs the application until it has answered, the client has left, or the time has run out before the answer
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

        task = asyncio.ensure_future(app(scope, replay, watched))
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
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._report(error)
        if not begun and not done:
            message = TOO_LATE.replace("30", f"{self._limits.seconds:g}")
            await self._refuse(None, send, _Refused(503, "expired", message, retry=1))
        elif not begun and error is not None:  # a panic in Rust is not an Exception, which routes answer
            await self._refuse(None, send, _Refused(500, "bug", BUG, unread=False))

    async def _refuse(self, receive: Receive | None, send: Send, refused: _Refused) -> None:
        """Answers with an error. The rest of the request is read first, within limits, because otherwise the client
        would not see the answer; without `receive`, or beyond the limits, the connection is closed."""
        self._metrics.refused(refused.reason)
        complete = not refused.unread
        if receive is not None and refused.unread:
            complete = await self._drain(receive)
        content = json.dumps({"error": str(refused)}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        if not complete or refused.status != 429:  # a client that should retry keeps its connection
            headers.append((b"connection", b"close"))
        if refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if refused.retry:
            headers.append((b"retry-after", str(refused.retry).encode()))
        start: dict[str, Any] = {"type": "http.response.start", "status": refused.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": content})

    async def _drain(self, receive: Receive) -> bool:
        """Reads the rest of a body. Returns False if its end was not reached."""
        if self._drains >= _DRAINS:
            return False
        self._drains += 1
        left = _DRAINED
        try:
            async with asyncio.timeout(min(_DRAINED_SECONDS, self._limits.seconds)):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return True
        except TimeoutError:
            pass
        finally:
            self._drains -= 1
        return False


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
