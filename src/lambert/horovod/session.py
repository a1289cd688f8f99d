"""The time between `init` and `shutdown`: the ranks have met and can work together."""

import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist

from lambert.horovod.channel import Channel
from lambert.horovod.coordinator import Coordinator, Settings
from lambert.horovod.execution import Executor
from lambert.horovod.negotiation import Negotiator
from lambert.horovod.place import Place
from lambert.horovod.requests import Request

HOROVOD_CYCLE_TIME = 1.0
"""Milliseconds in which requests gather before they are sent. Horovod's default."""
HOROVOD_FUSION_THRESHOLD = 64 << 20
"""Bytes of neighbouring all-reduces that share a buffer. Horovod's default."""
HOROVOD_CACHE_CAPACITY = 4096
"""Requests that are repeated as one bit. Horovod's default of 1024 is fewer than large models have parameters."""
HOROVOD_STALL_CHECK_TIME_SECONDS = 60.0
"""Horovod's default."""
HOROVOD_GLOO_TIMEOUT_SECONDS = 300.0
"""How long an operation that all ranks have ready may take, and how long they wait to meet."""

GOODBYE_SECONDS = 10.0
"""How long a shutdown waits for an operation that is running."""


@dataclass(slots=True)
class Session:
    """What `init` sets up."""

    place: Place
    hosts: list[str]
    """Name of each rank's host, by which ranks of one host find each other."""
    sets: dict[int, list[int]]
    """Ranks of each process set; 0 is all ranks."""
    negotiator: Negotiator
    executor: Executor
    coordinator: Coordinator | None
    """On rank 0."""


_current: Session | None = None
_lock = threading.RLock()
_stores: dict[tuple[str, int], dist.Store] = {}
_generation = count()


def current() -> Session:
    """The session that is open. Raises ValueError where there is none."""
    session = _current
    if session is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return session


def is_open() -> bool:
    """Whether there is a session."""
    return _current is not None


def open_session(place: Place) -> Session:
    """The session of this process, met with the other ranks where it is new. RuntimeError where they do not come."""
    global _current
    with _lock:
        if _current is None:
            _current = _meet(place)
        return _current


def close_session(reason: str) -> None:
    """Leaves the other ranks; what waits for this one fails there with the reason."""
    global _current
    with _lock:
        session, _current = _current, None
        if session is None:
            return
        session.negotiator.close(reason, GOODBYE_SECONDS)
        if session.coordinator is not None:
            session.coordinator.join(GOODBYE_SECONDS)
        session.executor.close()


def _meet(place: Place) -> Session:
    seconds = _number("HOROVOD_GLOO_TIMEOUT_SECONDS", HOROVOD_GLOO_TIMEOUT_SECONDS)
    store = dist.PrefixStore(f"lambert.horovod/{place.attempt}/{next(_generation)}", _store(place, seconds))
    coordinator = None
    if place.rank == 0:
        listener = socket.create_server((place.own_address(), 0))
        token = secrets.token_hex(16)
        coordinator = Coordinator(listener, place.size, token, _settings())
        coordinator.start()
        address, port = listener.getsockname()[:2]
        store.set("coordinator", f"{address} {port} {token}")
    address, port, token = store.get("coordinator").decode().split()
    connection = socket.create_connection((address, int(port)), timeout=seconds)
    channel = Channel(connection)
    channel.send(["hello", token, place.rank, place.host])
    hosts = _welcome(channel, place, seconds)
    connection.settimeout(None)

    executor = Executor(
        place.rank,
        store,
        seconds,
        int(_number("HOROVOD_FUSION_THRESHOLD", HOROVOD_FUSION_THRESHOLD)),
        os.environ.get("HOROVOD_GLOO_IFACE"),
    )
    sets: dict[int, list[int]] = {}

    def change(number: int, ranks: list[int] | None) -> None:
        executor.change_set(number, ranks)
        if ranks is None:
            sets.pop(number, None)
        else:
            sets[number] = ranks

    def changed(request: Request, number: int) -> int:
        change(number, list(request.numbers) if request.kind == "add_process_set" else None)
        return number

    change(0, list(range(place.size)))
    cycle = _number("HOROVOD_CYCLE_TIME", HOROVOD_CYCLE_TIME) / 1000
    negotiator = Negotiator(channel, executor.run, cycle, changed)
    return Session(place, hosts, sets, negotiator, executor, coordinator)


def _welcome(channel: Channel, place: Place, seconds: float) -> list[str]:
    deadline = time.monotonic() + seconds
    try:
        while True:
            channel.socket.settimeout(max(0.001, deadline - time.monotonic()))
            for message in channel.receive():
                hosts: list[str] = message[1]
                return hosts
    except OSError as error:
        raise RuntimeError(f"rank {place.rank} waited {seconds:g} s for all of {place.size} ranks: {error}") from error


def _store(place: Place, seconds: float) -> dist.Store:
    """Where the ranks find each other. Kept until the process ends: the next `init` meets in the same place."""
    if place.meeting is None:
        return dist.HashStore()
    store = _stores.get(place.meeting)
    if store is None:
        store = _stores[place.meeting] = dist.TCPStore(
            *place.meeting,
            place.world_size,
            is_master=place.hosts_store,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )
    return store


def _settings() -> Settings:
    disabled = os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0")
    return Settings(
        cache_capacity=int(_number("HOROVOD_CACHE_CAPACITY", HOROVOD_CACHE_CAPACITY)),
        stall_check_seconds=(
            0 if disabled else _number("HOROVOD_STALL_CHECK_TIME_SECONDS", HOROVOD_STALL_CHECK_TIME_SECONDS)
        ),
        stall_shutdown_seconds=0 if disabled else _number("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0),
    )


def _number(name: str, default: float) -> float:
    text: Any = os.environ.get(name, default)
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{name}={text!r} is not a number") from error
