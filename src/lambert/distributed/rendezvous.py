"""Rendezvous: all ranks connect to a key-value store on rank 0's host and check one another before the first
collective."""

import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from lambert.core.errors import LambertError, MachineError
from lambert.distributed.launch_environment import ProcessInfo

_LINGER_SECONDS = 2.0
"""How long rank 0 waits, before it exits and the store ends with it, for the other ranks to read the reason."""
_REPLY_SECONDS = 2.0
"""Added to torch's time-out for reaching the store, so that torch's own error arrives first."""
_NAMED = 8
"""Largest number of ranks that one error message names."""
_VERDICT, _HERE, _READ = "lambert/verdict", "lambert/here/{}", "lambert/read verdict/{}"
"""Keys of the verdict, of a rank that has arrived, and of a rank that has read the verdict."""

_meetings: Counter[tuple[str, int]] = Counter()
"""How often this process has called `meet`, by the address of the store."""


def meet(here: ProcessInfo, seconds: float) -> Store:
    """Returns the store that all ranks share. Raises MachineError if it cannot be reached within `seconds`."""
    promise: Future[Store] = Future()
    until = time.monotonic() + seconds
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's agent hosts the store
    # The store of torchrun's agent holds the keys of all its groups, so the restart count is part of a key. Any other
    # store lives as long as the process of rank 0 and may hold keys of its earlier groups; there the restart count is
    # of no use, because it is lower on a node that joined late.
    meetings = str(_meetings[here.address, here.port])
    prefix = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if by_agent else meetings
    _meetings[here.address, here.port] += 1

    def connect() -> None:
        try:
            if here.rank > 0:
                _knock(here, until)
            store = TCPStore(
                here.address, here.port, is_master=here.rank == 0 and not by_agent, wait_for_workers=False,
                timeout=timedelta(seconds=max(1.0, until - time.monotonic())), multi_tenant=True,
            )  # fmt: skip
            own = PrefixStore(prefix, store)
            if by_agent and own.add(f"lambert/came/{here.rank}", 1) > 1:
                raise MachineError(_stale(here))
            promise.set_result(own)
        except Exception as error:
            promise.set_exception(error)

    # If another program listens on the port, torch waits forever for a reply in the store's protocol. So a thread
    # connects, and this function stops waiting when the time is over.
    thread = threading.Thread(target=connect, name="lambert-rendezvous", daemon=True)
    thread.start()
    try:
        found = promise.result(seconds + _REPLY_SECONDS)
    except (RuntimeError, ValueError, TimeoutError) as error:
        raise MachineError(_no_store(here, seconds, str(error))) from error
    thread.join()  # it still releases its reference to the store, for which it needs the GIL
    return found


def connect(address: str, seconds: float) -> Store:
    """Returns a client of the store at `address`, HOST:PORT. Raises RuntimeError if it does not answer within
    `seconds`."""
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=seconds))


def _knock(here: ProcessInfo, until: float) -> None:
    """Waits until rank 0 listens on its port. torch itself waits half a second or more after a refused connection."""
    pause = 0.02
    while (left := until - time.monotonic()) > 0:
        try:
            socket.create_connection((here.address, here.port), left).close()
            return
        except ConnectionRefusedError:
            time.sleep(pause)
            pause = min(0.2, 1.5 * pause)  # backs off: a thousand ranks may be polling
        except OSError:  # torch reports the cause
            return


def roll_call(
    here: ProcessInfo, store: Store, device: str, problem: LambertError | None, seconds: float, *, card: str = ""
) -> tuple[str, int]:
    """Returns why the ranks cannot work together and the exit code for it, or "" and 0 if they can. The result is the
    same on all ranks that arrived.

    Args:
        device: Device type that this rank computes on; all ranks need the same.
        problem: The error that keeps this rank from using its device, if any.
        seconds: How long rank 0 waits for the other ranks, and how long the other ranks wait for its verdict.
        card: UUID of this rank's GPU; empty for other devices.

    Raises MachineError if rank 0 is lost before all ranks have arrived.
    """
    state = [str(problem), problem.exit_code] if problem else ["", 0]
    store.set(_HERE.format(here.rank), json.dumps([*state, here.size, device, card]))
    try:
        if here.rank > 0:
            verdict = _read_verdict(here, store, seconds)
        else:
            wait_for(store, map(_HERE.format, range(here.size)), seconds)
            missing = _find_missing(here, store)
            verdict = _verdict(here, store, missing, seconds)
            store.set(_VERDICT, json.dumps(verdict))
            came = [_READ.format(rank) for rank in range(1, here.size) if rank not in missing]
            wait_for(store, came, _LINGER_SECONDS if verdict[0] else 0)
    except RuntimeError as error:
        raise MachineError(
            f"Rank {here.rank} of {here.size} lost the connection to rank 0 at {_at(here)} before all ranks had "
            "connected. Read the output of rank 0."
        ) from error
    return verdict


