"""`lambert launch`: one verb in several processes, on one machine or many, kept alive by torch's elastic agent."""

import logging
import os
import shlex
import socket
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from lambert.commands import parse
from lambert.core.errors import MachineError, UsageError
from lambert.core.files import scratch_folder
from lambert.core.launcher import ENDS, Ended
from lambert.core.settings import check
from lambert.core.signals import LAUNCHED
from lambert.distributed.launch_environment import address_toward, slurm_rendezvous
from lambert.engine import process
from lambert.runs.result import Say, silent
from lambert.verb import all_verbs, find

T = TypeVar("T")
_PORT = 29500
_REPLY_SECONDS = 5.0
"""Added to the time-out for reaching the rendezvous, for its reply."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """A group of processes: how many, where their rendezvous is, and how often it is restarted after a crash."""

    nproc_per_node: str = "auto"
    """Processes on this machine (or -np); auto: one for each GPU, or one if there is no GPU."""
    nnodes: str = "1"
    """Machines, each of which runs this same command; MIN:MAX: the group continues as machines join and leave."""
    endpoint: str = ""
    """HOST:PORT of the rendezvous, HOST being one of the machines. Not set: chosen on one machine and under Slurm, else
    MASTER_ADDR and MASTER_PORT."""
    run_id: str = ""
    """A name that the machines of this group share, if other groups use the same endpoint. Not set: that of the Slurm
    job."""
    max_restarts: int = 3
    """Restarts of the group after crashes; a failure that another attempt would not change ends it at once."""
    timeout: int = 50
    """Seconds to wait for the other machines."""
    dry_run: bool = False
    """Print the command and its environment, and start nothing."""

    def __post_init__(self) -> None:
        if self.nproc_per_node != "auto" and not (self.nproc_per_node.isdecimal() and int(self.nproc_per_node)):
            raise UsageError(f"--nproc-per-node {self.nproc_per_node} must be a number of processes, or auto.")
        least, _, most = self.nnodes.partition(":")
        if not (least.isdecimal() and (most or least).isdecimal() and 1 <= int(least) <= int(most or least)):
            raise UsageError(f"--nnodes {self.nnodes} must be a number of machines, or MIN:MAX.")
        check(self, timeout="[1, inf)")

    @property
    def machines(self) -> tuple[int, int]:
        """Fewest and most machines."""
        least, _, most = self.nnodes.partition(":")
        return int(least), int(most or least)

    def rendezvous(self) -> tuple[str, int]:
        """Returns host and port of the rendezvous; port 0: any. Raises UsageError if they are not known."""
        if self.endpoint:
            host, _, port = self.endpoint.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
                raise UsageError(
                    f"--endpoint {self.endpoint} must be HOST:PORT, as in node1:{_PORT}, with a port up to 65535."
                )
            return host.strip("[]"), int(port)
        if self.machines[1] == 1:
            return "127.0.0.1", 0
        host, port_number = slurm_rendezvous()
        if not host:
            raise UsageError(
                f"--nnodes {self.nnodes} needs a rendezvous: set --endpoint HOST:PORT, the same on all machines, HOST "
                "being one of them."
            )
        return host, port_number


_FLAGS = ("-np", *(f"--{field.name.replace('_', '-')}" for field in fields(LaunchConfig)))


def split(tokens: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Returns the tokens of the command line that are `launch`'s own, the last of which is the verb that it starts, and
    no other settings."""
    at = _verb_at(tokens)
    own = ["--nproc-per-node" + token[3:] if token.partition("=")[0] == "-np" else token for token in tokens[: at + 1]]
    return own, {}


def _verb_at(tokens: list[str]) -> int:
    at = 1
    while at < len(tokens) and tokens[at].startswith("-"):
        at += _length(tokens[at])
    return at


def _length(flag: str) -> int:
    """Returns the number of tokens of a flag with its value."""
    return 1 if "=" in flag or flag in ("--dry-run", "--no-dry-run", "--help", "-h") else 2


def _check_order(tokens: list[str]) -> None:
    """Raises UsageError if flags of launch follow the verb. The message has the command in the right order."""
    at = _verb_at(tokens)
    own_flags, rest = tokens[:at], list[str]()
    strays = []
    while at < len(tokens):
        name, length = tokens[at].partition("=")[0].replace("_", "-"), _length(tokens[at])
        if name in _FLAGS:
            strays.append(name)
            own_flags += tokens[at : at + length]
            at += length
        else:
            rest.append(tokens[at])
            at += 1
    if strays:
        raise UsageError(
            f"{' and '.join(strays)} of launch must precede the verb: lambert {shlex.join([*own_flags, *rest])}"
        )


