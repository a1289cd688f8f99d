"""Checks that need ranks: the processes are started once, and every check runs in all of them, one after the other."""

import faulthandler
import json
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from forked import FORKS
from tiny import free_port

import lambert.horovod as hvd

Check = Callable[[], None]
SLOWEST = 600.0
"""Seconds after which all ranks must have ended. On a busy machine, a minute passes before they have been started."""


def outcomes(checks: Sequence[Check], folder: Path, ranks: int = 2) -> dict[str, str]:
    """What went wrong on any rank, by the name of the check: nothing where it holds. The folder is the checks' own."""
    port = free_port()
    processes = [
        FORKS.Process(target=_all, args=(rank, ranks, port, checks, folder), daemon=True) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    until = time.monotonic() + SLOWEST
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    for process in processes:
        process.kill()
    stacks = [folder / f"stack.{rank}" for rank in range(ranks)]
    hung = [stack.read_text() if stack.exists() else "it was not started in time" for stack in stacks]
    found = {}
    for check in checks:
        files = [folder / f"{check.__name__}.{rank}.json" for rank in range(ranks)]
        said = [
            json.loads(file.read_text()) if file.exists() else f"rank {rank} did not end it: {hung[rank]}"
            for rank, file in enumerate(files)
        ]
        found[check.__name__] = "\n".join(filter(None, said))
    return found


def _all(rank: int, ranks: int, port: int, checks: Sequence[Check], folder: Path) -> None:
    os.chdir(folder)
    torch.set_num_threads(1)
    os.environ |= {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(ranks), "HOROVOD_LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HOROVOD_START_TIMEOUT": "300"}
    with Path(f"stack.{rank}").open("w") as stack:
        faulthandler.dump_traceback_later(SLOWEST - 10, file=stack)
        _each(rank, checks, folder)
        faulthandler.cancel_dump_traceback_later()


def _each(rank: int, checks: Sequence[Check], folder: Path) -> None:
    hvd.init()
    for check in checks:
        torch.manual_seed(0)
        said = ""
        try:
            check()
        except Exception:
            said = f"rank {rank}: {traceback.format_exc()}"
        (folder / f"{check.__name__}.{rank}.json").write_text(json.dumps(said))
        if said:
            break  # the ranks are out of step: the others fail at once instead of waiting for this one
    hvd.shutdown()
