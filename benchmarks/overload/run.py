"""`lambert serve` at five times its capacity: how many requests are answered, how soon the others are refused.

    python -m benchmarks.overload.run --out benchmarks/overload/log.jsonl

For 1, 8 and 64 texts a request, in turn, for `--rounds` rounds: a closed loop of `--connections` connections measures
the capacity, then an open loop sends requests at 5 times that rate (a Poisson process, whatever the service does), and
the closed loop is repeated. Service, generator and everything else share the cores of this machine: the generator is
lean (one process, no parsing but of the status and the length), and the closed loops around each open loop show what
else was running. The model is tiny (two layers of 128, random weights), so that HTTP, JSON and tokens are most of the
work, which is the hard case; `--layers` and `--width` make a larger one. Appends a line of JSON for each load to
`--out`, and prints a table.
"""

import argparse
import asyncio
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import psutil
import torch
import uvloop
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from benchmarks.serving.load import percentile
from benchmarks.support.experiment import append
from benchmarks.support.processes import sample, serve

PATIENCE = 60.0
"""Seconds after the last request of an open loop in which answers are waited for; a request without one is lost."""


KEPT = 8.0
"""Seconds after which an idle connection is not used again: the service closes it after 10, and a request that is sent
at that moment is lost on the way (RFC 9112, section 9.3.1)."""


class Connection(asyncio.Protocol):
    """A connection that sends a request and hands over the status of the answer."""

    def __init__(self, load: "Load") -> None:
        self.load, self.due, self.data, self.busy, self.idle_since = load, 0.0, b"", False, 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, request: bytes, due: float) -> None:
        self.due, self.data, self.busy = due, b"", True
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.data = self.data + data if self.data else data
        head, ended, body = self.data.partition(b"\r\n\r\n")
        if not ended:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        if len(body) >= int(lower[at + 15 :].split(b"\r\n", 1)[0]):
            self.busy = False
            self.load.end(self, head[9:12].decode(), b"connection: close" not in lower)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.busy:
            self.busy = False
            self.load.end(self, "lost", False)
        elif self in self.load.idle:
            self.load.idle.remove(self)


class Load:
    """Requests to a service, and what they ended with."""

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self.port, self.requests, self.sent = port, requests, 0
        self.idle: deque[Connection] = deque()
        self.statuses: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {}
        self.late: list[float] = []
        self.waiting = 0
        self.again = False
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, due: float) -> None:
        """Sends the next request over an idle connection or a new one."""
        self.waiting += 1
        request = self.requests[self.sent % len(self.requests)]
        self.sent += 1
        while self.idle:
            connection = self.idle.pop()
            if time.perf_counter() - connection.idle_since < KEPT:
                connection.send(request, due)
                return
            connection.transport.close()
        task = asyncio.ensure_future(self._connect(request, due))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _connect(self, request: bytes, due: float) -> None:
        try:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(lambda: Connection(self), "127.0.0.1", self.port)
        except OSError:
            self.statuses["lost"] += 1
            self.waiting -= 1
            return
        connection.send(request, due)

    def end(self, connection: Connection, status: str, keep: bool) -> None:
        now = time.perf_counter()
        self.waiting -= 1
        self.statuses[status] += 1
        self.seconds.setdefault(status, []).append(now - connection.due)
        if keep:
            connection.idle_since = now
            self.idle.append(connection)
        else:
            connection.transport.close()
        if self.again:
            self.begin(now)

    async def open_loop(self, rate: float, seconds: float, seed: int) -> None:
        """Requests at the times of a Poisson process."""
        draw, begin = random.Random(seed), time.perf_counter()
        due = begin + draw.expovariate(rate)
        while due < begin + seconds:
            now = time.perf_counter()
            while due <= now and due < begin + seconds:
                self.late.append(now - due)
                self.begin(due)
                due += draw.expovariate(rate)
            await asyncio.sleep(max(0.0005, due - time.perf_counter()))
        deadline = time.perf_counter() + PATIENCE
        while self.waiting and time.perf_counter() < deadline:
            await asyncio.sleep(0.01)
        self.statuses["lost"] += self.waiting

    async def closed_loop(self, connections: int, seconds: float) -> None:
        """Connections that send the next request when they have the answer to the last one. The first fifth of the
        time is not counted."""
        self.again = True
        for _ in range(connections):
            self.begin(time.perf_counter())
        await asyncio.sleep(seconds / 5)
        self.statuses.clear()
        self.seconds.clear()
        await asyncio.sleep(4 * seconds / 5)
        self.again = False
        counted, times = self.statuses.copy(), {status: [*several] for status, several in self.seconds.items()}
        while self.waiting:
            await asyncio.sleep(0.01)
        self.statuses, self.seconds = counted, times


