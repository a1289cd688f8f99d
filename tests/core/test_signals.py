"""SIGHUP waits until a service has a handler for it."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from lambert.core import signals


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    numbers = (signal.SIGHUP, *signals._CODES)
    handlers, mask = {number: signal.getsignal(number) for number in numbers}, signal.pthread_sigmask(0, ())
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.parametrize(("verb", "held"), [("serve", True), ("predict", False)])
def test_hangups_wait_only_at_the_start_of_a_service(verb: str, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lambert", verb])
    signals.exit_on_signals()
    assert (signal.SIGHUP in signal.pthread_sigmask(0, ())) == held


def test_a_hangup_that_waits_is_delivered() -> None:
    found: list[int] = []
    signals.block_hangups()
    os.kill(os.getpid(), signal.SIGHUP)  # would end this process
    signal.signal(signal.SIGHUP, lambda number, frame: found.append(number))
    assert found == []
    signals.unblock_hangups()
    assert found == [signal.SIGHUP]
