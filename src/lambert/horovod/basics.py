"""Start, end, and who is who: `init`, `shutdown`, `rank`, `size`, and what this Horovod was built with."""

import atexit
from collections.abc import Iterable, Sequence

import torch
import torch.distributed

from lambert.horovod import session
from lambert.horovod.launch import Launch, integer
from lambert.horovod.process_sets import ProcessSet, add_process_set, global_process_set
from lambert.horovod.timeline import start_from_environment, timeline


def init(comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Meets the other ranks; does nothing where they have met already.

    `comm` are the ranks that take part, all without it. `process_sets` are registered at once, on all ranks alike;
    "dynamic" is accepted, and `add_process_set` works without it. ValueError for a wrong argument or environment.
    """
    if comm is not None and not isinstance(comm, Iterable):
        raise ValueError("hvd.init(comm=...) takes a list of ranks; MPI communicators are not supported")
    if session.is_open():
        return
    now = session.open_session(Launch.detect(comm or ()))
    global_process_set.ranks = now.sets[0]
    start_from_environment(now.launch.rank)
    if process_sets is None or (isinstance(process_sets, str) and process_sets.lower() == "dynamic"):
        return
    if isinstance(process_sets, str):
        raise ValueError(f"process_sets takes a list of process sets or 'dynamic', not {process_sets!r}")
    for process_set in process_sets:
        add_process_set(process_set)


def shutdown() -> None:
    """Leaves the other ranks. What still waits for this one fails there; `init` may follow."""
    if session.is_open():
        session.close_session(f"rank {session.current().launch.rank} has called shutdown() or has ended")
        timeline.stop()


atexit.register(shutdown)


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` not since."""
    return session.is_open()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins to record what operations wait for in a file for chrome://tracing, on rank 0. ValueError before `init`."""
    if session.current().launch.rank == 0:
        timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """Ends the recording. ValueError before `init`."""
    session.current()
    timeline.stop()


def rank() -> int:
    """The number of this process among all, from 0. ValueError before `init`, as in all of the following."""
    return session.current().launch.rank


def size() -> int:
    """The number of processes."""
    return session.current().launch.size


def local_rank() -> int:
    """The number of this process among those of its host: the GPU to use."""
    now = session.current()
    given = integer("HOROVOD_LOCAL_RANK", "LOCAL_RANK")
    return _peers(now).index(now.launch.rank) if given is None else given


def local_size() -> int:
    """The number of processes on this host."""
    given = integer("HOROVOD_LOCAL_SIZE", "LOCAL_WORLD_SIZE")
    return len(_peers(session.current())) if given is None else given


def cross_rank() -> int:
    """The number of this host among the hosts that have a process of the same local rank."""
    now = session.current()
    given = integer("HOROVOD_CROSS_RANK", "GROUP_RANK")
    return _hosts_with_local_rank(now).index(now.hosts[now.launch.rank]) if given is None else given


def cross_size() -> int:
    """The number of hosts that have a process of the same local rank."""
    now = session.current()
    given = integer("HOROVOD_CROSS_SIZE", "GROUP_WORLD_SIZE")
    return len(_hosts_with_local_rank(now)) if given is None else given


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of processes."""
    hosts = session.current().hosts
    return len({hosts.count(host) for host in hosts}) == 1


def _peers(now: session.Session) -> list[int]:
    return [rank for rank, host in enumerate(now.hosts) if host == now.hosts[now.launch.rank]]


def _hosts_with_local_rank(now: session.Session) -> list[str]:
    local = _peers(now).index(now.launch.rank)
    return [host for host in dict.fromkeys(now.hosts) if now.hosts.count(host) > local]


def mpi_threads_supported() -> bool:
    """Raises ValueError: there is no MPI here."""
    raise ValueError("Horovod MPI is not enabled: Lambert communicates over Gloo and NCCL.")


def mpi_enabled() -> bool:
    """Never."""
    return False


def mpi_built() -> bool:
    """Never."""
    return False


def gloo_enabled() -> bool:
    """Always: Gloo is a part of torch."""
    return True


def gloo_built() -> bool:
    """Always: Gloo is a part of torch."""
    return True


def nccl_built() -> int:
    """NCCL's version as a number such as 22703, 0 without NCCL."""
    if not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
        return 0
    major, minor, patch = (*torch.cuda.nccl.version(), 0, 0)[:3]  # type: ignore[no-untyped-call]
    return int(major) * 10000 + int(minor) * 100 + int(patch)


def ddl_built() -> bool:
    """Never."""
    return False


def ccl_built() -> bool:
    """Never."""
    return False


def cuda_built() -> bool:
    """Whether torch was built with CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether torch was built with ROCm."""
    return torch.version.hip is not None
