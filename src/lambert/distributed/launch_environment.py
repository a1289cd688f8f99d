"""Reads this process's rank, the world size and the rendezvous address from the launcher's environment variables."""

import os
import re
import socket
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from lambert.core.errors import UsageError
from lambert.core.signals import LAUNCHED

PORTS = range(15_000, 30_000)
"""Ports that are derived from a job's number: above the system's own, below Linux's ephemeral ports (32768-60999)."""
_DEFAULT_JOB = 29_500 - PORTS.start
"""The job number of torch's default port, 29500."""

_VARIABLES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)
_LAUNCHERS = {LAUNCHED: "lambert launch", "TORCHELASTIC_RUN_ID": "torchrun", "HOROVOD_RANK": "horovodrun"}


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """The rank of this process, the world size, and the rendezvous address."""

    rank: int = 0
    """Rank of this process, from 0."""
    size: int = 1
    """World size: number of processes of the run."""
    local_rank: int = 0
    """Rank of this process on its node, from 0."""
    local_size: int = 1
    """Number of processes on this node."""
    address: str = ""
    """Host of rank 0, where the rendezvous takes place; empty for one process."""
    port: int = 0
    """Port of the rendezvous; 0 for one process."""
    reason: str = "one process"
    """Which launcher or variables these values come from."""


def process_info() -> ProcessInfo:
    """Returns the ProcessInfo of this process from the first source that is present: HOROVOD_RANK and HOROVOD_SIZE
    (horovodrun), RANK and WORLD_SIZE (`lambert launch`, torchrun, Kubeflow, Ray Train), Open MPI, a step of Slurm
    (srun), an indexed Job of Kubernetes with WORLD_SIZE; otherwise that of a single process.

    MASTER_ADDR and MASTER_PORT, if set, override the rendezvous address of every source. Raises UsageError for values
    that are impossible or missing.
    """
    for source in (_by_variables, _by_mpi, _by_slurm, _by_kubernetes):
        found = source()
        if found is not None:
            return _check(found)
    if integer("WORLD_SIZE", 1) > 1:
        raise UsageError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}, but nothing says which rank this is: set RANK too, or start the "
            "processes with `lambert launch`."
        )
    return ProcessInfo()


def slurm_rendezvous() -> tuple[str, int]:
    """Returns the rendezvous address of this Slurm step: its first host, and a port derived from its number."""
    hosts = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
    job, step = integer("SLURM_JOB_ID", 0), integer("SLURM_STEP_ID", 0)
    return _rendezvous(next(hosts_of(hosts)) if hosts else "", job * 31 + step)


