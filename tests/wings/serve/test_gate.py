"""What the gate admits: bodies of bounded size in all, none on open paths, and errors that are bugs."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from lambert.core.world import World
from lambert.inference.scheduler import Scheduler
from lambert.wings.serve.admission import _MOST_BODIES, Admission
from lambert.wings.serve.answering import Answering
from lambert.wings.serve.config import ServeConfig
from lambert.wings.serve.gate import _DRAINS, Gate
from lambert.wings.serve.metrics import Metrics
from lambert.wings.serve.server import load

LARGEST = 1000
CONFIG = ServeConfig(("model",), seconds=5.0, max_body_megabytes=LARGEST / 1e6)
Messages = list[dict[str, Any]]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers with the size of the body."""
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % len(body)})


def gate(app: Any = echo, key: str = "", requests: int = 1024, turns: int = 2) -> Gate:
    admission = Admission(Scheduler(World(), most_seconds=1.0), turns, requests, LARGEST)
    return Gate(app, CONFIG, key, admission, Metrics(), lambda error: None)


class Client:
    """A request whose body is sent part by part."""

    def __init__(
        self, gate: Any, path: str = "/embed", length: int | None = None, method: str = "POST", key: bytes = b""
    ) -> None:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        headers += [(b"authorization", b"Bearer " + key)] if key else []
        headers += [] if length is None else [(b"content-length", b"%d" % length)]
        self.scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode(), "query_string": b"", "headers": headers, "root_path": "", "scheme": "http",
            "server": ("localhost", 80), "client": ("localhost", 1),
        }  # fmt: skip
        self.parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: Messages = []
        self.task = asyncio.ensure_future(gate(self.scope, self.parts.get, self._keep))

    async def _keep(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def send(self, body: bytes, *, more: bool = True) -> None:
        self.parts.put_nowait({"type": "http.request", "body": body, "more_body": more})
        for _ in range(5):
            await asyncio.sleep(0)

    async def answer(self) -> tuple[int, bytes]:
        await asyncio.wait_for(self.task, 3)
        return self.sent[0]["status"], b"".join(message.get("body", b"") for message in self.sent)


def test_slow_bodies_together_are_bounded() -> None:
    async def run() -> None:
        served = gate()
        clients = [Client(served) for _ in range(4 * _MOST_BODIES)]
        for _ in range(9):
            for client in clients:
                await client.send(b"x" * (LARGEST // 10))
            assert served.admission.bytes <= _MOST_BODIES * LARGEST
        for client in clients:
            await client.send(b"", more=False)
        answers = [await client.answer() for client in clients]
        statuses = [status for status, _ in answers]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= _MOST_BODIES
        assert served.admission.bytes == 0
        assert b'lambert_refusals_total{reason="bodies"}' in served._metrics.text()

    asyncio.run(run())


def test_a_body_that_announces_more_than_there_is_room_for_is_refused_before_it_is_read() -> None:
    async def run() -> None:
        served = gate()
        clients = [Client(served, length=LARGEST) for _ in range(_MOST_BODIES)]
        for client in clients:
            await client.send(b"x" * (LARGEST - 1))
        late = Client(served, length=LARGEST)
        await late.send(b"x", more=False)
        assert (await late.answer())[0] == 429
        small = Client(served, length=_MOST_BODIES)
        await small.send(b"x" * _MOST_BODIES, more=False)
        assert await small.answer() == (200, b"%d" % _MOST_BODIES)
        for client in clients:
            await client.send(b"x", more=False)
            assert (await client.answer())[0] == 200

    asyncio.run(run())


@pytest.mark.parametrize("length", [LARGEST, None])
def test_bodies_of_open_paths_are_not_read(length: int | None) -> None:
    async def run() -> None:
        served = gate()
        client = Client(served, "/healthz", length)
        await client.send(b"x" * LARGEST)
        assert await client.answer() == (200, b"0")

    asyncio.run(run())


def test_slow_requests_without_a_key_take_no_place_of_those_with_one() -> None:
    async def run() -> None:
        served = gate(key="secret", requests=2)
        strangers = [Client(served) for _ in range(2 * _DRAINS)]
        for client in strangers:
            await client.send(b"x")
        closed = [client for client in strangers if client.sent]
        assert len(closed) == _DRAINS  # without reading their bodies
        for number in (1, 2):
            client = Client(served, key=b"secret")
            await client.send(b"x" * number, more=False)
            assert await client.answer() == (200, b"%d" % number)
        for client in strangers:
            await client.send(b"", more=False)
            assert (await client.answer())[0] == 401

    asyncio.run(run())


def test_requests_to_open_paths_take_no_place() -> None:
    ready = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/metrics":
            await ready.wait()
        await echo(scope, receive, send)

    async def run() -> None:
        served = gate(slow, requests=2)
        waiting = [Client(served, "/metrics", method="GET") for _ in range(5)]
        client = Client(served)
        await client.send(b"x", more=False)
        assert await client.answer() == (200, b"1")
        ready.set()
        assert [await client.answer() for client in waiting] == [(200, b"0")] * 5

    asyncio.run(run())


def test_a_bug_is_answered_counted_and_kept(
    tuned: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    service = load(ServeConfig((str(tuned("classify")),), precision="float32"), said.append)

    async def broken(*given: Any) -> None:
        raise ZeroDivisionError("what a client sent")

    monkeypatch.setattr(Answering, "answer", broken)

    async def run() -> None:
        client = Client(service.app)
        await client.send(b'{"inputs": "a"}', more=False)
        status, body = await client.answer()
        assert status == 500
        assert [*json.loads(body)] == ["error"]

    try:
        asyncio.run(run())
    finally:
        service.close(now=True)
    assert 'lambert_refusals_total{reason="bug"} 1.0' in service.metrics.text().decode()
    kept = Path("crash.txt").read_text()
    assert kept.startswith("lambert ")
    assert "ZeroDivisionError: what a client sent" in kept
    (line,) = said
    assert "ZeroDivisionError" in line
    assert "crash.txt" in line
    assert "client sent" not in line


def test_overload_is_refused_before_it_is_parsed_and_what_was_accepted_is_answered() -> None:
    running, most, go = 0, 0, asyncio.Event()

    async def tokenize(scope: Any, receive: Any, send: Any) -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await go.wait()
        running -= 1
        await echo(scope, receive, send)

    async def run() -> None:
        served = gate(tokenize, turns=2)
        served.admission.expect(bytes_per_second=10 * (256 + 100), tokens_per_byte=0.0)  # 10 requests of 100 bytes
        clients = [Client(served, length=100) for _ in range(15)]
        for client in clients:
            await client.send(b"x" * 100, more=False)
        refused = [await client.answer() for client in clients[11:]]  # while nothing has been computed
        assert {status for status, _ in refused} == {429}
        assert b"try again in 2 s" in refused[0][1]
        headers = dict(clients[11].sent[0]["headers"])
        assert headers[b"retry-after"] == b"2"
        assert b"connection" not in headers
        assert most == 2
        clients[5].parts.put_nowait({"type": "http.disconnect"})  # leaves the line
        await asyncio.wait_for(clients[5].task, 3)
        late = Client(served, length=100)
        await late.send(b"x" * 100, more=False)
        go.set()
        answers = [await client.answer() for client in [*clients[:5], *clients[6:11], late]]
        assert answers == [(200, b"100")] * 11
        assert most == 2
        admission = served.admission
        assert (admission.requests, admission.bytes, admission._size, admission._free_turns) == (0, 0, 0, 2)
        assert b'lambert_refusals_total{reason="overloaded"} 4.0' in served._metrics.text()

    asyncio.run(run())


def test_requests_that_arrive_at_the_same_time_see_each_other() -> None:
    async def run() -> None:
        served = gate(turns=2)
        served.admission.expect(bytes_per_second=10 * (256 + 100), tokens_per_byte=0.0)  # 10 requests of 100 bytes
        clients = [Client(served, length=100) for _ in range(40)]
        for client in clients:
            client.parts.put_nowait({"type": "http.request", "body": b"x" * 100, "more_body": False})
        answers = [await client.answer() for client in clients]
        assert [status for status, _ in answers].count(200) == 11
        assert (served.admission.requests, served.admission._size, served.admission._free_turns) == (0, 0, 2)

    asyncio.run(run())


def test_a_slow_body_for_which_there_is_no_time_any_more_is_refused_too() -> None:
    go = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await echo(scope, receive, send)

    async def run() -> None:
        served = gate(slow, turns=1)
        served.admission.expect(bytes_per_second=2 * (256 + 100), tokens_per_byte=0.0)
        late = Client(served, length=100)
        await late.send(b"x" * 99)
        clients = [Client(served, length=100) for _ in range(3)]
        for client in clients:
            await client.send(b"x" * 100, more=False)
        await late.send(b"x", more=False)
        assert (await late.answer())[0] == 429
        go.set()
        assert [await client.answer() for client in clients] == [(200, b"100")] * 3

    asyncio.run(run())


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ((b"content-encoding", b"gzip"), 415),
        ((b"content-encoding", b"identity"), 200),
        ((b"transfer-encoding", b"gzip, chunked"), 501),
        ((b"transfer-encoding", b"chunked, chunked"), 501),
        ((b"transfer-encoding", b"Chunked"), 200),
    ],
)
def test_encodings_are_refused(header: tuple[bytes, bytes], status: int) -> None:
    async def run() -> None:
        client = Client(gate())
        client.scope["headers"].append(header)
        await client.send(b"x", more=False)
        assert (await client.answer())[0] == status

    asyncio.run(run())


def test_a_panic_is_answered_and_reported() -> None:
    class Panic(BaseException):
        """As pyo3_runtime.PanicException, which is no Exception."""

    async def panics(scope: Any, receive: Any, send: Any) -> None:
        raise Panic

    async def run() -> None:
        reported: list[BaseException] = []
        served = gate(panics)
        served._report = reported.append
        client = Client(served)
        await client.send(b"x", more=False)
        status, body = await client.answer()
        assert (status, [*json.loads(body)]) == (500, ["error"])
        assert [type(error) for error in reported] == [Panic]
        assert b'lambert_refusals_total{reason="bug"} 1.0' in served._metrics.text()

    asyncio.run(run())
