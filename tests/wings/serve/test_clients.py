"""Clients that leave, that are slow, that send too much, or that do not speak HTTP."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from patience import HANGS

from tests.support.services import Service, post, received, serving, texts

pytest.importorskip("fastapi")
pytestmark = pytest.mark.timeout(HANGS)
MANY = 4_000
POST = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SECONDS = 2.0


@pytest.fixture(scope="module")
def folder(tuned: Callable[[str], Path]) -> Path:
    return tuned("classify")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    with serving(f"topics={folder}", precision="float32", workers=1, max_items=MANY) as running:
        yield running
        code, said = running.end()
        assert (code, said) == (0, "")  # nothing that clients did was printed


@pytest.fixture(scope="module")
def hasty(folder: Path) -> Iterator[Service]:
    with serving(f"topics={folder}", precision="float32", seconds=SECONDS, max_requests=4) as running:
        yield running
        code, said = running.end()
        assert (code, said) == (0, "")


def test_a_client_that_leaves_is_dropped(service: Service) -> None:
    body = post("/embed", {"inputs": [f"{text} {text} {text} {text}" for text in texts(MANY)]})
    before = service.metrics()["lambert_sequences_total"]
    with service.connect() as connection:
        connection.sendall(body)
        service.wait_for("lambert_waiting_tokens", lambda tokens: tokens > 0)
    service.wait_for("lambert_waiting_tokens", lambda tokens: tokens == 0)
    time.sleep(0.3)
    assert service.metrics()["lambert_sequences_total"] - before < MANY
    service.wait_for('lambert_requests_total{model="topics",path="/embed",status="499"}', lambda count: count == 1)
    service.wait_for("lambert_requests_in_flight", lambda count: count == 1)


SLOW = {
    "silent": (b"", b""),
    "empty lines": (b"", b"\r\n"),
    "headers": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", b"x"),
    "after an answer": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n"),
    "unread body": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", b"x"),
    "body": (post("/embed", {"inputs": "a"})[:-3], b""),
    "bytes of a body": (post("/embed", {"inputs": "a" * 100})[:-100], b"a"),
}
"""What a slow client sends at first, and then again and again."""


@pytest.fixture(scope="module")
def cut_off(hasty: Service) -> dict[str, tuple[bytes, float]]:
    """What each slow client got until it was cut off, and its seconds. All are slow at the same time."""

    def ask(name: str) -> tuple[bytes, float]:
        (sent, slow), begin = SLOW[name], time.monotonic()
        with hasty.connect() as connection:
            connection.sendall(sent)
            connection.settimeout(0.2)
            answer, closed = b"", False
            while not closed:
                with suppress(TimeoutError, OSError):
                    connection.send(slow)
                try:
                    part = connection.recv(1000)
                    closed, answer = not part, answer + part
                except TimeoutError:
                    pass
                except OSError:
                    closed = True
        return answer, time.monotonic() - begin

    with ThreadPoolExecutor(len(SLOW)) as pool:
        return dict(zip(SLOW, pool.map(ask, SLOW), strict=True))


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_client_is_cut_off(name: str, cut_off: dict[str, tuple[bytes, float]]) -> None:
    (answer, seconds), (sent, _) = cut_off[name], SLOW[name]
    assert seconds > SECONDS * 0.8
    if b"X:" in sent or b"embed" in sent:
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert b"in time" in answer or b"after 2 s" in answer


@pytest.mark.parametrize("header", ["Connection: close", "Connection: keep-alive"])
def test_clients_that_do_not_read_are_cut_off(header: str, hasty: Service) -> None:
    """Their answers have 600 KB, more than the system keeps for a connection."""
    asked = post("/embed", {"inputs": ["a bird"] * 1000}, header)
    before = hasty.metrics().get('lambert_refusals_total{reason="unread"}', 0)
    connections = []
    for _ in range(4):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(hasty.address)
        connection.sendall(asked * (1 if "close" in header else 4))
        connections.append(connection)
    try:
        hasty.wait_for('lambert_refusals_total{reason="unread"}', lambda count: count == before + 4)
        hasty.wait_for("lambert_requests_in_flight", lambda count: count == 1)
        for connection in connections:
            assert len(received(connection)) < 600_000
    finally:
        for connection in connections:
            connection.close()


def test_a_client_that_reads_slowly_gets_its_whole_answer(hasty: Service) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(hasty.address)
        connection.sendall(post("/embed", {"inputs": ["a bird"] * 1000}, "Connection: close"))
        head, _, found = connection.recv(4096).partition(b"\r\n\r\n")
        length, begin = int(head.lower().partition(b"content-length: ")[2].split()[0]), time.monotonic()
        while part := connection.recv(65_536):
            found += part
            time.sleep(SECONDS * len(part) / length)
        assert time.monotonic() - begin > SECONDS
        assert len(found) == length


@pytest.mark.parametrize(
    "headers",
    [
        b"".join(b"X-%d: 1\r\n" % number for number in range(200)) + b"\r\n",
        b"X: " + b"x" * 40_000 + b"\r\n\r\n",
        b"X: " + b"x" * 10_000_000,
    ],
    ids=["many", "long", "endless"],
)
def test_headers_are_limited(headers: bytes, service: Service) -> None:
    name = 'lambert_refusals_total{reason="headers"}'
    before = service.metrics().get(name, 0)
    answer = service.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + headers)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    service.wait_for(name, lambda count: count == before + 1)


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), {400}),
        (b"SSH-2.0-OpenSSH_9.6\r\n", {400}),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", {431}),
        (b"GET / HTTP/9.9\r\n\r\n", {400}),
        (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
        (POST + b"Content-Length: -5\r\n\r\n", {400}),
        (POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", {400}),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", {0, 400}),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n", {400}),
        (b"GET /healthz HTTP/1.1\r\nHost: local\xffhost\r\nConnection: close\r\n\r\n", {400}),
        (b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", {400}),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", {400}),
        (b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade, close\r\n"
         b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n", {200}),
        (b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n", {200}),
        (b"GET //evil/..%2f%00?a=%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", {404}),
    ],
)  # fmt: skip
def test_what_is_not_http_is_refused(sent: bytes, statuses: set[int], service: Service) -> None:
    """The fixture checks that nothing was printed."""
    answer = service.raw(sent)
    assert int(answer[9:12] or b"0") in statuses, answer
    assert service.ask("/healthz")[0] == 200


def test_requests_in_a_row_on_one_connection(service: Service) -> None:
    body = post("/embed", {"inputs": "a bird"})
    with service.connect() as connection:
        connection.sendall(body * 3 + post("/embed", {"inputs": "a bird"}, "Connection: close"))
        answer = received(connection)
    assert answer.count(b"HTTP/1.1 200 OK") == 4


def test_more_requests_than_allowed_are_refused(hasty: Service) -> None:
    waiting = [hasty.connect() for _ in range(4)]
    try:
        for connection in waiting:
            connection.sendall(post("/embed", {"inputs": "a"})[:-1])
        hasty.wait_for("lambert_requests_in_flight", lambda count: count == 5)
        answer = hasty.raw(post("/embed", {"inputs": "a"}, "Connection: close"))
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1" in answer.lower()
        assert hasty.ask("/healthz")[0] == 200
        for connection in waiting:
            connection.sendall(b"}")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
    finally:
        for connection in waiting:
            connection.close()


def test_slow_requests_that_are_refused_take_no_place(hasty: Service) -> None:
    refused = [hasty.connect() for _ in range(40)]  # more than are drained at once
    try:
        for connection in refused:
            connection.sendall(post("/embed", {"inputs": "a"}).replace(b"localhost", b"elsewhere")[:-1])
        hasty.wait_for('lambert_refusals_total{reason="host"}', lambda count: count == len(refused))
        assert hasty.ask("/embed", {"inputs": "a"})[0] == 200
        for connection in refused:
            assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
    finally:
        for connection in refused:
            connection.close()
