"""A small cluster on one Linux machine: nodes with a network of their own, as slow as one likes.

    python -m benchmarks.network.lab --ranks 2 --rate 100mbit -- python -m benchmarks.network.allreduce --megabytes 20

Every node is a network namespace with one interface, eth0 (10.77.0.10, 10.77.0.11, ...), on a bridge that lives in a
namespace of its own: nothing outside is touched, and labs run beside each other. Token buckets (tc-tbf) limit what a
node sends and what it receives; latency is the kernel's own, some 50 microseconds. The command runs once a node with
the environment that `torchrun` would give it, on a core of its own, and the bytes that the node put on the wire,
headers included, are counted.

Needs Linux, root, iproute2 and util-linux. A lab that was killed is swept away by the next one.
"""

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PREFIX = "lambert"
PORT = 29500  # each lab has its own network: no port is ever taken
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_NUMBERS = itertools.count()


class LabError(Exception):
    """The lab cannot be built, or a command in it failed. One line."""


def missing() -> str:
    """Why there can be no lab here, or nothing."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [name for name in ("ip", "tc", "setpriv", "taskset") if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (iproute2 and util-linux have them)"
    probe = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    return f"ip netns: {probe.stderr.strip()}" if probe.returncode else ""


def bits_per_second(rate: str) -> float:
    """What "100mbit" says; infinity for "none". Raises LabError for what is no rate."""
    if rate == "none":
        return float("inf")
    unit = next((unit for unit in UNITS if rate.endswith(unit)), "")
    try:
        return float(rate.removesuffix(unit)) * UNITS[unit]
    except (KeyError, ValueError):
        raise LabError(f"rate = {rate!r} is none of: none, or a number with {', '.join(UNITS)}.") from None


@dataclass(frozen=True, slots=True)
class Finished:
    """What the command of a rank left."""

    code: int
    """Exit code, negative after a signal."""
    out: str
    err: str
    seconds: float
    """From the start of the first rank to the end of this one, to 0.05 s."""
    sent: int
    """Bytes that its node put on the wire meanwhile."""


class Lab:
    """`nodes` nodes whose links carry `rate` in each direction ("none", "10gbit", "100mbit", ...). A context manager.

    Raises LabError where there can be none, and where a command of iproute2 fails.
    """

    def __init__(self, nodes: int, rate: str = "none") -> None:
        reason = missing()
        if reason:
            raise LabError(f"No slow network here: {reason}.")
        bits_per_second(rate)
        self.nodes, self.rate = nodes, rate
        self._name = f"{PREFIX}-{os.getpid()}-{next(_NUMBERS)}"
        self._switch = f"{self._name}-switch"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        sweep()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for node in range(self.nodes):
            space = self.namespace(node)
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
            pair = ("link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", f"port{node}")
            _ip("-n", self._switch, *pair)
            _ip("-n", self._switch, "link", "set", f"port{node}", "master", "bridge", "up")
            _ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            self._limit(space, "eth0")
            self._limit(self._switch, f"port{node}")

    def _limit(self, space: str, interface: str) -> None:
        """A token bucket in front of what the interface sends: what a node sends, or what the bridge hands to it."""
        if self.rate == "none":
            return
        # A bucket must hold a segment of 64 kB before it is cut into packets, and a millisecond of the fastest links.
        burst = max(256_000, int(bits_per_second(self.rate) / 8 / 1000))
        bucket = ("tbf", "rate", self.rate, "burst", str(burst), "latency", "50ms")
        _command("tc", "-n", space, "qdisc", "add", "dev", interface, "root", *bucket)

    def namespace(self, node: int) -> str:
        """Its name, for `ip netns exec`."""
        return f"{self._name}-{node}"

    def address(self, node: int) -> str:
        """Its address on the lab's network."""
        return f"10.77.0.{10 + node}"

    def cut(self, node: int) -> None:
        """Takes the link of a node down, as if its cable were pulled."""
        _ip("-n", self._switch, "link", "set", f"port{node}", "down")

    def heal(self, node: int) -> None:
        """Takes it up again."""
        _ip("-n", self._switch, "link", "set", f"port{node}", "up")

    def sent(self, node: int) -> int:
        """Bytes that the node put on the wire so far, Ethernet headers included."""
        found: list[dict[str, Any]] = json.loads(_ip("-n", self.namespace(node), "-s", "-j", "link", "show", "eth0"))
        return int(found[0]["stats64"]["tx"]["bytes"])

    def environment(self, rank: int) -> dict[str, str]:
        """What `torchrun` would set with one process on each node, and on which interface gloo is to meet."""
        return {
            "RANK": str(rank), "WORLD_SIZE": str(self.nodes), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank), "MASTER_ADDR": self.address(0), "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # or every rank warns that addresses here have no names
        }  # fmt: skip

    def start(
        self, rank: int, command: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
    ) -> "subprocess.Popen[bytes]":
        """Begins the command of one rank; `options` are those of Popen. It dies with this process."""
        cores = sorted(os.sched_getaffinity(0))
        inside = ("ip", "netns", "exec", self.namespace(rank), "taskset", "-c", str(cores[rank % len(cores)]))
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *inside, *command],
            env=os.environ | self.environment(rank) | dict(environment or {}),
            **options,
        )
        self._processes.append(process)
        return process

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        grace: float = 30.0,
    ) -> list[Finished]:
        """The same command on every rank; what each left. Raises LabError after `timeout` seconds, and `grace` seconds
        after a rank failed while others go on."""
        before = [self.sent(node) for node in range(self.nodes)]
        started = time.monotonic()
        ends: dict[int, float] = {}
        limit = started + timeout
        with tempfile.TemporaryDirectory() as folder:
            outputs = [(Path(folder) / f"{rank}.out", Path(folder) / f"{rank}.err") for rank in range(self.nodes)]
            processes = []
            for rank, (out, err) in enumerate(outputs):
                with out.open("wb") as stdout, err.open("wb") as stderr:
                    processes.append(self.start(rank, command, environment, stdout=stdout, stderr=stderr))
            while len(ends) < self.nodes:
                time.sleep(0.05)
                now = time.monotonic()
                for rank, process in enumerate(processes):
                    if rank not in ends and process.poll() is not None:
                        ends[rank] = now
                        if process.returncode:
                            limit = min(limit, now + grace)
                if now > limit and len(ends) < self.nodes:
                    said = "\n".join(err.read_text(errors="replace")[-2000:] for _, err in outputs)
                    raise LabError(f"Still running after {now - started:.0f} s: {' '.join(command)}\n{said}")
            return [
                Finished(
                    processes[rank].returncode,
                    out.read_text(errors="replace"),
                    err.read_text(errors="replace"),
                    ends[rank] - started,
                    self.sent(rank) - before[rank],
                )
                for rank, (out, err) in enumerate(outputs)
            ]

    def close(self) -> None:
        """Ends what still runs in the lab and takes it away."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            with process:  # waits for it, and closes its pipes
                pass
        self._processes.clear()
        _remove(self._name)


def sweep() -> None:
    """Takes away labs whose process is gone."""
    names = {space.rsplit("-", 1)[0] for space in _spaces()}
    for name in names:
        try:
            state = Path(f"/proc/{name.split('-')[1]}/status").read_text()
        except FileNotFoundError:
            state = "State:\tZ"
        if "State:\tZ" in state:  # gone, or dead and not yet waited for
            _remove(name)


def _remove(name: str) -> None:
    """Everything that runs in the namespaces of a lab, and these; interfaces and bridge go with them."""
    for space in _spaces():
        if not space.startswith(f"{name}-"):
            continue
        found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
        for pid in map(int, found.stdout.split()):
            with _gone_already():
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)


@contextmanager
def _gone_already() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        return


def _spaces() -> list[str]:
    """Namespaces of all labs."""
    listed = [line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()]
    return [name for name in listed if name.startswith(f"{PREFIX}-") and name.split("-")[1].isdigit()]


def _ip(*arguments: str) -> str:
    return _command("ip", *arguments)


def _command(*arguments: str) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", default="none", help="none, 10gbit, 1gbit, 100mbit, ...")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the command of every rank")
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("give the command after --")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with Lab(arguments.ranks, arguments.rate) as lab:
            found = lab.run(command, timeout=arguments.timeout)
    except LabError as error:
        sys.exit(str(error))
    for rank, finished in enumerate(found):
        sys.stdout.write(finished.out)
        sys.stderr.write(finished.err)
        row = {"rank": rank, "code": finished.code, "seconds": round(finished.seconds, 2), "sent": finished.sent}
        print(json.dumps(row))
    sys.exit(max(abs(finished.code) for finished in found))


if __name__ == "__main__":
    main()