def wait_for(store: Store, keys: Iterable[str], seconds: float) -> bool:
    """Waits for at most `seconds` until the store has all `keys`, and returns whether it has them."""
    wanted, until = [*keys], time.monotonic() + seconds
    while wanted and not store.check(wanted):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _read_verdict(here: ProcessInfo, store: Store, seconds: float) -> tuple[str, int]:
    """Returns rank 0's verdict; if none arrives within `seconds`, an error that names the missing ranks."""
    if not wait_for(store, [_VERDICT], seconds):
        return _absent(here, _find_missing(here, store), seconds), MachineError.exit_code
    text, code = json.loads(store.get(_VERDICT))
    store.set(_READ.format(here.rank), "")
    return text, code


def _find_missing(here: ProcessInfo, store: Store) -> list[int]:
    return [rank for rank in range(here.size) if not store.check([_HERE.format(rank)])]


def _verdict(here: ProcessInfo, store: Store, missing: list[int], seconds: float) -> tuple[str, int]:
    if missing:
        return _absent(here, missing, seconds), MachineError.exit_code
    answers = [json.loads(store.get(_HERE.format(rank))) for rank in range(here.size)]
    for rank, (text, code, *_) in enumerate(answers):
        if text:
            return f"Rank {rank} cannot start: {text}", code
    _, _, size, device, _ = answers[0]
    cards: dict[str, int] = {}
    for rank, (_, _, expected, kind, card) in enumerate(answers):
        if expected != size:
            return f"Rank {rank} expects {expected} ranks, and rank 0 expects {size}: set one WORLD_SIZE for all.", 2
        if kind != device:
            return f"Rank {rank} computes on {kind}, and rank 0 on {device}: set one train.device for all.", 2
        if card and (first := cards.setdefault(card, rank)) != rank:
            return (
                f"Ranks {first} and {rank} compute on the same GPU, and each rank needs its own: start one rank per "
                "GPU, and omit the number of the GPU in train.device."
            ), 2
    return "", 0


def _absent(here: ProcessInfo, missing: list[int], seconds: float) -> str:
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    names = ", ".join(map(str, missing[:_NAMED])) + more
    return (
        f"Rank {names} of {here.size} did not connect to {_at(here)} within {seconds:g} s. Check that it was started "
        "with the same MASTER_ADDR and MASTER_PORT, and read its output."
    )


def _no_store(here: ProcessInfo, seconds: float, message: str) -> str:
    """Returns the error message for a store that cannot be reached; `message` is torch's."""
    who = f"Rank {here.rank} of {here.size}"
    if "EADDRINUSE" in message or "in use" in message:
        return f"{who} cannot open port {here.port}: it is in use by another program. Choose another MASTER_PORT."
    try:
        socket.getaddrinfo(here.address, here.port)
    except OSError as error:
        return (
            f"{who} cannot resolve the host {here.address} ({error.strerror}): set MASTER_ADDR to the host of rank 0."
        )
    return (
        f"{who} could not connect to rank 0 at {_at(here)} within {seconds:g} s. Check that rank 0 was started there "
        "with this MASTER_ADDR and MASTER_PORT, and that the port is reachable from here."
    )


def _stale(here: ProcessInfo) -> str:
    return (
        f"Rank {here.rank} of {here.size} found the store of an earlier group at {_at(here)}. If machines join and "
        "leave, torchrun needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, as in deploy/torchrun.sh; or use lambert launch."
    )


def _at(here: ProcessInfo) -> str:
    return f"{here.address}:{here.port}"
