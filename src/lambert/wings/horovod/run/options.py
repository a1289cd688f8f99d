"""The options of `horovodrun`, and the environment variables that they set."""

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lambert.core.errors import UsageError

FLAGS_IGNORED = [
    "--disable-cache", "--hierarchical-allreduce", "--no-hierarchical-allreduce", "--hierarchical-allgather",
    "--no-hierarchical-allgather", "--torus-allreduce", "--no-torus-allreduce", "--autotune", "--no-autotune", "--tcp",
    "--mpi-threads-disable", "--no-mpi-threads-disable", "--log-with-timestamp", "--log-without-timestamp",
    "--log-hide-timestamp", "--no-log-hide-timestamp",
]  # fmt: skip
VALUES_IGNORED = [
    "--autotune-log-file", "--autotune-warmup-samples", "--autotune-steps-per-sample",
    "--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise", "--mpi-args", "--binding-args",
    "--num-nccl-streams", "--thread-affinity",
]  # fmt: skip
"""Options of Horovod that have no effect. They are accepted, and reported with --verbose."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"horovodrun: {message}; see lambert horovodrun --help")


def create_parser() -> argparse.ArgumentParser:
    """Returns a parser of Horovod's options, with the same names."""
    p = _Parser(prog="lambert horovodrun", description="Starts a command once per rank.", allow_abbrev=False)
    p.add_argument("-np", "--num-proc", dest="num_proc", type=parse_count, help="number of ranks")
    p.add_argument("-cb", "--check-build", action="store_true", help="print the capabilities of this build and exit")
    p.add_argument("--version", "-v", action="store_true", help="print Lambert's version and exit")
    p.add_argument("--verbose", action="store_true", help="print the commands, and the options without effect")
    p.add_argument("--dry-run", action="store_true", help="print the commands of all ranks without running them")
    p.add_argument("--alias", action="store_true", help="make `import horovod.torch` import lambert.horovod")
    p.add_argument(
        "--start-timeout", dest="HOROVOD_START_TIMEOUT", type=parse_count, metavar="SECONDS",
        help="maximum time for connecting the ranks (default: 120)",
    )  # fmt: skip
    p.add_argument("--output-filename", metavar="FOLDER", help="also write FOLDER/rank.N/stdout and stderr")
    p.add_argument("-prefix-timestamp", "--prefix-output-with-timestamp", action="store_true", help="timestamp lines")
    nics = ["--network-interface", "--network-interfaces"]
    p.add_argument(*nics, dest="nics", action="append", help="network interface to communicate over")

    hosts = p.add_argument_group("hosts").add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", help="host1:slots,host2:slots (default: this host)")
    hosts.add_argument("-hostfile", "--hostfile", help="file with lines `host slots=N`")
    hosts.add_argument("--host-discovery-script", help="program that prints `host:slots` lines; for elastic jobs")
    ssh = p.add_argument_group("ssh")
    ssh.add_argument("-p", "--ssh-port", type=parse_count)
    ssh.add_argument("-i", "--ssh-identity-file")

    _add_elastic(p)
    _add_variables(p)
    controller = p.add_argument_group("controller").add_mutually_exclusive_group()
    controller.add_argument("--gloo", action="store_true", help="no effect: Gloo is the only controller")
    controller.add_argument("--mpi", action="store_true", help="not supported")
    controller.add_argument("--jsrun", action="store_true", help="not supported")
    for flag in FLAGS_IGNORED:
        p.add_argument(flag, dest="ignored", action="append_const", const=flag, help=argparse.SUPPRESS)
    for flag in VALUES_IGNORED:
        p.add_argument(flag, dest="ignored", action="append", type=f"{flag} {{}}".format, help=argparse.SUPPRESS)
    p.add_argument("--config-file", help="refused: use options instead")
    p.add_argument("command", nargs=argparse.REMAINDER, help="the command of each rank")
    return p


def _add_elastic(p: argparse.ArgumentParser) -> None:
    elastic = p.add_argument_group("elastic")
    elastic.add_argument("--min-np", "--min-num-proc", dest="min_np", type=parse_count, help="minimum number of ranks")
    elastic.add_argument("--max-np", "--max-num-proc", dest="max_np", type=parse_count, help="maximum number of ranks")
    elastic.add_argument("--slots-per-host", dest="slots", type=parse_count, help="default number of slots of a host")
    elastic.add_argument(
        "--elastic-timeout", dest="HOROVOD_ELASTIC_TIMEOUT", type=parse_count, metavar="SECONDS",
        help="maximum time without enough ranks (default: 600)",
    )  # fmt: skip
    elastic.add_argument("--reset-limit", type=parse_count, help="maximum number of changes of the ranks")
    elastic.add_argument(
        "--blacklist-cooldown-range", dest="cooldown", type=parse_number, nargs=2, metavar=("MIN", "MAX"),
        help="reuse a slot MIN to MAX seconds after a failure on it (default: never)",
    )  # fmt: skip