def row(load: Load) -> dict[str, Any]:
    """What a load ended with."""
    good, refused = load.seconds.get("200", []), load.seconds.get("429", [])
    return {
        "statuses": dict(load.statuses),
        "ms": {name: percentile(good, share) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))},
        "refused_ms": {name: percentile(refused, share) for name, share in (("p50", 0.5), ("p99", 0.99))},
        "late_ms": percentile(load.late, 0.99),
    }


def write_model(folder: Path, layers: int, width: int) -> list[str]:
    """Writes a model with random weights, and returns the words that it knows."""
    draw, letters = random.Random(0), "abcdefghijklmnopqrstuvwxyz"
    words = [*dict.fromkeys("".join(draw.choices(letters, k=draw.randint(2, 8))) for _ in range(2000))]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *words]
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)) + "\n", encoding="utf-8")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    names = {0: "bad", 1: "good"}
    config = BertConfig(
        vocab_size=len({*pieces}), hidden_size=width, num_hidden_layers=layers, num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width, id2label=names, label2id={name: number for number, name in names.items()},
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    return words


def requests(words: list[str], texts: int, path: str) -> list[bytes]:
    """Requests of so many texts of 6 to 18 words."""
    draw, found = random.Random(texts), []
    for _ in range(200):
        inputs = [" ".join(draw.choices(words, k=draw.randint(6, 18))) for _ in range(texts)]
        body = json.dumps({"inputs": inputs}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        found.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return found


def measure(args: argparse.Namespace, process: psutil.Process, sent: list[bytes], seed: int) -> dict[str, Any]:
    """A closed loop, an open loop at a multiple of its rate, and a closed loop."""

    def closed() -> tuple[float, dict[str, Any]]:
        load = Load(args.port, sent)
        uvloop.run(load.closed_loop(args.connections, args.closed_seconds))
        return load.statuses["200"] / (0.8 * args.closed_seconds), row(load)

    before, first = closed()
    load, used, begin = Load(args.port, sent), process.cpu_times(), time.perf_counter()
    with sample(lambda: process.memory_info().rss >> 20, 0.5) as memory:
        uvloop.run(load.open_loop(args.times * before, args.seconds, seed))
    seconds, spent = time.perf_counter() - begin, process.cpu_times()
    after, last = closed()
    answered, capacity = load.statuses["200"], (before + after) / 2
    refused = sorted(load.seconds.get("429", []))
    return {
        "capacity": [round(before, 1), round(after, 1)], "offered": round(args.times * before, 1),
        "seconds": round(seconds, 1), "answers_per_second": round(answered / seconds, 1),
        "share": round(answered / seconds / capacity, 3),
        "refused_in_50_ms": round(sum(value <= 0.05 for value in refused) / len(refused), 4) if refused else None,
        "lost": sum(count for status, count in load.statuses.items() if status not in ("200", "429")),
        "memory_mb": [memory[0], max(memory), memory[-1]],
        "cpu_seconds": round(spent.user + spent.system - used.user - used.system, 1),
        "open": row(load), "closed": [first, last], "load_average": round(psutil.getloadavg()[0], 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--path", default="/embed")
    parser.add_argument("--times", type=float, default=5.0, help="rate of the open loop, in capacities")
    parser.add_argument("--seconds", type=float, default=60.0, help="of an open loop")
    parser.add_argument("--closed-seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=32, help="of the closed loop")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--port", type=int, default=8767)
    parser.add_argument("--flags", nargs="*", default=[], help="more flags of lambert serve")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print(f"{'texts':>5} {'capacity':>15} {'offered':>8} {'share':>6} {'200':>7} {'429':>7} {'lost':>5} "
          f"{'429 p99 ms':>10} {'memory MiB':>14} {'load':>5}")  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "model")
        words = write_model(folder, args.layers, args.width)
        command = [sys.executable, "-P", "-m", "lambert", "serve", f"--model={folder}", f"--port={args.port}"]
        command += args.flags
        for number in range(args.rounds):
            for texts in args.texts:
                with serve(command, f"http://127.0.0.1:{args.port}/readyz") as process:
                    sent = requests(words, texts, args.path)
                    found = measure(args, psutil.Process(process.pid), sent, number)
                append(args.out, {"texts": texts, "round": number, "width": args.width, **found})
                statuses = found["open"]["statuses"]
                print(f"{texts:5} {found['capacity']!s:>15} {found['offered']:8} {found['share']:6} "
                      f"{statuses.get('200', 0):7} {statuses.get('429', 0):7} {found['lost']:5} "
                      f"{found['open']['refused_ms']['p99']!s:>10} {found['memory_mb']!s:>14} "
                      f"{found['load_average']:5}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
