"""The session between `init` and `shutdown`, in which the ranks are connected."""

import logging
import os
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]

from lambert.core.errors import LambertError, UsageError
from lambert.distributed.launch_environment import ProcessInfo, address_toward, process_info
from lambert.distributed.rendezvous import meet
from lambert.wings.horovod.channel import Channel
from lambert.wings.horovod.coordinator import GOODBYE_SECONDS, Coordinator
from lambert.wings.horovod.exceptions import HorovodInternalError
from lambert.wings.horovod.execution import Executor
from lambert.wings.horovod.negotiation import Negotiator
from lambert.wings.horovod.requests import to_one_line

DEFAULTS: dict[str, float] = {
    "HOROVOD_CYCLE_TIME": 1.0,  # milliseconds during which requests are collected before they are sent
    "HOROVOD_FUSION_THRESHOLD": 64 << 20,  # maximum bytes of adjacent all-reduces that share a fusion buffer
    # Maximum number of requests that are repeated as one bit. Horovod's 1024 is less than the number of parameters of
    # large models.
    "HOROVOD_CACHE_CAPACITY": 4096,
    "HOROVOD_STALL_CHECK_TIME_SECONDS": 60.0,  # after which a waiting request causes a warning; 0: never
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": 0.0,  # after which a waiting request ends the job; 0: never
    # Seconds that a collective may take after all ranks have requested it. Horovod's 30 is too short for slow networks.
    "HOROVOD_GLOO_TIMEOUT_SECONDS": 300.0,
    "HOROVOD_START_TIMEOUT": 120.0,  # seconds within which all ranks must connect
}
"""Environment variables with numbers, and their defaults, which are Horovod's unless a comment says otherwise."""


@dataclass(slots=True)
class Session:
    """The objects that `init` creates."""

    process: ProcessInfo
    """The rank of this process and the number of ranks, among those of `init(comm=...)`."""
    hosts: list[str]
    """Name of each rank's host. Ranks of one host have equal names."""
    negotiator: Negotiator
    executor: Executor
    coordinator: Coordinator | None
    """The coordinator on rank 0, None on the other ranks."""


_open: list[Session] = []
"""Contains the open session, if there is one."""
_lock = threading.RLock()
_stores: dict[tuple[str, int], Store] = {}
_sessions: Counter[str] = Counter()
"""Number of sessions that this process has opened, by the prefix of their keys in the store."""


def current() -> Session:
    """Returns the open session. Raises ValueError if there is none."""
    try:
        return _open[0]
    except IndexError:
        raise ValueError("Horovod has not been initialized; use hvd.init().") from None


def is_open() -> bool:
    """Returns whether a session is open."""
    return bool(_open)


def open_session(comm: Sequence[int] = ()) -> Session:
    """Returns the session of this process, and connects to the other ranks if no session is open.

    Args:
        comm: The ranks that take part; empty: all ranks.

    Raises:
        ValueError: A variable of the environment is missing or invalid, or `comm` is.
        HorovodInternalError: The other ranks did not connect within HOROVOD_START_TIMEOUT seconds.
    """
    with _lock:
        if not _open:
            seconds = _read_number("HOROVOD_START_TIMEOUT")
            try:
                world = process_info()
            except UsageError as error:
                raise ValueError(str(error)) from None
            process = _among(comm, world) if comm else world
            prefix = f"lambert.horovod/{os.environ.get('HOROVOD_ELASTIC_GENERATION')}/{','.join(map(str, comm))}"
            _sessions[prefix] += 1
            try:
                store = HashStore() if process.size == 1 else _store(world, seconds)
                _open.append(_connect(process, PrefixStore(f"{prefix}/{_sessions[prefix]}", store), seconds))
            except (OSError, RuntimeError, LambertError) as error:
                raise HorovodInternalError(
                    f"rank {process.rank} of {process.size} did not reach the others at "
                    f"{(process.address, process.port)} in {seconds:g} s: {to_one_line(error)[:300]}"
                ) from error
        return _open[0]