def run(config: LaunchConfig, tokens: list[str], say: Say = silent) -> None:
    """Starts the verb in `tokens` once per process and waits until the group has ended.

    Args:
        tokens: The command line: `launch`, its flags, the verb and the verb's arguments.
        say: Prints a line of a dry run.

    Raises:
        Ended: The group failed.
        MachineError: The machines cannot connect.
    """
    command = tokens[_verb_at(tokens) :]
    verb = find(command)
    if verb is None or not verb.ranks:
        shared = [one.name for one in all_verbs().values() if one.ranks]
        raise UsageError(f"{command[0]} cannot run in several processes. These verbs can: {', '.join(shared)}.")
    _check_order(tokens)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # read when torch is imported
    processes = _processes(config)
    rendezvous = config.rendezvous()
    settings = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, process.count_cores() // processes))),
        # With one store for all, a machine that comes back waits for a key that nobody writes: pytorch#135712.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_CPP_LOG_LEVEL": os.environ["TORCH_CPP_LOG_LEVEL"],
    }
    if config.dry_run:
        most = config.machines[1]
        where = "this machine" if most == 1 else f"each of {config.nnodes} machines that meet at {_text(rendezvous)}"
        say(f"processes  {processes} on {where}")
        say(f"restarts   {config.max_restarts} at most, after a crash")
        say("settings   " + " ".join(f"{name}={value}" for name, value in settings.items()))
        say("command    " + shlex.join([sys.executable, "-P", "-m", "lambert", *command]))
        return
    chosen = parse.settings(command)  # before any process starts, so that a wrong setting is reported once
    if chosen is None:
        return
    if config.machines[1] == 1 and verb.updates:  # the processes of other machines are not known here
        from lambert.engine import archive

        chosen.train.check_ranks(processes, archive.find_last(chosen.out))
    os.environ |= settings
    os.environ |= process.variables()
    with scratch_folder("lambert-launch") as ends:
        os.environ |= {LAUNCHED: str(os.getpid()), ENDS: str(ends)}
        _supervise(config, processes, rendezvous, command, ends, getattr(chosen, "out", None))


def _supervise(
    config: LaunchConfig, processes: int, rendezvous: tuple[str, int], command: list[str], ends: Path, out: Path | None
) -> None:
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters, registry

    from lambert.distributed.agent import Agent
    from lambert.engine.signals import graceful_stop

    logging.disable(logging.CRITICAL)  # of torch's agent: Lambert's `Agent` reports what the user should know
    least, most = config.machines
    address = "127.0.0.1" if most == 1 else _own_address(rendezvous[0])
    alone = uuid.uuid4().hex if most == 1 else "lambert"
    run_id = config.run_id or os.environ.get("SLURM_JOB_ID") or alone
    parameters = RendezvousParameters(
        "c10d", _text(rendezvous), run_id, least, most, address,
        timeout=config.timeout, join_timeout=config.timeout, read_timeout=config.timeout,
        last_call_timeout=3, close_timeout=5, keep_alive_interval=1, keep_alive_max_attempt=3,
    )  # fmt: skip
    try:
        with graceful_stop(" before there was a group"):
            handler = _within(config.timeout + _REPLY_SECONDS, lambda: registry.get_rendezvous_handler(parameters))
    except (RendezvousError, TimeoutError) as error:
        raise MachineError(_explain_unreachable(rendezvous, config.timeout)) from error
    spec = WorkerSpec(
        "lambert", processes, handler, entrypoint=sys.executable, args=("-P", "-m", "lambert", *command),
        max_restarts=config.max_restarts, monitor_interval=0.1, local_addr=address,
    )  # fmt: skip
    agent = Agent(spec, ends, elastic=least < most, run=out)
    try:
        with agent.forward_signals():
            agent.run()
    except RendezvousError as error:
        if agent.outcome is None:
            raise MachineError(_explain_lost(error, config, rendezvous)) from error
    finally:
        if not (agent.signalled and least < most):  # else the other machines continue
            handler.shutdown()
    if agent.outcome is not None:
        raise Ended(agent.outcome.line, agent.outcome.code)


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Returns the result of `work`. Raises TimeoutError after `seconds`: torch itself waits forever for a reply in the
    store's protocol."""
    promise: Future[T] = Future()

    def keep() -> None:
        try:
            promise.set_result(work())
        except Exception as error:
            promise.set_exception(error)

    threading.Thread(target=keep, name="lambert-rendezvous", daemon=True).start()
    return promise.result(seconds)


def _processes(config: LaunchConfig) -> int:
    if config.nproc_per_node != "auto":
        return int(config.nproc_per_node)
    import torch

    return max(1, torch.cuda.device_count())


def _own_address(host: str) -> str | None:
    """Returns this machine's address on the route to `host`, or None if only its name is known."""
    try:
        address = address_toward(host)
    except OSError:
        return None
    # Some systems assign 127.0.1.1 to their own name, which other machines cannot reach.
    return address if not address.startswith("127.") or host in ("localhost", "127.0.0.1") else None


def _explain_unreachable(rendezvous: tuple[str, int], seconds: int) -> str:
    host, port = rendezvous
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        if error.errno is not None and "in use" in os.strerror(error.errno):
            return f"Port {port} of {host} is in use by another program: choose another with --endpoint."
    return (
        f"Nobody answers at {_text(rendezvous)} within {seconds} s: is lambert launch running on that machine, with "
        "the same --endpoint, and is that port reachable from here?"
    )


def _explain_lost(error: Exception, config: LaunchConfig, rendezvous: tuple[str, int]) -> str:
    from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

    if isinstance(error, RendezvousTimeoutError):
        return (
            f"Fewer than {config.machines[0]} machines met at {_text(rendezvous)} within {config.timeout} s: start the "
            "same command on each, or ask for fewer with --nnodes MIN:MAX."
        )
    if isinstance(error, RendezvousClosedError):
        return f"The group that met at {_text(rendezvous)} has ended: choose another --run-id for a new one."
    return f"The rendezvous at {_text(rendezvous)} is lost: did the machine that holds it go down?"


def _text(rendezvous: tuple[str, int]) -> str:
    host, port = rendezvous
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
