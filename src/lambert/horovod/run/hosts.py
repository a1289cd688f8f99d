"""Hosts, their slots, and which rank goes where."""

import re
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lambert.core.errors import DataError, UsageError

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""No leading dash: a host's name stands among ssh's arguments."""


@dataclass(frozen=True)
class Host:
    """A machine and how many ranks it takes."""

    name: str
    slots: int


@dataclass(frozen=True)
class Slot:
    """Where a rank runs: its place in the world, on its host (local), and among the ranks of its local rank (cross)."""

    host: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def variables(self, master: str, port: int) -> dict[str, str]:
        """What Horovod and what torchrun call it."""
        torchrun = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_size,
            "GROUP_RANK": self.cross_rank,
            "MASTER_ADDR": master,
            "MASTER_PORT": port,
        }
        horovod = {
            "HOROVOD_HOSTNAME": self.host,
            "HOROVOD_RANK": self.rank,
            "HOROVOD_SIZE": self.size,
            "HOROVOD_LOCAL_RANK": self.local_rank,
            "HOROVOD_LOCAL_SIZE": self.local_size,
            "HOROVOD_CROSS_RANK": self.cross_rank,
            "HOROVOD_CROSS_SIZE": self.cross_size,
        }
        return {key: str(value) for key, value in (torchrun | horovod).items()}


def parse_hosts(text: str, slots: int | None = None) -> list[Host]:
    """`host1:2,host2:4` (or lines of it) as hosts; `slots` are those of a host that names none."""
    hosts = []
    for part in re.split(r"[,\n]", text):
        if not part.strip():
            continue
        name, _, count = part.strip().partition(":")
        if not _HOST.fullmatch(name) or not (count.isdecimal() and int(count) > 0 if count else slots):
            raise UsageError(f"horovodrun: {part.strip()!r} is not of the form host:slots, as in worker-0:2,worker-1:2")
        hosts.append(Host(name, int(count) if count else int(slots or 1)))
    if not hosts:
        raise UsageError("horovodrun: the list of hosts is empty")
    if len({host.name for host in hosts}) < len(hosts):
        raise UsageError(f"horovodrun: a host stands more than once in {text.strip()!r}")
    return hosts


def read_hostfile(path: str) -> list[Host]:
    """Hosts of a file with lines `host slots=N`; empty lines and what follows a # do not count."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the hosts cannot be read ({error})") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        match = re.fullmatch(rf"({_HOST.pattern})(?:\s+slots\s*=\s*([1-9]\d*))?", text)
        if text and not match:
            raise DataError(f"{path}:{number}: {text!r} is not of the form `host slots=N`")
        if match:
            hosts.append(Host(match[1], int(match[2] or 1)))
    return parse_hosts(",".join(f"{host.name}:{host.slots}" for host in hosts))


def discover(script: str, slots: int | None) -> list[Host]:
    """Hosts that the script prints now, `host:slots` or `host` a line."""
    try:
        done = subprocess.run(script, shell=True, capture_output=True, text=True, timeout=60, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        raise DataError(f"{script}: the script that discovers hosts failed ({error})") from error
    return parse_hosts(done.stdout, slots or 1) if done.stdout.strip() else []


def slots_of(ranks: Sequence[str]) -> list[Slot]:
    """The slots of ranks 0, 1, ... that run on these hosts."""
    order = list(dict.fromkeys(ranks))
    local_of, seen = [], dict.fromkeys(order, 0)
    for host in ranks:
        local_of.append(seen[host])
        seen[host] += 1
    found = []
    for rank, (host, local) in enumerate(zip(ranks, local_of, strict=True)):
        across = [name for name in order if seen[name] > local]
        found.append(Slot(host, rank, len(ranks), local, seen[host], across.index(host), len(across)))
    return found


def fill(hosts: Sequence[Host], ranks: int) -> list[Slot]:
    """The slots of `ranks` ranks, host by host; `UsageError` when there are fewer slots."""
    slots = [host.name for host in hosts for _ in range(host.slots)]
    if len(slots) < ranks:
        raise UsageError(f"horovodrun: -np {ranks} needs more than the {len(slots)} slots of the hosts")
    return slots_of(slots[:ranks])


@cache
def is_local(name: str) -> bool:
    """Whether a host's name means this machine."""
    if name in ("localhost", "127.0.0.1", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        address = socket.gethostbyname(name)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def meeting_point(ranks: Sequence[Slot]) -> tuple[str, int]:
    """Address and free port where rank 0 listens: the loopback when all ranks run here."""
    first = ranks[0].host
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    if all(is_local(slot.host) for slot in ranks):
        return "127.0.0.1", port
    return (socket.gethostname() if first in ("localhost", "127.0.0.1") else first), port
