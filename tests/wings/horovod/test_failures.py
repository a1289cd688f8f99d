"""A rank that dies, hangs or never comes: the others hear of it in time, in one line."""

import os
import re
import signal
import time
from collections.abc import Callable

import torch
from forked import Forked
from patience import HANGS
from tiny import free_port

import lambert.horovod as hvd


def program(misfortune: Callable[[], object]) -> None:
    hvd.init()
    for _ in range(5):
        hvd.allreduce(torch.ones(1000), name="x")
    if hvd.rank() == 1:
        misfortune()
    try:
        hvd.allreduce(torch.ones(1000), name="x")
    except hvd.HorovodInternalError as error:
        print(error, flush=True)
    os._exit(0)


def ranks(count: int, misfortune: Callable[[], object], **variables: str) -> list[Forked]:
    """The first `count` of two."""
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "HOROVOD_SIZE": "2"}
    return [
        Forked(variables={**variables, "HOROVOD_RANK": str(rank)}, prepare=program, arguments=(misfortune,))
        for rank in range(count)
    ]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep() -> None:
    time.sleep(HANGS)


def test_a_rank_that_is_killed_fails_the_others_at_once() -> None:
    survivor, dead = (rank.called() for rank in ranks(2, die))
    assert dead.code == -signal.SIGKILL
    assert survivor.code == 0, survivor.err
    assert re.search("rank 1 has disconnected|Connection closed by peer|reset by peer", survivor.out), survivor.out


def test_a_rank_that_does_not_ask_is_named_and_then_given_up() -> None:
    first, late = ranks(2, sleep, HOROVOD_STALL_CHECK_TIME_SECONDS="0.5", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="1")
    waiting = first.called()
    late.called(0)
    assert "allreduce.x has waited more than 0.5 s for ranks [1]" in waiting.err
    assert "allreduce.x has waited more than 1 s for ranks [1]" in waiting.out


def test_ranks_that_do_not_come_are_missed() -> None:
    (alone,) = ranks(1, sleep, HOROVOD_START_TIMEOUT="0.5")
    left = alone.called()
    assert left.code == 1
    assert "HorovodInternalError: rank 0 of 2 did not reach the others at ('127.0.0.1'" in left.err
