"""What stands before the application: Host and key, size and time of a body, and clients that leave."""

import asyncio
import hmac
import json
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = ("/", "/healthz", "/readyz", "/metrics", "/openapi.json")
"""Paths that need no key: they tell nothing of texts."""
_DRAINED, _DRAINED_SECONDS = 100_000_000, 5.0
"""Bytes and seconds of a refused body that are still read."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Gate:
    """ASGI middleware that reads the body of a request within limits before the application sees it, and cancels the
    application if the client leaves.

    Args:
        hosts: Names that the Host header may have; "*": any.
        key: What requests must send as `Authorization: Bearer KEY`; empty: nothing.
        most_bytes: Largest body.
        seconds: Longest time until a body is complete.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], key: str, most_bytes: int, seconds: float) -> None:
        self._app, self._hosts, self._key = app, set(hosts), key.encode()
        self._most_bytes, self._seconds = most_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await self._drain(receive)
            await _refuse(send, *refusal)
            return
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._body(receive)
        except TimeoutError:
            await _refuse(send, 408, f"The body was not complete after {self._seconds:g} s.")
            return
        if body is None:
            return
        if len(body) > self._most_bytes:
            await self._drain(receive)
            await _refuse(send, 413, f"The body is larger than {self._most_bytes:,} bytes: send less.")
            return
        await self._run(scope, body, receive, send)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        host = headers.get(b"host", b"").decode("latin-1")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if "*" not in self._hosts and name.lower() not in self._hosts:
            return 400, "This Host is not one of the service's: start it with --hosts NAME."
        if self._key and scope["path"] not in OPEN_PATHS:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._key):
                return 401, "Send the API key as `Authorization: Bearer KEY`."
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._most_bytes:
            return 413, f"The body is larger than {self._most_bytes:,} bytes: send less."
        if scope["method"] in ("POST", "PUT", "PATCH"):
            kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
            if kind != "application/json":
                return 415, "The content type must be application/json."
        return None

    async def _body(self, receive: Receive) -> bytes | None:
        """Returns the body, or the beginning of one that is too large; None if the client has left."""
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._most_bytes or not message.get("more_body", False):
                return b"".join(parts)

    async def _drain(self, receive: Receive) -> None:
        """Reads what the client is still sending, within limits: a client that is sending would not see an answer."""
        left = _DRAINED
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_DRAINED_SECONDS, self._seconds)):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    async def _run(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Runs the application until it has answered or the client has left."""
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        task = asyncio.ensure_future(self._app(scope, replay, send))
        left = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        finally:
            left.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close"),
    ]  # fmt: skip
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    start: dict[str, Any] = {"type": "http.response.start", "status": status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})
