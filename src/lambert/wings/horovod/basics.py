"""`init` and `shutdown`, the ranks and sizes of this process, and the build information of Horovod's API.

The functions for ranks, sizes and timelines raise ValueError before `init`.
"""

import atexit
from collections.abc import Iterable, Sequence

import torch
import torch.distributed

from lambert.core.errors import UsageError
from lambert.distributed.launch_environment import integer
from lambert.wings.horovod import session
from lambert.wings.horovod.process_sets import ProcessSet, add_process_set, global_process_set
from lambert.wings.horovod.timeline import start_from_environment, timeline

__all__ = [
    "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "init",
    "is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rank", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline",
]  # fmt: skip


def init(comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Connects to the other ranks. Does nothing if Horovod is already initialized.

    Args:
        comm: The ranks that take part; None: all ranks.
        process_sets: Process sets to register, the same on all ranks. "dynamic" is accepted for compatibility;
            `add_process_set` works without it.

    Raises:
        ValueError: An argument or an environment variable is invalid.
        HorovodInternalError: The other ranks did not connect within HOROVOD_START_TIMEOUT seconds.
    """
    if comm is not None and not isinstance(comm, Iterable):
        raise ValueError("hvd.init(comm=...) takes a list of ranks; MPI communicators are not supported")
    if session.is_open():
        return
    now = session.open_session(comm or ())
    atexit.unregister(shutdown)
    atexit.register(shutdown)
    global_process_set.ranks = now.executor.sets[0]
    start_from_environment(now.process.rank)
    if process_sets is None or (isinstance(process_sets, str) and process_sets.lower() == "dynamic"):
        return
    if isinstance(process_sets, str):
        raise ValueError(f"process_sets takes a list of process sets or 'dynamic', not {process_sets!r}")
    for process_set in process_sets:
        add_process_set(process_set)


def shutdown() -> None:
    """Ends the session of all ranks, as in Horovod. Collectives for which other ranks still wait fail there, also those
    of process sets; call `barrier` first to let them finish.

    `init` may be called again; it waits until all ranks have called it.
    """
    if session.is_open():
        session.close_session(f"rank {session.current().process.rank} has called shutdown() or has ended")
        timeline.stop()


def is_initialized() -> bool:
    """Returns whether `init` has been called without a later `shutdown`."""
    return session.is_open()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Starts a timeline of the collectives on rank 0, in a file for chrome://tracing. Raises ValueError before
    `init`."""
    if session.current().process.rank == 0:
        timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline. Raises ValueError before `init`."""
    session.current()
    timeline.stop()


def rank() -> int:
    """Returns the rank of this process among all ranks, from 0."""
    return session.current().process.rank


def size() -> int:
    """Returns the number of ranks."""
    return session.current().process.size


def local_rank() -> int:
    """Returns the rank of this process among those of its host, which is the index of the GPU to use."""
    now = session.current()
    return _read_place("HOROVOD_LOCAL_RANK", "LOCAL_RANK", _list_peers(now).index(now.process.rank))


def local_size() -> int:
    """Returns the number of ranks on this host."""
    return _read_place("HOROVOD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", len(_list_peers(session.current())))


def cross_rank() -> int:
    """Returns the index of this host among the hosts that have a process with the same local rank."""
    now = session.current()
    derived = _list_hosts(now).index(now.hosts[now.process.rank])
    return _read_place("HOROVOD_CROSS_RANK", "GROUP_RANK", derived)


def cross_size() -> int:
    """Returns the number of hosts that have a process with the same local rank."""
    return _read_place("HOROVOD_CROSS_SIZE", "GROUP_WORLD_SIZE", len(_list_hosts(session.current())))


def _read_place(horovod: str, torchrun: str, derived: int) -> int:
    """Returns the value of Horovod's variable, or of torchrun's, or the value derived from the ranks' hosts."""
    try:
        return integer(horovod, integer(torchrun, derived))
    except UsageError as error:
        raise ValueError(str(error)) from None


def is_homogeneous() -> bool:
    """Returns whether all hosts have the same number of ranks."""
    hosts = session.current().hosts
    return len({hosts.count(host) for host in hosts}) == 1


def _list_peers(now: session.Session) -> list[int]:
    return [rank for rank, host in enumerate(now.hosts) if host == now.hosts[now.process.rank]]


def _list_hosts(now: session.Session) -> list[str]:
    local = _list_peers(now).index(now.process.rank)
    return [host for host in dict.fromkeys(now.hosts) if now.hosts.count(host) > local]


def mpi_threads_supported() -> bool:
    """Raises ValueError, because Lambert does not use MPI."""
    raise ValueError("Horovod MPI is not enabled: Lambert communicates over Gloo and NCCL.")


def _no() -> bool:
    """Returns False: Lambert communicates over Gloo and NCCL."""
    return False


def _yes() -> bool:
    """Returns True: Gloo is a part of torch."""
    return True


mpi_enabled = mpi_built = ddl_built = ccl_built = _no
gloo_enabled = gloo_built = _yes


def nccl_built() -> int:
    """Returns the version of NCCL as a number such as 22703, or 0 without NCCL."""
    if not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
        return 0
    major, minor, patch = (*torch.cuda.nccl.version(), 0, 0)[:3]  # type: ignore[no-untyped-call]
    return int(major) * 10000 + int(minor) * 100 + int(patch)


def cuda_built() -> bool:
    """Returns whether torch was built with CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Returns whether torch was built with ROCm."""
    return torch.version.hip is not None