def address_toward(host: str, port: int = 9) -> str:
    """Returns the address of this host's network interface on the route to `host`. Raises OSError if `host` is unknown
    or unreachable."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing; it only selects the route
        return str(probe.getsockname()[0])


def hosts_of(text: str) -> Iterator[str]:
    """Yields the hosts of a Slurm host list in order: n[01-03,7],login is n01, n02, n03, n7 and login.

    Source: https://slurm.schedmd.com/slurm.conf.html, NodeName. Raises UsageError if `text` is not such a list.
    """
    if not re.fullmatch(r"(\[[\d,-]+\]|[^\[\],\s])+(,(\[[\d,-]+\]|[^\[\],\s])+)*", text):
        raise UsageError(f"{text!r} is not a list of hosts as Slurm writes them, such as n[01-03,7].")
    for name in re.findall(r"(?:\[[^\]]*\]|[^\[\],])+", text):
        parts = [_numbers(part[1:-1]) if part[0] == "[" else [part] for part in re.findall(r"\[[^\]]*\]|[^\[]+", name)]
        yield from map("".join, product(*parts))


def _by_variables() -> ProcessInfo | None:
    for rank, size, local_rank, local_size in _VARIABLES:
        if rank in os.environ:
            if size not in os.environ:
                raise UsageError(
                    f"{rank} is set, and {size} is not. Set both, or start the processes with `lambert launch`."
                )
            by = next((name for variable, name in _LAUNCHERS.items() if variable in os.environ), "the environment")
            local = integer(local_rank, 0)  # Kubeflow sets no local rank: it runs one process per container.
            return ProcessInfo(
                integer(rank), integer(size), local, integer(local_size, local + 1),
                *_rendezvous(""), f"{by} ({rank}, {size})",
            )  # fmt: skip
    return None


def _by_mpi() -> ProcessInfo | None:
    prefix = "OMPI_COMM_WORLD_"
    if f"{prefix}RANK" not in os.environ:
        return None
    size = integer(f"{prefix}SIZE")
    local_rank = integer(f"{prefix}LOCAL_RANK", 0)
    local_size = integer(f"{prefix}LOCAL_SIZE", local_rank + 1)
    job = os.environ.get("PMIX_NAMESPACE") or os.environ.get("OMPI_MCA_ess_base_jobid", "")  # noqa: SIM112, its name
    rendezvous = _rendezvous("127.0.0.1" if local_size == size else "", zlib.crc32(job.encode()))
    return ProcessInfo(integer(f"{prefix}RANK"), size, local_rank, local_size, *rendezvous, f"Open MPI ({prefix}RANK)")


def _by_slurm() -> ProcessInfo | None:
    # A batch script is one process, and has SLURM_PROCID=0 and SLURM_NTASKS too. Only srun sets SLURM_STEP_NUM_TASKS.
    if "SLURM_STEP_NUM_TASKS" not in os.environ or "SLURM_PROCID" not in os.environ:
        return None
    local_rank, size = integer("SLURM_LOCALID", 0), integer("SLURM_STEP_NUM_TASKS")
    local_size = _tasks_here() or integer("SLURM_NTASKS_PER_NODE", local_rank + 1)
    rendezvous = slurm_rendezvous() if size > 1 else ("", 0)
    return ProcessInfo(
        integer("SLURM_PROCID"), size, local_rank, local_size, *rendezvous, "Slurm (SLURM_PROCID of srun)"
    )


def _by_kubernetes() -> ProcessInfo | None:
    if "JOB_COMPLETION_INDEX" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    reason = "Kubernetes (JOB_COMPLETION_INDEX of an indexed Job, WORLD_SIZE)"
    return ProcessInfo(integer("JOB_COMPLETION_INDEX"), integer("WORLD_SIZE"), 0, 1, *_rendezvous(""), reason)


def _tasks_here() -> int:
    """Returns the number of tasks of the Slurm step on this node; 0 if unknown. SLURM_STEP_TASKS_PER_NODE = 4(x2),3
    means 4, 4 and 3."""
    text = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts = [
        int(count) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", text) for _ in range(int(times or 1))
    ]
    node = integer("SLURM_NODEID", 0)
    return counts[node] if 0 <= node < len(counts) else 0


def _rendezvous(address: str, job: int = _DEFAULT_JOB) -> tuple[str, int]:
    """Returns MASTER_ADDR and MASTER_PORT, or Horovod's variables for them; if unset, `address` and the port derived
    from `job`."""
    given = os.environ.get("MASTER_ADDR") or os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    port = integer("HOROVOD_GLOO_RENDEZVOUS_PORT", PORTS[job % len(PORTS)])
    return given or address, integer("MASTER_PORT", port)


def integer(name: str, default: int | None = None) -> int:
    """Returns the value of the environment variable `name`, or `default` if it is not set. Raises UsageError if the
    value is not an integer of at least 0, or if the variable is not set and there is no default."""
    text = os.environ.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"\d{1,10}", text.strip()):
        raise UsageError(f"{name}={text!r} is not an integer of at least 0; the launcher sets this variable.")
    return int(text)


def _numbers(text: str) -> list[str]:
    """Expands 01-03,7 to 01, 02, 03 and 7."""
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first or (last and int(last) < int(first)) or part.endswith("-"):
            raise UsageError(f"[{text}] is not a range of Slurm's hosts.")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
    return found


def _check(found: ProcessInfo) -> ProcessInfo:
    if not 0 <= found.rank < found.size:
        raise UsageError(f"{found.reason}: rank {found.rank} is not below size {found.size}.")
    if not found.local_rank < found.local_size <= found.size:
        raise UsageError(
            f"{found.reason}: local rank {found.local_rank} of {found.local_size} on this machine is impossible with "
            f"{found.size} processes in all."
        )
    if found.size > 1 and not found.address:
        raise UsageError(
            f"{found.reason}: {found.size} processes have no rendezvous address: set MASTER_ADDR and MASTER_PORT to "
            "the host of rank 0 and a free port on it."
        )
    if not 0 < found.port < 2**16 and found.size > 1:
        raise UsageError(f"MASTER_PORT={found.port} is not a port: choose one between 1024 and 65535.")
    return found
