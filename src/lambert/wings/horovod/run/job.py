"""A job with a fixed number of ranks. When a rank fails, all other ranks are terminated."""

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from lambert.core.errors import DataError
from lambert.wings.horovod.run.hosts import Host, Slot, choose_rendezvous, fill, is_local, parse_hosts, read_hostfile
from lambert.wings.horovod.run.options import build_environment
from lambert.wings.horovod.run.workers import Worker, build_remote_script, build_ssh_command, end, select_environment

POLL_SECONDS = 0.05

Start = Callable[[Slot, Mapping[str, str]], Worker]


class Stop(Exception):
    """Raised when a signal asks the launcher to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def read_hosts(args: argparse.Namespace) -> list[Host]:
    """Returns the hosts that the options name: a list, a file, or by default this host."""
    if args.hostfile:
        return read_hostfile(args.hostfile)
    return parse_hosts(args.hosts) if args.hosts else [Host("localhost", args.num_proc)]


def create_starter(args: argparse.Namespace) -> Start:
    """Returns a function that starts a rank with these options."""
    common, ssh = build_environment(args), build_ssh_command(args.ssh_port, args.ssh_identity_file)

    def start(slot: Slot, own: Mapping[str, str]) -> Worker:
        output = {"folder": create_output_folder(args, slot), "timestamps": args.prefix_output_with_timestamp}
        return Worker(args.command, slot.hostname, {**common, **own}, ssh, **output)

    return start


def create_output_folder(args: argparse.Namespace, slot: Slot) -> Path | None:
    """Creates and returns the folder for the rank's output, or returns None without --output-filename."""
    if not args.output_filename:
        return None
    folder = Path(args.output_filename) / f"rank.{slot.rank:0{len(str(slot.size - 1))}}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot create the folder for the output ({error.strerror})") from error
    return folder


def run(args: argparse.Namespace) -> int:
    """Runs the job. Returns 0 or the exit code of the rank that failed first."""
    ranks = fill(read_hosts(args), args.num_proc)
    master, port = choose_rendezvous(ranks)
    if args.dry_run or args.verbose:
        show(args, ranks, master, port)
    if args.dry_run:
        return 0
    start = create_starter(args)
    workers: list[Worker] = []
    with terminate_at_end(workers):
        for slot in ranks:
            with STARTING:
                workers.append(start(slot, slot.variables(master, port)))
        while True:
            codes = [worker.poll() for worker in workers]
            failed = next((worker for worker, code in zip(workers, codes, strict=True) if code), None)
            if failed is not None:
                failed.finish()
                code = failed.poll() or 1
                say(f"rank {failed.rank} on {failed.host} failed with exit code {code}; the other ranks are terminated")
                return code
            if all(code == 0 for code in codes):
                return 0
            time.sleep(POLL_SECONDS)


class _Starting:
    """Within this context manager, `Stop` waits until its end, where the worker that is started can be terminated."""

    def __init__(self) -> None:
        self.active, self.signal = False, 0

    def __enter__(self) -> None:
        self.active = True

    def __exit__(self, *error: object) -> None:
        self.active = False
        number, self.signal = self.signal, 0
        if number:
            raise Stop(number)


STARTING = _Starting()


@contextmanager
def terminate_at_end(workers: Sequence[Worker]) -> Iterator[None]:
    """Returns a context manager that terminates the workers at its end. SIGINT and SIGTERM raise `Stop` within it, and
    are sent to the workers. A worker is added to them within `STARTING`."""

    def stop(number: int, frame: FrameType | None) -> None:
        if not STARTING.active:
            raise Stop(number)
        STARTING.signal = number

    number, numbers = signal.SIGTERM, (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, stop) for each in numbers}
    try:
        yield
    except Stop as stopped:
        number = signal.Signals(stopped.number)
        raise
    finally:
        for each in numbers:  # a second Ctrl-C must not leave workers behind
            signal.signal(each, signal.SIG_IGN)
        end(workers, number)
        for each, handler in before.items():
            signal.signal(each, handler)


def show(args: argparse.Namespace, ranks: Sequence[Slot], master: str, port: int) -> None:
    """Prints the command of each rank, and the options that have no effect."""
    for option in args.ignored or []:
        say(f"{option} has no effect")
    common = build_environment(args)
    for slot in ranks:
        own = {**common, **slot.variables(master, port)}
        if is_local(slot.hostname):
            assignments = shlex.join(f"{key}={value}" for key, value in own.items())
            print(f"[{slot.rank}] env {assignments} {shlex.join(args.command)}")
        else:
            remote = shlex.join([*build_ssh_command(args.ssh_port, args.ssh_identity_file), slot.hostname])
            print(f"[{slot.rank}] {remote} sh -s <<'END'")
            kept = own if args.dry_run else {**select_environment(), **own}
            print(build_remote_script(args.command, kept) + "END")
    sys.stdout.flush()


def say(text: str) -> None:
    """Prints a message of the launcher to stderr."""
    print(f"horovodrun: {text}", file=sys.stderr, flush=True)
