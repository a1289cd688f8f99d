"""What a rank sends, and in which order, without other ranks."""

import threading
from types import SimpleNamespace
from typing import Any

from patience import HANGS

from lambert.wings.horovod.negotiation import Negotiator
from lambert.wings.horovod.requests import Entry, Request


class Slow:
    """A channel on which a submission hangs until it is let go."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.hangs, self.let_go, self.over = threading.Event(), threading.Event(), threading.Event()

    def send(self, message: list[Any]) -> None:
        if message[0] == "submit":
            self.hangs.set()
            assert self.let_go.wait(HANGS)
        self.sent.append(message[0])

    def receive(self) -> list[Any]:
        self.over.wait(HANGS)
        raise ConnectionResetError

    def close(self) -> None:
        self.over.set()


def test_a_join_comes_behind_what_another_thread_is_sending() -> None:
    channel: Any = Slow()
    runner: Any = SimpleNamespace(drain=lambda: None)
    negotiator = Negotiator(channel, runner, 0.0)
    negotiator.submit(Entry(Request("allreduce", "allreduce.a", 0)))
    assert channel.hangs.wait(HANGS)  # in the thread that sends
    joining = threading.Thread(target=negotiator.join)
    joining.start()
    joining.join(0.1)
    channel.let_go.set()
    joining.join(HANGS)
    negotiator.close("the end", 1)
    assert channel.sent == ["submit", "join", "leave"]
