"""A load generator for HTTP services on this machine: open loop at a rate, or closed loop with connections that are
never idle.

    python -m benchmarks.serving.load --url http://127.0.0.1:8000/embed --bodies FILE --rate 50 --seconds 20
    python -m benchmarks.serving.load --url http://127.0.0.1:8000/embed --bodies FILE --connections 16 --seconds 20

Each line of `--bodies` is the body of a request; they are sent in turn. With `--rate`, requests begin at the times of a
Poisson process whatever the service does, and a latency counts from the time at which the request was to begin, so that
a service that stalls is not spared the requests of that time (coordinated omission). Prints one line of JSON: requests
by status, answers per second, latencies in milliseconds (answers with status 200), and how late the generator was.
"""

import argparse
import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Found:
    """What the requests of a run ended with."""

    latencies: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    """When answers with status 200 were complete."""
    statuses: dict[str, int] = field(default_factory=dict)
    late: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    """Latencies of answers with status 429 or 503."""

    def add(self, status: str, seconds: float) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status == "200":
            self.latencies.append(seconds)
            self.ends.append(time.perf_counter())
        elif status in ("429", "503"):
            self.refused.append(seconds)


class Client:
    """Connections to a service, kept open between requests."""

    def __init__(self, url: str, bodies: list[bytes]) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        head = f"POST {parts.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
        self.requests = [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.sent = 0

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """An idle connection that the service has not closed, or a new one."""
        while self.idle:
            pair = self.idle.pop()
            if not pair[0].at_eof():
                return pair
            pair[1].close()
        return await asyncio.open_connection(self.host, self.port, limit=2**24)

    async def ask(self) -> str:
        """Sends the next request and returns the status of its answer, or the name of an error."""
        request = self.requests[self.sent % len(self.requests)]
        self.sent += 1
        try:
            reader, writer = await self.connection()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").lower().split("\r\n")
            length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
            await reader.readexactly(length)
            if "connection: close" in lines:
                writer.close()
            else:
                self.idle.append((reader, writer))
            return lines[0].split(" ")[1]
        except (OSError, asyncio.IncompleteReadError) as error:
            return type(error).__name__


async def open_loop(client: Client, rate: float, seconds: float, seed: int) -> tuple[Found, float]:
    """Requests at the times of a Poisson process. Returns also the answers per second."""
    draw, found, tasks = random.Random(seed), Found(), []
    begin = time.perf_counter()
    due = begin

    async def one(due: float) -> None:
        status = await client.ask()
        found.add(status, time.perf_counter() - due)

    while (due := due + draw.expovariate(rate)) < begin + seconds:
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        found.late.append(max(0.0, time.perf_counter() - due))
        tasks.append(asyncio.ensure_future(one(due)))
    await asyncio.gather(*tasks)
    return found, len(found.ends) / (time.perf_counter() - begin)


async def closed_loop(client: Client, connections: int, seconds: float) -> tuple[Found, float]:
    """Connections that send the next request when they have the answer to the last one. Returns also the answers per
    second while all connections were busy, after the first fifth of the time."""
    found = Found()
    begin = time.perf_counter()

    async def one() -> None:
        while (sent := time.perf_counter()) < begin + seconds:
            found.add(await client.ask(), time.perf_counter() - sent)

    await asyncio.gather(*(one() for _ in range(connections)))
    counted = [end for end in found.ends if begin + 0.2 * seconds <= end < begin + seconds]
    return found, len(counted) / (0.8 * seconds)


def percentile(values: list[float], share: float) -> float | None:
    """In milliseconds; None without values."""
    ordered = sorted(values)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) if ordered else None


def run(
    url: str, bodies: list[bytes], *, rate: float = 0.0, connections: int = 0, seconds: float = 10.0, seed: int = 0
) -> dict[str, Any]:
    """Runs one load and returns what is printed."""
    client = Client(url, bodies)
    loop = open_loop(client, rate, seconds, seed) if rate else closed_loop(client, connections, seconds)
    began = time.perf_counter()
    found, per_second = asyncio.run(loop)
    took = time.perf_counter() - began
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {
        **({"rate": rate} if rate else {"connections": connections}), "seconds": round(took, 2),
        "statuses": found.statuses, "answers_per_second": round(per_second, 2),
        "ms": {name: percentile(found.latencies, share) for name, share in shares.items()},
        "refused_ms": percentile(found.refused, 0.99), "late_ms": percentile(found.late, 0.99),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--bodies", type=Path, required=True, help="a body a line")
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second, open loop")
    parser.add_argument("--connections", type=int, default=16, help="of the closed loop")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    bodies = args.bodies.read_bytes().splitlines()
    print(
        json.dumps(
            run(args.url, bodies, rate=args.rate, connections=args.connections, seconds=args.seconds, seed=args.seed)
        )
    )


if __name__ == "__main__":
    main()
