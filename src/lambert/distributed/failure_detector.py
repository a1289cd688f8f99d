"""Finds out why a group of ranks failed.

When a rank is gone, the ranks that wait for it in a collective get their errors one after another, each when the peer
it waits for has left. Such an error does not name the rank that failed first. So a thread on each rank watches the
rendezvous store. A rank that leaves, or that has lost its peers, raises an alarm in the store. Every living rank
answers. Rank 0 collects the answers into a verdict, and exits, which ends the store, only after all living ranks have
read the verdict.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from torch._C._distributed_c10d import Store

Said = dict[int, tuple[str, int]]
"""Maps each rank that answered to the reason why it leaves and its exit code; to "" and 0 if it lives."""

_SECONDS = 2.0
"""How long living ranks have to answer an alarm, and then to read rank 0's verdict."""
_PAUSE_SECONDS = 0.5
"""Interval between two polls of the store by one rank: a thousand ranks make 2,000 small requests a second."""
_ALARM, _VERDICT = "lambert/alarm", "lambert/verdict on leaving"


class FailureDetector:
    """A thread that watches the `store` on behalf of `rank`, one of `size` ranks, until `stop` is called."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._said: Said | None = None
        self._stopped = False
        self._woken, self._learnt = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="lambert-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped = True
        self._woken.set()
        self._thread.join(_SECONDS)

    def leave(self, why: str, code: int) -> None:
        """Reports to the other ranks `why` this rank leaves and its exit code, so that they do not wait for it."""
        bounded(lambda: report(self._store, self._rank, why, code))
        self._alarm()

    def ask(self) -> Said | None:
        """Raises an alarm and returns the answers of the other ranks; None if the store cannot be reached. For a rank
        whose collective failed."""
        self._alarm()
        return None if self._said is None else {rank: said for rank, said in self._said.items() if rank != self._rank}

    def _alarm(self) -> None:
        if bounded(self._raise):
            self._woken.set()
            self._learnt.wait(2 * _SECONDS)
            if self._rank == 0:
                bounded(self._read)

    def _raise(self) -> None:
        self._store.set(_ALARM, "")
        self._store.check([_ALARM])  # waits for the store's reply; `set` does not

    def _run(self) -> None:
        # A RuntimeError means that the store cannot be reached: its host is gone, and no answers will come.
        with suppress(RuntimeError):
            while not self._store.check([_ALARM]):
                self._woken.wait(_PAUSE_SECONDS)
                if self._stopped:
                    return
            self._store.set(_alive(self._rank), "")
            self._said = self._collected() if self._rank == 0 else self._told()
            self._store.set(_heard(self._rank), "")
        self._learnt.set()

    def _found(self) -> Said:
        found: Said = {}
        for rank in range(self._size):
            if self._store.check([_left(rank)]):
                why, code = json.loads(self._store.get(_left(rank)))
                found[rank] = why, code
            elif self._store.check([_alive(rank)]):
                found[rank] = "", 0
        return found

    def _collected(self) -> Said:
        until = time.monotonic() + _SECONDS
        while len(said := self._found()) < self._size and time.monotonic() < until:
            time.sleep(0.05)
        self._store.set(_VERDICT, json.dumps(said))
        return said

    def _told(self) -> Said:
        """Returns rank 0's verdict. If rank 0 gives none and the launcher hosts the store, returns the answers that
        this rank finds in the store."""
        until = time.monotonic() + 1.5 * _SECONDS
        while not self._store.check([_VERDICT]):
            if time.monotonic() > until:
                return self._found()
            time.sleep(0.02)
        said = json.loads(self._store.get(_VERDICT))
        return {int(rank): (why, code) for rank, (why, code) in said.items()}

    def _read(self) -> None:
        """Waits until all living ranks have read the verdict."""
        living = [_heard(rank) for rank in range(self._size) if self._store.check([_alive(rank)])]
        while living and not self._store.check(living):
            time.sleep(0.02)


def report(store: Store, rank: int, why: str, code: int) -> None:
    """Writes to the `store` why `rank` left and its exit code. The agent calls it for a worker that ended without a
    report of its own."""
    store.set(_left(rank), json.dumps([why, code]))


def bounded(work: Callable[[], None]) -> bool:
    """Runs `work` in a thread and returns whether it succeeded within the time that ranks wait for one another. A
    request to a store whose host is gone may never return."""
    done: list[bool] = []

    def run() -> None:
        with suppress(RuntimeError):
            work()
            done.append(True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return bool(done)


def _left(rank: int) -> str:
    return f"lambert/left/{rank}"


def _alive(rank: int) -> str:
    return f"lambert/alive/{rank}"


def _heard(rank: int) -> str:
    return f"lambert/read/{rank}"
