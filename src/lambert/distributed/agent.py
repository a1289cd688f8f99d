"""The policy of `lambert launch` on top of torch's elastic agent, which starts the workers of a node and restarts
them: exit codes, one line per failure, signals, and how long workers may take to leave."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from torch._C._distributed_c10d import PrefixStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.utils.store import barrier

from lambert.core.errors import STOPPED, MachineError, printable_line
from lambert.core.launcher import FINAL, End, read_ends
from lambert.distributed.failure_detector import report, within_deadline
from lambert.distributed.rendezvous import connect
from lambert.engine import archive
from lambert.engine.signals import END, listen_to_signals

BROKEN_SECONDS = 5
"""How long the other workers may take to leave after a crash, before SIGKILL. torch's default is 30."""
HEALTHY_SECONDS = 120
"""How long the workers may take to save and leave when a node joins or leaves."""
_SAVING_SECONDS = dict.fromkeys(STOPPED, 600.0)
"""How long the other ranks may take to end after one has ended with this exit code: they may be saving."""
_ENDING_SECONDS = 10.0
"""The same for all other exit codes."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_OUTCOME = "lambert/outcome"


class Agent(LocalElasticAgent):
    """Restarts the group after a crash, at most `spec.max_restarts` times, but never after an exit code in FINAL.

    Extension points: https://docs.pytorch.org/docs/stable/elastic/agent.html
    """

    def __init__(self, spec: WorkerSpec, ends: Path, elastic: bool, run: Path | None = None) -> None:
        """Creates an agent.

        Args:
            spec: The workers to start, and the rendezvous.
            ends: Folder in which the workers report how they ended.
            elastic: Whether the group continues with fewer nodes.
            run: The run folder of a verb that trains.
        """
        super().__init__(spec, DefaultLogsSpecs(log_dir=os.devnull))  # creates no folders
        self.outcome: End | None = None
        """How the group ended; None if all ranks succeeded."""
        self.signalled = 0
        """The signal that asked the group to stop; 0: none."""
        self._ends = ends
        self._elastic = elastic
        self._run = run
        self._first: dict[int, int] = {}
        self._ended: float | None = None
        """When this agent saw that a worker had ended; the moment in its report is of another clock, which may be
        set."""
        self._lock = threading.Lock()

    @contextmanager
    def forward_signals(self) -> Iterator[None]:
        """A context in which the first signal is forwarded to the workers and the second kills them and ends this
        process."""
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # torch itself handles no other
        # nohup ignores SIGHUP. A shell ignores SIGINT for a job in the background, but the verbs handle it there too.
        handled = [
            number for number in SIGNALS if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
        ]
        with listen_to_signals(handled, lambda number, frame: None, self._listen):
            yield

    def _listen(self, read_fd: int) -> None:
        while (number := os.read(read_fd, 1)[0]) != END:
            self._forward(signal.SIGTERM if number == signal.SIGHUP else number)

    def _forward(self, number: int) -> None:
        with self._lock:
            if self.signalled:
                self._leave(128 + number, "Second signal: exiting at once. What was not saved is lost.")
            self.signalled = number
            if not self._alive():
                self._leave(
                    self._stop_code(), f"Stopped by {signal.Signals(number).name} before the group had started."
                )
            say(f"{signal.Signals(number).name}: the ranks save and stop; a second signal exits at once.")
            self._kill(number)

    def _leave(self, code: int, line: str) -> NoReturn:
        self._kill(signal.SIGKILL)
        say(line)
        shutil.rmtree(self._ends, ignore_errors=True)
        os._exit(code)

    def _alive(self) -> list[int]:
        handlers: dict[int, Any] = getattr(self._pcontext, "subprocess_handlers", {})
        return [handler.proc.pid for handler in handlers.values() if handler.proc.poll() is None]

    def _kill(self, number: int) -> None:
        for pid in self._alive():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _stop_code(self) -> int:
        return 130 if self.signalled == signal.SIGINT else 75

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        for path in self._ends.iterdir():
            path.unlink()
        with self._lock:
            started: dict[int, Any] = super()._start_workers(worker_group)
            context: Any = self._pcontext
            close = context.close

            def patient_close(death_sig: signal.Signals | None = None, timeout: int = 0) -> None:
                codes = {rank: handler.proc.poll() for rank, handler in context.subprocess_handlers.items()}
                ended = {rank: code for rank, code in codes.items() if code is not None}
                if ended and not self._first:  # torch closes twice
                    self._first = ended
                    self._report(worker_group)
                close(death_sig, BROKEN_SECONDS if ended else HEALTHY_SECONDS)

            self._first = {}
            context.close = patient_close
            if self.signalled:
                self._kill(self.signalled)
        return started

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if worker_group.state == WorkerState.HEALTHY:
            say("a machine joins or leaves: all ranks save, and the group starts again")
        super()._restart_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        end = self._final(worker_group) or self._read_outcome(worker_group)
        if result.state == WorkerState.HEALTHY:
            now = time.monotonic()
            self._ended = None if end is None else self._ended or now
            if end is None or now - (self._ended or now) < _SAVING_SECONDS.get(end.code, _ENDING_SECONDS):
                return result
            self._stop_workers(worker_group)
        elif end is None and result.state == WorkerState.FAILED:
            end = self._crash(worker_group)
            if self._remaining_restarts and not self.signalled:
                restart = worker_group.spec.max_restarts - self._remaining_restarts + 1
                say(f"{_describe(end)}; restart {restart} of {worker_group.spec.max_restarts}{self._position()}")
                return result
            if self.signalled:
                line = f"Stopped by {signal.Signals(self.signalled).name}. To continue: the same command again."
                end = replace(end, code=self._stop_code(), line=line)
            else:
                tries = worker_group.spec.max_restarts
                gave_up = f"gave up after {tries} restart{'s' if tries > 1 else ''}: first failure: " if tries else ""
                end = replace(end, line=f"{gave_up}{_describe(end)}{self._advice(end)}")
        if end is None:
            return result
        if end.code in STOPPED and not self.signalled and self._elastic and _stores(worker_group):
            say("a machine leaves: the other machines continue without it")
            super()._restart_workers(worker_group)
            return RunResult(state=WorkerState.HEALTHY)
        self.outcome = end
        self._remaining_restarts = 0
        self._publish(worker_group, end)
        return RunResult(state=WorkerState.FAILED)

    def _final(self, group: WorkerGroup) -> End | None:
        """Returns the first end with an exit code in FINAL. Its line names the rank unless all ranks ended alike."""
        crashed = any(code and code not in FINAL for code in self._first.values()) and not self.signalled
        # After a crash torch stops the other workers, which does not end the group.
        ends = [end for end in read_ends(self._ends) if end.code in FINAL and not (crashed and end.code in STOPPED)]
        if ends:
            alike = len(ends) == len(group.workers) and len({end.line for end in ends}) == 1
            return ends[0] if alike else replace(ends[0], line=f"rank {ends[0].rank}: {ends[0].line}")
        for local_rank, code in self._first.items():  # ended without a report
            if code in FINAL:
                rank = group.workers[local_rank].global_rank
                return End(rank, 0, code, f"rank {rank} left with exit code {code}", time.time())
        return None

    def _crash(self, group: WorkerGroup) -> End:
        """Returns the crash to report: that of a rank that was killed, else of one with a bug, else the earliest."""
        pids = self._pcontext.pids() if self._pcontext else {}
        crashes = [end for end in read_ends(self._ends) if end.code not in FINAL]
        for local_rank, line in self._silent(group).items():
            rank, code = group.workers[local_rank].global_rank, self._first[local_rank]
            crashes.append(End(rank, pids[local_rank], code, line, time.time()))
        first = min(crashes, key=lambda end: (end.code >= 0, end.code == -signal.SIGTERM, end.code != 1, end.moment))
        return replace(first, code=first.code if first.code in (1, 4) else 4)

    def _silent(self, group: WorkerGroup) -> dict[int, str]:
        """Returns, by local rank, what is known of the workers that failed without a report."""
        reported = {end.rank for end in read_ends(self._ends)}
        return {
            local_rank: f"was killed by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
            for local_rank, code in self._first.items()
            if code and group.workers[local_rank].global_rank not in reported
        }

    def _report(self, group: WorkerGroup) -> None:
        """Reports the ranks that ended without a report of their own, so that the other ranks do not wait for them. The
        store is that of the workers, in the process of rank 0."""
        silent = {group.workers[local_rank].global_rank: line for local_rank, line in self._silent(group).items()}
        if not silent or 0 in silent:  # with the first the store is gone
            return

        def tell() -> None:
            store = connect(f"{group.master_addr}:{group.master_port}", 1)
            for rank, line in silent.items():
                report(PrefixStore("0", store), rank, f"it {line}", MachineError.exit_code)

        within_deadline(tell)

    def _position(self) -> str:
        """Returns from which update a group that restarts continues, as the end of a line."""
        if self._run is None:
            return ""
        done = archive.find_last(self._run)
        return f", from update {done:,}" if done else ", from the beginning"

    def _advice(self, end: End) -> str:
        """Returns what to look at when the group is not restarted, as the end of a line."""
        memory = ". If no user killed it, the system ran out of memory: see dmesg" if "SIGKILL" in end.line else ""
        return f"{memory}. The log of the run is {self._run / 'log.txt'}." if self._run else memory

    def _publish(self, group: WorkerGroup, end: End) -> None:
        """Reports the end to the agents of the other nodes and waits until they have read it, because the store may end
        with this process."""
        for store in _stores(group):
            with suppress(RuntimeError):
                store.set(_OUTCOME, json.dumps(asdict(end)))
                barrier(store, group.group_world_size or 1, "lambert/left", BROKEN_SECONDS)

    def _read_outcome(self, group: WorkerGroup) -> End | None:
        """Returns the end of the group that the agent of another node has reported."""
        for store in _stores(group):
            with suppress(RuntimeError):
                if store.check([_OUTCOME]):
                    return End(**json.loads(store.get(_OUTCOME)))
        return None


def _stores(group: WorkerGroup) -> list[Any]:
    """Returns the store that the agents share, if there are several nodes."""
    return [group.store] if group.store is not None and (group.group_world_size or 1) > 1 else []


def say(line: str) -> None:
    """Prints a line of the launcher to stderr, because stdout may show a progress bar."""
    print(f"lambert launch: {printable_line(line)}", file=sys.stderr, flush=True)


def _describe(end: End) -> str:
    killed = end.line.startswith(("was killed by", "left with"))
    return (f"rank {end.rank} (pid {end.pid}) {end.line}" if killed else f"rank {end.rank}: {end.line}").rstrip(".")
