"""Runs commands and services, and measures their time, memory and disk."""

import json
import os
import socket
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from lambert.wings.bench import environments
from lambert.wings.bench.environments import UNCHANGED, Variables

T = TypeVar("T")


def free_port() -> int:
    """Returns a port of the loopback address that nothing uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def measure(command: list[str], variables: Variables = UNCHANGED) -> dict[str, Any]:
    """Runs a command with these variables beside the user's environment. Returns its seconds, its peak memory in MB,
    and the JSON object of its last line."""
    began = time.perf_counter()
    done = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environments.of(variables))
    assert done.stdout is not None
    lines = done.stdout.read().splitlines()
    _, status, used = os.wait4(done.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    last = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    return {"process_seconds": round(time.perf_counter() - began, 2), "mb": used.ru_maxrss // 1024, **last}


def compare(own: Sequence[dict[str, Any]], peer: Sequence[dict[str, Any]], name: str = "seconds") -> dict[str, Any]:
    """Returns how many times as fast as a peer Lambert was round by round: the median, and the range."""
    ratios = [theirs[name] / ours[name] for ours, theirs in zip(own, peer, strict=True)]
    return {"median": round(statistics.median(ratios), 2), "range": [round(min(ratios), 2), round(max(ratios), 2)]}


def size_of(folder: Path) -> int:
    """Returns the bytes of all files below a folder."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


@contextmanager
def serve(
    command: list[str], probe: str | urllib.request.Request, variables: Variables = UNCHANGED
) -> Iterator[subprocess.Popen[bytes]]:
    """A context with a service that has answered a request, with these variables beside the user's environment."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environments.of(variables))
    try:
        while True:
            try:
                urllib.request.urlopen(probe, timeout=60).read()
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)} ended before it answered") from None
                time.sleep(0.01)
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def sample(read: Callable[[], T], seconds: float) -> Iterator[list[T]]:
    """A context in which a thread reads a value every so many seconds, with the list of the values so far."""
    values, ended = [read()], threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            values.append(read())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield values
    finally:
        ended.set()
        thread.join()


def watch(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> dict[str, float]:
    """Runs a command that writes to `folder` and returns what it needed."""
    started, before = time.perf_counter(), os.times()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    parent = psutil.Process(process.pid)
    memory = disk = 0
    while process.poll() is None:
        try:
            for member in (parent, *parent.children(recursive=True)):
                memory = max(memory, member.memory_full_info().uss)
        except psutil.Error:
            pass
        disk = max(disk, size_of(folder))
        time.sleep(0.5)
    seconds = time.perf_counter() - started
    after = os.times()
    if process.returncode:
        assert process.stderr is not None
        raise SystemExit(f"{' '.join(command[:6])} ... failed: {process.stderr.read().decode()[-2000:]}")
    return {
        "seconds": round(seconds, 2),
        "processor_seconds": round(after.children_user + after.children_system - before[2] - before[3], 2),
        "peak_MB_of_a_process": round(memory / 1e6),
        "peak_disk_MB": round(max(disk, size_of(folder)) / 1e6),
    }
