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

from lambert.distributed.rendezvous import wait_for

Answers = dict[int, tuple[str, int]]
"""For each rank that answered: the reason why it left and its exit code, or "" and 0 if it is alive."""

_SECONDS = 2.0
"""How long living ranks have to answer an alarm, and then to read rank 0's verdict."""
_PAUSE_SECONDS = 0.5
"""Interval between two polls of the store by one rank: a thousand ranks make 2,000 small requests per second."""
_ALARM, _VERDICT = "lambert/alarm", "lambert/verdict on leaving"
_LEFT, _ALIVE, _READ = "lambert/left/{}", "lambert/alive/{}", "lambert/read/{}"
"""Keys of a rank that left, of one that answered the alarm, and of one that has read the verdict."""


class FailureDetector:
    """A thread that watches the `store` on behalf of `rank`, one of `size` ranks, until `stop` is called."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._verdict: Answers | None = None
        self._stopped = False
        self._wake, self._verdict_known = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="lambert-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped = True
        self._wake.set()
        self._thread.join(_SECONDS)

    def leave(self, why: str, code: int) -> None:
        """Reports to the other ranks `why` this rank leaves and its exit code, so that they do not wait for it."""
        within_deadline(lambda: report(self._store, self._rank, why, code))
        self._await_answers()

    def answers(self) -> Answers | None:
        """Raises an alarm and returns the answers of the other ranks; None if the store cannot be reached. Called by a
        rank whose collective failed."""
        self._await_answers()
        if self._verdict is None:
            return None
        return {rank: answer for rank, answer in self._verdict.items() if rank != self._rank}

    def _await_answers(self) -> None:
        """Raises an alarm and waits for the verdict; rank 0 also waits until all living ranks have read the verdict."""
        if within_deadline(self._raise_alarm):
            self._wake.set()
            self._verdict_known.wait(2 * _SECONDS)
            if self._rank == 0:
                within_deadline(self._await_readers)

    def _raise_alarm(self) -> None:
        self._store.set(_ALARM, "")
        self._store.check([_ALARM])  # waits for the store's reply; `set` does not

    def _run(self) -> None:
        # A RuntimeError means that the store cannot be reached: its host is gone, and no answers will come.
        with suppress(RuntimeError):
            while not self._store.check([_ALARM]):
                self._wake.wait(_PAUSE_SECONDS)
                if self._stopped:
                    return
            self._store.set(_ALIVE.format(self._rank), "")
            self._verdict = self._collect_verdict() if self._rank == 0 else self._await_verdict()
            self._store.set(_READ.format(self._rank), "")
        self._verdict_known.set()

    def _answers(self) -> Answers:
        found: Answers = {}
        for rank in range(self._size):
            if self._store.check([_LEFT.format(rank)]):
                why, code = json.loads(self._store.get(_LEFT.format(rank)))
                found[rank] = why, code
            elif self._store.check([_ALIVE.format(rank)]):
                found[rank] = "", 0
        return found

    def _collect_verdict(self) -> Answers:
        until = time.monotonic() + _SECONDS
        while len(answers := self._answers()) < self._size and time.monotonic() < until:
            time.sleep(0.05)
        self._store.set(_VERDICT, json.dumps(answers))
        return answers

    def _await_verdict(self) -> Answers:
        """Returns rank 0's verdict. If rank 0 gives none and the launcher hosts the store, returns the answers that
        this rank finds in the store."""
        if not wait_for(self._store, [_VERDICT], 1.5 * _SECONDS):
            return self._answers()
        answers = json.loads(self._store.get(_VERDICT))
        return {int(rank): (why, code) for rank, (why, code) in answers.items()}

    def _await_readers(self) -> None:
        """Waits until all living ranks have read the verdict."""
        living = [rank for rank in range(self._size) if self._store.check([_ALIVE.format(rank)])]
        wait_for(self._store, map(_READ.format, living), _SECONDS)


def report(store: Store, rank: int, why: str, code: int) -> None:
    """Writes to the `store` why `rank` left and its exit code. The agent calls it for a worker that ended without a
    report of its own."""
    store.set(_LEFT.format(rank), json.dumps([why, code]))


def within_deadline(work: Callable[[], None]) -> bool:
    """Runs `work` in a thread and returns whether it succeeded within the time that ranks wait for each other. A
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
