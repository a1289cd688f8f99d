"""Sessions follow one another: however unevenly ranks leave one, they meet in the next."""

import subprocess
import sys
import threading
import time

import pytest
import torch
from patience import HANGS

import lambert.horovod as hvd


def total() -> float:
    return float(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())


def sessions_follow_at_once() -> None:
    for number in range(30):
        hvd.shutdown()
        assert not hvd.is_initialized()
        hvd.init()
        if number % 2:  # else it is left at once, also before the others know that they have met
            assert total() == hvd.size()


def a_rank_may_be_late() -> None:
    """Each rank in turn is late to leave and late to come."""
    rank, size = hvd.rank(), hvd.size()
    for number in range(2 * size):
        assert total() == size
        late = 0.05 if number % size == rank else 0.0
        time.sleep(late * (number < size))
        hvd.shutdown()
        time.sleep(late * (number >= size))
        hvd.init()


def who_leaves_ends_the_session_for_all() -> None:
    """Also the work of a process set that it is not in; and then all meet again, whoever it was."""
    for leaver in range(hvd.size()):
        others = hvd.add_process_set([rank for rank in range(hvd.size()) if rank != leaver])
        assert total() == hvd.size()
        if hvd.rank() != leaver:
            waits_for_leaver = hvd.rank() == (leaver - 1) % hvd.size()  # and the others of the set wait for this rank
            asked_in = hvd.global_process_set if waits_for_leaver else others
            with pytest.raises(hvd.HorovodInternalError, match=rf"rank {leaver} has called shutdown\(\)|lost"):
                hvd.allreduce(torch.ones(1), name="x", process_set=asked_in)
        hvd.shutdown()
        hvd.init()
    assert total() == hvd.size()


def no_thread_outlives_its_session() -> None:
    """A thread that needs the GIL in torch while the interpreter shuts down aborts the process."""
    for number in range(10):
        if number % 2:
            assert total() == hvd.size()
        hvd.shutdown()
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("lambert")]
        hvd.init()


RANKS = 4
CHECKS = [
    sessions_follow_at_once,
    a_rank_may_be_late,
    who_leaves_ends_the_session_for_all,
    no_thread_outlives_its_session,
]


def test_on_ranks(outcome: str) -> None:
    assert not outcome, outcome


@pytest.mark.slow
def test_a_process_may_end_while_results_are_released() -> None:
    """The thread that waits for collectives releases the results of the last one after the program has got them."""
    code = (
        "import torch, lambert.horovod as hvd\n"
        "hvd.init()\n"
        "hvd.grouped_allgather([torch.ones(1)] * 20_000)\n"
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=HANGS)
    assert (done.returncode, done.stderr) == (0, "")