def _add_variables(p: argparse.ArgumentParser) -> None:
    tuned = p.add_argument_group("passed to the ranks as environment variables")
    tuned.add_argument("--fusion-threshold-mb", dest="HOROVOD_FUSION_THRESHOLD", type=_parse_mib)
    tuned.add_argument("--cycle-time-ms", dest="HOROVOD_CYCLE_TIME", type=parse_number)
    tuned.add_argument("--cache-capacity", dest="HOROVOD_CACHE_CAPACITY", type=parse_count)
    tuned.add_argument("--timeline-filename", dest="HOROVOD_TIMELINE")
    tuned.add_argument("--timeline-mark-cycles", dest="HOROVOD_TIMELINE_MARK_CYCLES", action="store_true")
    tuned.add_argument("--no-timeline-mark-cycles", dest="HOROVOD_TIMELINE_MARK_CYCLES", action="store_false")
    tuned.add_argument("--no-stall-check", dest="HOROVOD_STALL_CHECK_DISABLE", action="store_true")
    tuned.add_argument("--stall-check", dest="HOROVOD_STALL_CHECK_DISABLE", action="store_false")
    tuned.add_argument("--stall-check-warning-time-seconds", dest="HOROVOD_STALL_CHECK_TIME_SECONDS", type=parse_number)
    tuned.add_argument(
        "--stall-check-shutdown-time-seconds", dest="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", type=parse_number
    )
    tuned.add_argument("--gloo-timeout-seconds", dest="HOROVOD_GLOO_TIMEOUT_SECONDS", type=parse_number)
    levels = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]
    tuned.add_argument("--log-level", dest="HOROVOD_LOG_LEVEL", choices=levels)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the options. Raises UsageError if they are invalid or contradict each other."""
    args = create_parser().parse_args(arguments)
    if args.command[:1] == ["--"]:
        args.command = args.command[1:]
    if args.check_build or args.version:
        return args
    if args.mpi or args.jsrun:
        raise UsageError("horovodrun: MPI is not supported: omit --mpi and --jsrun (ranks use Gloo or NCCL)")
    if args.config_file:
        raise UsageError("horovodrun: --config-file is not supported: pass the options on the command line")
    if args.num_proc is None:
        raise UsageError("horovodrun: the number of ranks is missing: add -np N")
    if not args.command:
        raise UsageError("horovodrun: the command is missing: add it after the options")
    if not is_elastic(args) and (args.max_np or args.reset_limit or args.cooldown):
        raise UsageError("horovodrun: --max-np, --reset-limit and --blacklist-cooldown-range require --min-np")
    least, most = args.min_np or args.num_proc, args.max_np or args.num_proc
    if not least <= args.num_proc <= most:
        raise UsageError(f"horovodrun: --min-np {least} <= -np {args.num_proc} <= --max-np {most} does not hold")
    return args


def is_elastic(args: argparse.Namespace) -> bool:
    """Returns whether the job is elastic."""
    return args.min_np is not None or args.host_discovery_script is not None


def build_environment(args: argparse.Namespace) -> dict[str, str]:
    """Returns the environment variables that all ranks share. With --alias, PYTHONPATH starts with the folder of
    Lambert's package `horovod`."""
    found = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "PYTHONUNBUFFERED": "1"}
    for name, value in vars(args).items():
        if name.startswith("HOROVOD_") and value is not None and value is not False:
            found[name] = "1" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
    if args.nics:
        names = ",".join(args.nics)
        found |= {"HOROVOD_GLOO_IFACE": names.split(",")[0], "GLOO_SOCKET_IFNAME": names, "NCCL_SOCKET_IFNAME": names}
    if args.alias:
        folder = str(Path(__file__).parent.parent / "aliased")
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    return found


def _parse_mib(text: str) -> int:
    return int(parse_number(text) * 2**20)


def parse_count(text: str) -> int:
    """Parses an integer of at least 1, for argparse."""
    if not text.isdecimal() or not (value := int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def parse_number(text: str) -> float:
    """Parses a number of at least 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value
