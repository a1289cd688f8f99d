"""A world of several processes, for a test."""

from typing import Any

from patience import HANGS
from tiny import free_port, start


def ranks(size: int, work: Any, *arguments: Any) -> None:
    """`work(*arguments)` in `size` processes that can meet; all of them must end well."""
    port = free_port()
    processes = [start(work, *arguments, rank=rank, world=size, port=port) for rank in range(size)]
    for process in processes:
        process.join(HANGS)
    assert [process.exitcode for process in processes] == [0] * size
