"""Hosts, their slots, and the assignment of ranks to slots."""

import re
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from lambert.core.errors import DataError, UsageError

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A host name has no leading dash, because it is passed to ssh as an argument."""


@dataclass(frozen=True)
class Host:
    """A host and its number of slots, that is, the ranks that it can run."""

    name: str
    slots: int


@dataclass(frozen=True)
class Slot:
    """The place of a rank: its host, and its rank in the world, on its host (local), and among the ranks with the same
    local rank (cross). The names of the fields are those of Horovod's variables."""

    hostname: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def variables(self, master: str, port: int) -> dict[str, str]:
        """Returns the environment variables that Horovod and torchrun use for this place."""
        torchrun = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_size,
            "GROUP_RANK": self.cross_rank,
            "MASTER_ADDR": master,
            "MASTER_PORT": port,
        }
        horovod = {f"HOROVOD_{name.upper()}": value for name, value in asdict(self).items()}
        return {key: str(value) for key, value in (torchrun | horovod).items()}


def parse_hosts(text: str, slots: int | None = None) -> list[Host]:
    """Parses hosts such as `host1:2,host2:4`, separated by commas or newlines. `slots` is the default number of
    slots."""
    hosts = []
    for part in re.split(r"[,\n]", text):
        if not part.strip():
            continue
        name, _, count = part.strip().partition(":")
        if not _HOST.fullmatch(name) or not (count.isdecimal() and int(count) > 0 if count else slots):
            raise UsageError(f"horovodrun: {part.strip()!r} does not have the form host:slots, as in node-0:2,node-1:2")
        hosts.append(Host(name, int(count) if count else int(slots or 1)))
    if not hosts:
        raise UsageError("horovodrun: the list of hosts is empty")
    if len({host.name for host in hosts}) < len(hosts):
        raise UsageError(f"horovodrun: {text.strip()!r} names a host more than once")
    return hosts


def read_hostfile(path: str) -> list[Host]:
    """Reads hosts from a file with lines `host slots=N`. Empty lines and comments after # are ignored."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot read the hosts ({error})") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        match = re.fullmatch(rf"({_HOST.pattern})(?:\s+slots\s*=\s*([1-9]\d*))?", text)
        if text and not match:
            raise DataError(f"{path}:{number}: {text!r} does not have the form `host slots=N`")
        if match:
            hosts.append(Host(match[1], int(match[2] or 1)))
    return parse_hosts(",".join(f"{host.name}:{host.slots}" for host in hosts))


def discover(script: str, slots: int | None) -> list[Host]:
    """Runs the discovery script and returns the hosts that it prints, one `host:slots` or `host` per line."""
    try:
        done = subprocess.run(script, shell=True, capture_output=True, text=True, timeout=60, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        raise DataError(f"{script}: the discovery script failed ({error})") from error
    return parse_hosts(done.stdout, slots or 1) if done.stdout.strip() else []


def assign_slots(ranks: Sequence[str]) -> list[Slot]:
    """Returns the slots of ranks 0, 1, ..., given the host of each rank."""
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
    """Returns the slots of `ranks` ranks, and fills one host after another. Raises UsageError if slots are missing."""
    slots = [host.name for host in hosts for _ in range(host.slots)]
    if len(slots) < ranks:
        raise UsageError(f"horovodrun: -np {ranks} exceeds the {len(slots)} slots of the hosts")
    return assign_slots(slots[:ranks])


@cache
def is_local(name: str) -> bool:
    """Returns whether `name` refers to this host."""
    if name in ("localhost", "127.0.0.1", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        address = socket.gethostbyname(name)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def choose_rendezvous(ranks: Sequence[Slot]) -> tuple[str, int]:
    """Returns the address and a free port at which rank 0 listens: the loopback address if all ranks run on this
    host."""
    first = ranks[0].hostname
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    if all(is_local(slot.hostname) for slot in ranks):
        return "127.0.0.1", port
    return (socket.gethostname() if first in ("localhost", "127.0.0.1") else first), port
