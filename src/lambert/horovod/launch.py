"""The rank of this process and the address of the rendezvous, which the launcher sets in the environment."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    """The rank of a process, and the rendezvous of the ranks."""

    rank: int = 0
    size: int = 1
    world_size: int = 1
    """Number of processes that were started; `init(comm=...)` may use fewer."""
    meeting: tuple[str, int] | None = None
    """Host name and port of the rendezvous store. None for a single process."""
    hosts_store: bool = False
    """Whether this process opens the store."""
    attempt: str = "0"
    """Identifies this start of the job among all starts that use the same store."""

    @property
    def host(self) -> str:
        """The name of this host, which is equal for all ranks of one host."""
        return os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()

    def own_address(self) -> str:
        """Returns the address at which other ranks can reach this host: that of the interface toward the store."""
        if self.meeting is None:
            return "127.0.0.1"
        address = _interface_toward(self.meeting)
        on_this_host = integer("HOROVOD_LOCAL_SIZE", "LOCAL_WORLD_SIZE")
        if address.startswith("127.") and on_this_host is not None and on_this_host < self.size:
            # Some systems assign a loopback address to their own name. Other hosts reach the outward interface.
            address = _interface_toward(("192.0.2.1", 9))  # reserved for documentation, RFC 5737
        return address

    @classmethod
    def detect(cls, comm: Sequence[int] = ()) -> "Launch":
        """Reads the launch from the environment variables of Horovod (HOROVOD_RANK, HOROVOD_SIZE) or of torchrun (RANK,
        WORLD_SIZE). Without these variables, the launch is a single process.

        The address of the store is MASTER_ADDR and MASTER_PORT, or HOROVOD_GLOO_RENDEZVOUS_ADDR and
        HOROVOD_GLOO_RENDEZVOUS_PORT. `comm` lists the ranks to use; if it is empty, all ranks are used.

        Raises:
            ValueError: A variable is missing or invalid.
        """
        rank, size = integer("HOROVOD_RANK", "RANK"), integer("HOROVOD_SIZE", "WORLD_SIZE")
        if (rank is None) != (size is None):
            raise ValueError(f"the environment has a rank without a size or the reverse: rank {rank}, size {size}")
        if rank is None or size is None:
            rank, size = 0, 1
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is not below size {size}")
        ranks = list(range(size)) if not comm else list(comm)
        if rank not in ranks or not all(0 <= other < size for other in ranks) or len(set(ranks)) != len(ranks):
            raise ValueError(f"init(comm={ranks}) needs different ranks below {size}, this one, {rank}, among them")
        if len(ranks) == 1:
            return cls(world_size=size)
        address = os.environ.get("MASTER_ADDR") or os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
        port = integer("MASTER_PORT", "HOROVOD_GLOO_RENDEZVOUS_PORT")
        if address is None or port is None:
            raise ValueError(f"rank {rank} of {size} has nowhere to meet the others: set MASTER_ADDR and MASTER_PORT")
        by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        attempt = os.environ.get("HOROVOD_ELASTIC_GENERATION") or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(
            rank=ranks.index(rank),
            size=len(ranks),
            world_size=size,
            meeting=(address, port),
            hosts_store=rank == 0 and not by_agent,
            attempt=f"{attempt}/{','.join(map(str, ranks))}" if comm else attempt,
        )


def _interface_toward(target: tuple[str, int]) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing: it only chooses the interface
        address: str = probe.getsockname()[0]
    return address


def integer(*names: str) -> int | None:
    """Returns the value of the first of these environment variables that is set, or None. Raises ValueError if the
    value is not an integer."""
    for name in names:
        text = os.environ.get(name)
        if text is not None:
            try:
                return int(text)
            except ValueError as error:
                raise ValueError(f"{name}={text!r} is not an integer") from error
    return None
