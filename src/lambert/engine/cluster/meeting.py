"""How ranks meet: at a store on the first one's host, with a roll-call there before anything else is done together."""

import json
import os
import socket
import threading
import time
from concurrent.futures import Future
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from lambert.core.errors import LambertError, MachineError
from lambert.engine.cluster.rendezvous import Place

_FAREWELL_SECONDS = 2.0
"""How long the first rank, which takes the store with it, waits for the others to read why it leaves."""
_REPLY_SECONDS = 2.0
"""Longer than torch's own time to reach the store, for its answer."""
_NAMED = 8
"""Most ranks that one line names."""


def meet(here: Place, seconds: float) -> Store:
    """The store that all ranks share. Raises MachineError where it cannot be reached within so many `seconds`."""
    promise: Future[Store] = Future()
    until = time.monotonic() + seconds

    def connect() -> None:
        # Under torchrun its agent holds the store.
        by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        try:
            if here.rank > 0:
                _knock(here, until)
            store = TCPStore(
                here.address, here.port, is_master=here.rank == 0 and not by_agent, wait_for_workers=False,
                timeout=timedelta(seconds=max(1.0, until - time.monotonic())), multi_tenant=True,
            )  # fmt: skip
            own = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
            if by_agent and own.add(f"lambert/came/{here.rank}", 1) > 1:
                raise MachineError(_stale(here))
            promise.set_result(own)
        except Exception as error:
            promise.set_exception(error)

    # A port on which something else listens is waited for without an end: torch expects an answer in its own tongue.
    threading.Thread(target=connect, name="lambert-meeting", daemon=True).start()
    try:
        return promise.result(seconds + _REPLY_SECONDS)
    except (RuntimeError, ValueError, TimeoutError) as error:
        raise MachineError(_no_store(here, seconds, str(error))) from error


def _knock(here: Place, until: float) -> None:
    """Waits until somebody opens where the ranks meet: torch, refused once, asks again after half a second and more."""
    pause = 0.02
    while (left := until - time.monotonic()) > 0:
        try:
            socket.create_connection((here.address, here.port), left).close()
            return
        except ConnectionRefusedError:
            time.sleep(pause)
            pause = min(0.2, 1.5 * pause)  # of a thousand ranks
        except OSError:  # torch says what it is
            return


def roll_call(
    here: Place, store: Store, device: str, problem: LambertError | None, seconds: float, *, card: str = ""
) -> tuple[str, int]:
    """Why the ranks cannot work together, the same on all that came, and the exit code that says so; "" and 0 where
    they can. `device` is the kind that this rank computes on, `card` what tells a GPU from all others, and `problem`
    what keeps the rank from it. The first rank waits for the others for so many `seconds`, and they for its word."""
    said = [str(problem), problem.exit_code] if problem else ["", 0]
    store.set(_here(here.rank), json.dumps([*said, here.size, device, card]))
    until = time.monotonic() + seconds
    try:
        if here.rank > 0:
            verdict = _heard(here, store, seconds)
        else:
            while (missing := _missing(here, store)) and time.monotonic() < until:
                time.sleep(0.02)
            verdict = _verdict(here, store, missing, seconds)
            store.set(_VERDICT, json.dumps(verdict))
            came = [_left(rank) for rank in range(1, here.size) if rank not in missing]
            until = time.monotonic() + (_FAREWELL_SECONDS if verdict[0] else 0)
            while time.monotonic() < until and not (not came or store.check(came)):
                time.sleep(0.02)
    except RuntimeError as error:
        raise MachineError(
            f"Rank {here.rank} of {here.size} lost rank 0 at {_at(here)} before all had met: did it end, and why?"
        ) from error
    return verdict


_VERDICT = "lambert/verdict"


def _here(rank: int) -> str:
    return f"lambert/here/{rank}"


def _left(rank: int) -> str:
    return f"lambert/heard/{rank}"


def _heard(here: Place, store: Store, seconds: float) -> tuple[str, int]:
    """What the first rank says of the roll-call, or who is missing when it says nothing."""
    until = time.monotonic() + seconds
    while not store.check([_VERDICT]):
        if time.monotonic() > until:
            return _absent(here, _missing(here, store), seconds), MachineError.exit_code
        time.sleep(0.02)
    text, code = json.loads(store.get(_VERDICT))
    store.set(_left(here.rank), "")
    return text, code


def _missing(here: Place, store: Store) -> list[int]:
    return [rank for rank in range(here.size) if not store.check([_here(rank)])]


def _verdict(here: Place, store: Store, missing: list[int], seconds: float) -> tuple[str, int]:
    if missing:
        return _absent(here, missing, seconds), MachineError.exit_code
    answers = [json.loads(store.get(_here(rank))) for rank in range(here.size)]
    for rank, (text, code, *_) in enumerate(answers):
        if text:
            return f"Rank {rank} cannot start: {text}", code
    _, _, size, device, _ = answers[0]
    cards: dict[str, int] = {}
    for rank, (_, _, theirs, kind, card) in enumerate(answers):
        if theirs != size:
            return f"Rank {rank} was told of {theirs} ranks, and rank 0 of {size}: give all the same WORLD_SIZE.", 2
        if kind != device:
            return f"Rank {rank} computes on {kind}, and rank 0 on {device}: give all the same train.device.", 2
        if card and (first := cards.setdefault(card, rank)) != rank:
            return (
                f"Ranks {first} and {rank} compute on the same GPU, and each needs one of its own: start one rank a "
                "GPU, and leave its number out of train.device."
            ), 2
    return "", 0


def _absent(here: Place, missing: list[int], seconds: float) -> str:
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    names = ", ".join(map(str, missing[:_NAMED])) + more
    return (
        f"Rank {names} of {here.size} did not come to {_at(here)} within {seconds:g} s: is it started, with the same "
        "MASTER_ADDR and MASTER_PORT, and what did it say?"
    )


def _no_store(here: Place, seconds: float, said: str) -> str:
    """Why torch could not reach the store, of which it `said` this, in words for the user."""
    who = f"Rank {here.rank} of {here.size}"
    if "EADDRINUSE" in said or "in use" in said:
        return f"{who} cannot open port {here.port}: it is in use by another program. Choose another MASTER_PORT."
    try:
        socket.getaddrinfo(here.address, here.port)
    except OSError as error:
        return f"{who} does not know the host {here.address} ({error.strerror}): MASTER_ADDR must be that of rank 0."
    return (
        f"{who} found no rank 0 at {_at(here)} within {seconds:g} s: is it started there, with that MASTER_ADDR and "
        "MASTER_PORT, and may others reach that port?"
    )


def _stale(here: Place) -> str:
    return (
        f"Rank {here.rank} of {here.size} met at {_at(here)} what an earlier group left: where machines come and go, "
        "torchrun needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, as in deploy/torchrun.sh, or take lambert launch."
    )


def _at(here: Place) -> str:
    return f"{here.address}:{here.port}"
