"""Checks requests before the application gets them: Host, key, encoding, size and time. Cancels those whose client
leaves."""

import asyncio
import hmac
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lambert.wings.serve.admission import CURRENT, Accepted, Admission
from lambert.wings.serve.config import ServeConfig
from lambert.wings.serve.metrics import Metrics
from lambert.wings.serve.refusals import BUG, TOO_LATE, TRANSFER_ENCODING, Refusal, encode_error

OPEN_PATHS = ("/", "/healthz", "/readyz", "/metrics", "/openapi.json")
"""Paths that need no key, because they reveal nothing about texts. Bodies sent to them are not read."""
LEFT = 499
"""Status in the metrics of a request whose client left before the answer."""
_DRAINED, _DRAINED_SECONDS = 100_000_000, 5.0
"""Maximum bytes and seconds for which a refused body is still read."""
_DRAINS = 32
"""Maximum number of refused bodies that are read at the same time; beyond it, connections are closed without
reading."""


class Gate:
    """ASGI middleware. It reads the body of a request within the limits of the settings before the application sees it,
    cancels the application if the client leaves or the time runs out, and counts requests.

    Args:
        key: Key that requests must send as `Authorization: Bearer KEY`; empty: none.
        admission: Decides which requests are accepted, except those to open paths.
        report: Called with an exception of the application, which is a bug.
    """

    def __init__(
        self, app: ASGIApp, config: ServeConfig, key: str, admission: Admission, metrics: Metrics,
        report: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._app, self._key, self._metrics, self._report = app, key.encode(), metrics, report
        self._hosts, self._seconds, self._body_bytes = config.allowed_hosts, config.seconds, config.body_bytes
        self.admission, self._drains = admission, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), LEFT

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        scope.setdefault("state", {})
        self._metrics.in_flight.inc()
        try:
            await self._admit(scope, receive, note_status)
        finally:
            self._metrics.in_flight.dec()
            path, model = getattr(scope.get("route"), "path", "other"), scope["state"].get("model", "")
            self._metrics.count_answer(path, model, status, time.perf_counter() - begin)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        end = asyncio.get_running_loop().time() + self._seconds
        accepted: Accepted | None = None
        try:
            self._check_headers(scope)
            if scope["path"] in OPEN_PATHS:
                await self._run(None, scope, b"", receive, send, end)
                return
            accepted = self._accept(scope)
            async with asyncio.timeout_at(end):
                body = await self._read(accepted, receive)
            if body is not None:
                await self._run(accepted, scope, body, receive, send, end)
        except Refusal as refusal:
            if accepted is not None:
                accepted.end()
                accepted = None
            await self._refuse(receive, send, refusal)
        except TimeoutError:
            message = f"The body was not complete after {self._seconds:g} s."
            await self._refuse(None, send, Refusal(408, "body_time", message))
        finally:
            if accepted is not None:
                accepted.end()

    def _accept(self, scope: Scope) -> Accepted:
        """Accepts a request by its headers, or raises Refusal."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        announced = int(length[:18]) if length.isdigit() else 0
        self._check_size(announced)
        self.admission.check(announced)
        return Accepted(self.admission)

    async def _answer(self, accepted: Accepted | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application when it is the request's turn."""
        if accepted is not None:
            CURRENT.set(accepted)
            await accepted.wait_for_turn()
        await self._app(scope, receive, send)

    def _check_headers(self, scope: Scope) -> None:
        """Raises Refusal if the headers of a request are not acceptable."""
        headers = dict(scope["headers"])
        given_hosts = [value for name, value in scope["headers"] if name == b"host"]
        host = given_hosts[0].decode("latin-1") if len(given_hosts) == 1 else ""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if "*" not in self._hosts and name.lower() not in self._hosts:
            raise Refusal(400, "host", "This Host is not one of the service's: start it with --hosts NAME.")
        if scope["path"] in OPEN_PATHS:
            return
        if self._key:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._key):
                wrong = "This is not the service's API key. " if given else ""
                raise Refusal(401, "key", f"{wrong}Send the API key as `Authorization: Bearer KEY`.")
        if scope["method"] == "POST":
            if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
                raise Refusal(415, "encoding", "The body is compressed: send it without Content-Encoding.")
            given = b",".join(value for name, value in scope["headers"] if name == b"transfer-encoding")
            if given.strip().lower() not in (b"", b"chunked"):
                raise Refusal(501, "encoding", TRANSFER_ENCODING)

    def _check_size(self, size: int) -> None:
        """Raises Refusal if a body of this many bytes is too large."""
        if size > self._body_bytes:
            raise Refusal(413, "body", f"The body is larger than {self._body_bytes:,} bytes: send less.")

    async def _read(self, accepted: Accepted, receive: Receive) -> bytes | None:
        """Returns the body; None if the client has left. Raises Refusal if it becomes too large, if all bodies
        together do, or if it arrived so slowly that, behind the requests accepted meanwhile, it would wait too long."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part, more = message.get("body", b""), message.get("more_body", False)
            try:
                self._check_size(len(body) + len(part))
                self.admission.check_bytes(len(part))
                body += part
                accepted.add_bytes(len(part))
                if not more:
                    accepted.count()
                    return bytes(body)
            except Refusal as refusal:
                refusal.unread = more
                raise

    async def _run(
        self, accepted: Accepted | None, scope: Scope, body: bytes, receive: Receive, send: Send, end: float
    ) -> None:
        """Runs the application until it has answered, the client has left, or the time has run out before the answer
        begins."""
        given, begun = False, False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def note_start(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        task = asyncio.ensure_future(self._answer(accepted, scope, replay, note_start))
        left = asyncio.ensure_future(_wait_for_disconnect(receive))
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
            message = TOO_LATE.replace("30", f"{self._seconds:g}")
            await self._refuse(None, send, Refusal(503, "expired", message, retry=1))
        elif not begun and error is not None:  # a panic in Rust is not an Exception, which routes answer
            await self._refuse(None, send, Refusal(500, "bug", BUG, unread=False))

    async def _refuse(self, receive: Receive | None, send: Send, refusal: Refusal) -> None:
        """Answers with an error. The rest of the request is read first, within limits, because otherwise the client
        would not see the answer; without `receive`, or beyond the limits, the connection is closed."""
        self._metrics.count_refusal(refusal.reason)
        complete = not refusal.unread
        if receive is not None and refusal.unread:
            complete = await self._drain(receive)
        content = encode_error(refusal.detail)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        if not complete or refusal.status_code != 429:  # a client that should retry keeps its connection
            headers.append((b"connection", b"close"))
        if refusal.status_code == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if refusal.retry:
            headers.append((b"retry-after", str(refusal.retry).encode()))
        start: dict[str, Any] = {"type": "http.response.start", "status": refusal.status_code, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": content})

    async def _drain(self, receive: Receive) -> bool:
        """Reads the rest of a body. Returns False if its end was not reached."""
        if self._drains >= _DRAINS:
            return False
        self._drains += 1
        left = _DRAINED
        try:
            async with asyncio.timeout(min(_DRAINED_SECONDS, self._seconds)):
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


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
