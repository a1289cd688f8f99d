"""The time between `init` and `shutdown`: the ranks have met and can work together."""

import logging
import os
import secrets
import socket
import threading
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

from lambert.horovod.channel import Channel
from lambert.horovod.coordinator import Coordinator, Settings
from lambert.horovod.exceptions import HorovodInternalError
from lambert.horovod.execution import Executor
from lambert.horovod.launch import Launch
from lambert.horovod.negotiation import Negotiator
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
"""How long an operation that all ranks have ready may take. Horovod's 30 is too short for slow networks."""
HOROVOD_START_TIMEOUT = 120.0
"""Seconds in which the ranks have to meet."""

LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""What HOROVOD_LOG_LEVEL may say, as Python's levels. Stalls are warnings."""

GOODBYE_SECONDS = 10.0
"""How long a shutdown waits for an operation that is running."""


@dataclass(slots=True)
class Session:
    """What `init` sets up."""

    launch: Launch
    hosts: list[str]
    """Name of each rank's host, by which ranks of one host find each other."""
    sets: dict[int, list[int]]
    """Ranks of each process set; 0 is all ranks."""
    negotiator: Negotiator
    executor: Executor
    coordinator: Coordinator | None
    """On rank 0."""


_open: list[Session] = []
"""Empty, or the one session."""
_lock = threading.RLock()
_stores: dict[tuple[str, int], TCPStore] = {}
_meetings: Counter[str] = Counter()


def current() -> Session:
    """The session that is open. Raises ValueError where there is none."""
    try:
        return _open[0]
    except IndexError:
        raise ValueError("Horovod has not been initialized; use hvd.init().") from None


def is_open() -> bool:
    """Whether there is a session."""
    return bool(_open)


def open_session(launch: Launch) -> Session:
    """The session of this process, met with the other ranks where it is new.

    Raises HorovodInternalError where they do not come within HOROVOD_START_TIMEOUT seconds.
    """
    with _lock:
        if not _open:
            seconds = _number("HOROVOD_START_TIMEOUT", HOROVOD_START_TIMEOUT)
            try:
                _open.append(_meet(launch, seconds))
            except (OSError, RuntimeError) as error:
                text = " ".join(str(error).split())[:300]
                who = f"rank {launch.rank} of {launch.size}"
                raise HorovodInternalError(
                    f"{who} did not meet the others at {launch.meeting} in {seconds:g} s: {text}"
                ) from error
        return _open[0]


def close_session(reason: str) -> None:
    """Leaves the other ranks; what waits for this one fails there with the reason."""
    with _lock:
        if not _open:
            return
        session = _open.pop()
        session.negotiator.close(reason, GOODBYE_SECONDS)
        if session.coordinator is not None:
            session.coordinator.join(GOODBYE_SECONDS)
        session.executor.close()


def _meet(launch: Launch, seconds: float) -> Session:
    if "HOROVOD_GLOO_IFACE" in os.environ:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", os.environ["HOROVOD_GLOO_IFACE"])
    level = LEVELS.get(os.environ.get("HOROVOD_LOG_LEVEL", "").upper())
    if level is not None:
        logging.getLogger("lambert.horovod").setLevel(level)
    store = PrefixStore(f"lambert.horovod/{launch.attempt}/{_meetings[launch.attempt]}", _store(launch, seconds))
    _meetings[launch.attempt] += 1
    coordinator = None
    if launch.rank == 0:
        listener = socket.create_server((launch.own_address(), 0))
        token = secrets.token_hex(16)
        coordinator = Coordinator(listener, launch.size, token, _settings())
        coordinator.start()
        address, port = listener.getsockname()[:2]
        store.set("coordinator", f"{address} {port} {token}")
    address, port, token = store.get("coordinator").decode().split()
    connection = socket.create_connection((address, int(port)), timeout=seconds)
    channel = Channel(connection)
    connection.settimeout(None)
    channel.send(["hello", token, launch.rank, launch.host])
    executor = Executor(
        launch.rank,
        store,
        _number("HOROVOD_GLOO_TIMEOUT_SECONDS", HOROVOD_GLOO_TIMEOUT_SECONDS),
        int(_number("HOROVOD_FUSION_THRESHOLD", HOROVOD_FUSION_THRESHOLD)),
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

    change(0, list(range(launch.size)))
    cycle = _number("HOROVOD_CYCLE_TIME", HOROVOD_CYCLE_TIME) / 1000
    negotiator = Negotiator(channel, executor, cycle, changed)
    hosts = negotiator.meet(seconds)
    return Session(launch, hosts, sets, negotiator, executor, coordinator)


def _store(launch: Launch, seconds: float) -> HashStore | TCPStore:
    """Where the ranks find each other. Kept until the process ends: the next `init` meets in the same place."""
    if launch.meeting is None:
        return HashStore()
    store = _stores.get(launch.meeting)
    if store is None:
        store = _stores[launch.meeting] = TCPStore(
            *launch.meeting,
            launch.world_size,
            is_master=launch.hosts_store,
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
