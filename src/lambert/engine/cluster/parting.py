"""How a group that breaks finds out why.

Ranks that wait in a collective for one that is gone hear of it one after another, when those before them have left. So
a thread on each watches the store where they met: when a rank leaves, or has lost the others, it raises an alarm there;
all that live answer; the first rank says who answered what, and all have read that before it leaves with the store.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from torch._C._distributed_c10d import Store

Said = dict[int, tuple[str, int]]
"""By rank: why it leaves, and its exit code; "" and 0 of one that lives. Silent ones are left out."""

_SECONDS = 2.0
"""How long ranks that live have to answer an alarm, and to read what the first one makes of it."""
_PAUSE_SECONDS = 0.5
"""Between two looks of the watch: a thousand ranks are 2,000 small questions a second to the store."""
_ALARM, _VERDICT = "lambert/alarm", "lambert/verdict on leaving"


class Watch:
    """The watch of one rank of `size` over the `store`; it runs until `stop`."""

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
        """Tells the others `why` this rank leaves, before they wait for it."""
        bounded(lambda: report(self._store, self._rank, why, code))
        self._alarm()

    def ask(self) -> Said | None:
        """What the other ranks say, for one that lost them; None where the store cannot be reached."""
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
        self._store.check([_ALARM])  # waits for an answer, as `set` does not

    def _run(self) -> None:
        # Where the store cannot be reached any more, its host is gone, and nothing is learnt.
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
        """What the first rank found; without its word, under a launcher that holds the store, what this one finds."""
        until = time.monotonic() + 1.5 * _SECONDS
        while not self._store.check([_VERDICT]):
            if time.monotonic() > until:
                return self._found()
            time.sleep(0.02)
        said = json.loads(self._store.get(_VERDICT))
        return {int(rank): (why, code) for rank, (why, code) in said.items()}

    def _read(self) -> None:
        """Waits until all that live have read what all say."""
        living = [_heard(rank) for rank in range(self._size) if self._store.check([_alive(rank)])]
        while living and not self._store.check(living):
            time.sleep(0.02)


def report(store: Store, rank: int, why: str, code: int) -> None:
    """Says in the `store` of a group why this rank left it: for one that cannot say so itself, by who saw it end."""
    store.set(_left(rank), json.dumps([why, code]))


def bounded(work: Callable[[], None]) -> bool:
    """Does `work`, and gives whether it succeeded within the time that ranks wait for one another: what asks a store
    whose host is gone may never return."""
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
