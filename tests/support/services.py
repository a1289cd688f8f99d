"""A running service for tests: `lambert serve` in a process of its own, and a client."""

import json
import re
import shutil
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from forked import Piped
from patience import HANGS
from safetensors.torch import load_file, save_file


class Service:
    """A process that serves, at `url`."""

    def __init__(self, process: Piped, url: str) -> None:
        self.process, self.url = process, url

    def ask(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Returns the status and the content, parsed if it is JSON. A body that is bytes is sent as it is."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=HANGS) as answer:
                return answer.status, _content(answer)
        except urllib.error.HTTPError as error:
            return error.code, _content(error)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def connect(self) -> socket.socket:
        """Returns a connection that nothing was sent over."""
        return socket.create_connection(self.address, timeout=HANGS)

    def raw(self, request: bytes) -> bytes:
        """Returns what the service sends until it closes the connection."""
        with self.connect() as connection:
            with suppress(OSError):  # the service may close before it has read all
                connection.sendall(request)
            return received(connection)

    def metrics(self) -> dict[str, float]:
        """Returns the metrics by their names with labels, as in `lambert_refusals_total{reason="key"}`."""
        lines = self.ask("/metrics")[1].splitlines()
        found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in found}

    def wait_for(self, name: str, holds: Callable[[float], bool], seconds: float = HANGS) -> float:
        """Returns the value of a metric as soon as it fulfils a condition."""
        deadline = time.monotonic() + seconds
        while not holds(value := self.metrics().get(name, 0.0)):
            assert time.monotonic() < deadline, (name, value)
            time.sleep(0.01)
        return value

    def reads(self, gist: str) -> str:
        """Returns the next line that the process prints and that contains a text."""
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if gist in line:
                return line
        raise AssertionError("".join(lines))

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Sends a signal and returns the exit code and what was printed after the address."""
        self.process.send_signal(number)
        said, _ = self.process.communicate(timeout=HANGS)
        assert self.process.returncode is not None
        return self.process.returncode, said


def received(connection: socket.socket) -> bytes:
    """Returns what comes over a connection until the other side closes it."""
    parts = []
    with suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def post(path: str, body: Any, *headers: str) -> bytes:
    """Returns the bytes of a request."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""]).encode() + content


def _content(answer: Any) -> Any:
    text = answer.read().decode()
    return json.loads(text) if answer.headers.get("Content-Type", "").startswith("application/json") else text


def texts(count: int) -> list[str]:
    """Returns texts of 12 words that all differ, because equal ones are computed once."""
    words = ("the", "king", "found", "a", "river", "near", "old", "road", "under", "bright")
    return [" ".join(words[int(digit)] for digit in f"{number:012}") for number in range(count)]


def copied(folder: Path, to: Path) -> Path:
    """Copies the model folder of a run, without the sums of its files."""
    shutil.copytree(folder / "model", to)
    (to / "SHA256SUMS").unlink()
    return to


def changed(model: Path) -> Path:
    """Writes a copy of a model folder with other weights beside it."""
    other = Path(shutil.copytree(model, model.parent / "new"))
    tensors = load_file(other / "model.safetensors")
    with (model / "model.safetensors").open("rb") as opened:
        metadata = json.loads(opened.read(int.from_bytes(opened.read(8), "little"))).get("__metadata__")
    save_file({name: tensor * 1.5 for name, tensor in tensors.items()}, other / "model.safetensors", metadata)
    return other


@contextmanager
def serving(
    *models: str | Path, env: dict[str, str] | None = None, before: Callable[[Piped], None] | None = None,
    **settings: Any,
) -> Iterator[Service]:  # fmt: skip
    """A service of the models on a free port, killed at the end if it still runs. `before` is called while it starts,
    when SIGHUP waits for the end of the start."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    process = Piped("serve", "--port=0", *flags, *(f"--model={model}" for model in models), variables=env)
    try:
        while before is not None and not _blocks(process.pid, signal.SIGHUP):
            time.sleep(0.001)
        if before is not None:
            before(process)
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"serving\s+(http://\S+)", line):
                yield Service(process, found[1])
                return
        raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _blocks(process: int, number: int) -> bool:
    """Returns whether a signal to a process of Linux has to wait."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk:"))
    return bool(int(blocked.split()[1], 16) >> (number - 1) & 1)
