"""SIGHUP waits until a service has a handler for it."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lambert import cli
from lambert.__main__ import main
from lambert.core import signals
from lambert.engine import process


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
    monkeypatch.setattr(process, "replace", lambda: None)
    monkeypatch.setattr(cli, "main", sys.exit)
    with pytest.raises(SystemExit):
        main()
    assert (signal.SIGHUP in signal.pthread_sigmask(0, ())) == held


DELIVERED = """
import os, signal
from lambert import cli
from lambert.__main__ import main
from lambert.core import signals
from lambert.engine import process

found = []
signals.block_signals(signals.HANGUPS)
os.kill(os.getpid(), signal.SIGHUP)  # would end this process
signal.signal(signal.SIGHUP, lambda number, frame: found.append(number))
assert found == []
signals.unblock_signals(signals.HANGUPS)
assert found == [signal.SIGHUP]
"""


def test_a_hangup_that_waits_is_delivered() -> None:
    """In a process with one thread: a thread without the mask would receive the signal."""
    subprocess.run([sys.executable, "-c", DELIVERED], check=True)