def close_session(reason: str) -> None:
    """Closes the session. Collectives for which other ranks still wait fail there with the reason."""
    with _lock:
        if not _open:
            return
        session = _open.pop()
        session.negotiator.close(reason, GOODBYE_SECONDS)
        if session.coordinator is not None:
            session.coordinator.join(GOODBYE_SECONDS)
        session.executor.close(GOODBYE_SECONDS)


def _among(ranks: Sequence[int], process: ProcessInfo) -> ProcessInfo:
    """Returns the ProcessInfo of this process among `ranks`."""
    rank, size = process.rank, process.size
    if rank not in ranks or not all(0 <= other < size for other in ranks) or len(set(ranks)) != len(ranks):
        raise ValueError(f"init(comm={list(ranks)}) takes distinct ranks below {size}, including this one, {rank}")
    return replace(process, rank=list(ranks).index(rank), size=len(ranks))


def _connect(process: ProcessInfo, store: PrefixStore, seconds: float) -> Session:
    if "HOROVOD_GLOO_IFACE" in os.environ:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", os.environ["HOROVOD_GLOO_IFACE"])
    # Stalls are logged as warnings.
    levels = {"TRACE": logging.DEBUG, **logging.getLevelNamesMapping()}
    level = levels.get(os.environ.get("HOROVOD_LOG_LEVEL", "").upper())
    if level is not None:
        logging.getLogger("lambert.horovod").setLevel(level)
    coordinator = None
    if process.rank == 0:
        listener = socket.create_server((_own_address(process), 0))
        token = secrets.token_hex(16)
        warn, end = (_read_number(f"HOROVOD_STALL_{name}_TIME_SECONDS") for name in ("CHECK", "SHUTDOWN"))
        if os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0"):
            warn = end = 0.0
        capacity = int(_read_number("HOROVOD_CACHE_CAPACITY"))
        coordinator = Coordinator(listener, process.size, token, capacity, warn, end)
        coordinator.start()
        address, port = listener.getsockname()[:2]
        store.set("coordinator", f"{address} {port} {token}")
    address, port, token = store.get("coordinator").decode().split()
    connection = socket.create_connection((address, int(port)), timeout=seconds)
    channel = Channel(connection)
    connection.settimeout(None)
    channel.send(["hello", token, process.rank, os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()])
    timeout, fusion_bytes = _read_number("HOROVOD_GLOO_TIMEOUT_SECONDS"), int(_read_number("HOROVOD_FUSION_THRESHOLD"))
    executor = Executor(process.rank, store, timeout, fusion_bytes)
    executor.change_set(0, list(range(process.size)))
    negotiator = Negotiator(channel, executor, _read_number("HOROVOD_CYCLE_TIME") / 1000)
    hosts = negotiator.meet(seconds)
    return Session(process, hosts, negotiator, executor, coordinator)


def _store(process: ProcessInfo, seconds: float) -> Store:
    """Returns the rendezvous store. It is kept until the process ends, because the next `init` uses the same store."""
    address = process.address, process.port
    if address not in _stores:
        _stores[address] = meet(process, seconds)
    return _stores[address]


def _own_address(process: ProcessInfo) -> str:
    """Returns the address at which the other ranks reach this host: that of the interface toward the store."""
    if process.local_size >= process.size:
        return "127.0.0.1"
    address = address_toward(process.address, process.port)
    if address.startswith("127.") and process.address not in ("127.0.0.1", "localhost"):
        # Some systems assign a loopback address to their own name. Other hosts reach the outward interface.
        address = address_toward("192.0.2.1")  # reserved for documentation, RFC 5737
    return address


def _read_number(name: str) -> float:
    text: Any = os.environ.get(name, DEFAULTS[name])
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{name}={text!r} is not a number") from error
