"""The launcher of elastic jobs: the counterpart of `lambert.wings.horovod.elastic`.

Each world is a generation. When a rank fails or the hosts change, the running ranks report that they are ready for the
next generation. The launcher then assigns new ranks, oldest worker first, because the other ranks get their state from
rank 0, and starts new workers in the free slots.
"""

import argparse
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lambert.core.errors import DataError
from lambert.wings.horovod.elastic import GENERATION, HOSTS_SEEN, STORE, WORKER
from lambert.wings.horovod.run.hosts import Host, assign_slots, choose_rendezvous, discover, is_local
from lambert.wings.horovod.run.job import (
    POLL_SECONDS,
    STARTING,
    Start,
    create_starter,
    read_hosts,
    say,
    terminate_at_end,
)  # fmt: skip
from lambert.wings.horovod.run.workers import Worker, end

DISCOVERY_SECONDS = 1.0


@dataclass
class Job:
    """The launcher's record of a running elastic job."""

    args: argparse.Namespace
    start: Start
    store: Any
    address: str
    hosts: list[Host]
    workers: list[Worker] = field(default_factory=list)
    """Ordered by age, oldest first."""
    names: dict[Worker, str] = field(default_factory=dict)
    lost: list[tuple[str, float]] = field(default_factory=list)
    """Slots on which a rank has failed: the host, and the time from which the slot may be used again."""
    generation: int = -1
    changes: int = 0
    grown: int = 0
    """Number of the last change of hosts that added slots."""

    def free_slots(self) -> list[str]:
        """Returns the hosts with free slots, once per slot."""
        now = time.monotonic()
        self.lost = [(host, until) for host, until in self.lost if until > now]
        taken = Counter(worker.host for worker in self.workers) + Counter(host for host, _ in self.lost)
        return [host.name for host in self.hosts for _ in range(host.slots - taken[host.name])]

    def rediscover(self) -> None:
        """Runs the discovery script, and announces the hosts to the ranks if they have changed."""
        if not self.args.host_discovery_script:
            return
        try:
            hosts = discover(self.args.host_discovery_script, self.args.slots)
        except DataError as error:
            say(f"{error}; the list of hosts is unchanged")
            return
        if hosts != self.hosts:
            before, now = ({host.name: host.slots for host in some} for some in (self.hosts, hosts))
            self.hosts = hosts
            self.announce(grown=any(now[name] > before.get(name, 0) for name in now))

    def announce(self, grown: bool) -> None:
        """Announces a change of hosts, which the ranks read at their next commit."""
        self.changes += 1
        self.grown = self.changes if grown else self.grown
        self.store.set("hosts", json.dumps([self.changes, self.grown]))

    def reap(self) -> int | None:
        """Removes workers that have ended. Returns the exit code of the last one that failed, or None."""
        failed = None
        for worker in [worker for worker in self.workers if worker.poll() is not None]:
            self.workers.remove(worker)
            end([worker])
            code = worker.poll() or 0
            if code:
                failed = code
                cooldown = random.uniform(*self.args.cooldown) if self.args.cooldown else float("inf")
                self.lost.append((worker.host, time.monotonic() + cooldown))
                say(f"rank {worker.rank} on {worker.host} failed with exit code {code}")
        return failed

    def ready(self) -> list[Worker]:
        """Returns the running workers that wait for the next world."""
        following = self.generation + 1
        return [w for w in self.workers if self.store.check([f"ready/{following}/{self.names[w]}"])]

    def form(self) -> None:
        """Forms the next world: assigns ranks to running workers whose slots still exist, and starts workers in free
        slots."""
        self.generation += 1
        room = {host.name: host.slots for host in self.hosts}
        most = self.args.max_np or (self.args.num_proc if not self.args.host_discovery_script else 1 << 16)
        staying: list[Worker] = []
        for worker in self.workers:
            if room.get(worker.host, 0) > 0 and len(staying) < most:
                room[worker.host] -= 1
                staying.append(worker)
            else:
                self.store.set(f"world/{self.generation}/{self.names[worker]}", json.dumps(None))
        leaving = [worker for worker in self.workers if worker not in staying]
        self.workers[:] = staying
        new = self.free_slots()[: most - len(staying)]
        ranks = assign_slots([worker.host for worker in staying] + new)
        say(f"generation {self.generation}: {len(ranks)} ranks, {len(new)} new, {len(leaving)} removed")
        master, port = choose_rendezvous(ranks)
        own = {
            STORE: self.address,
            GENERATION: str(self.generation),
            HOSTS_SEEN: str(self.changes),
            "HOROVOD_ELASTIC": "1",
        }
        for slot in ranks:
            variables = {**slot.variables(master, port), **own}
            if slot.rank < len(staying):
                worker = staying[slot.rank]
                worker.rank = slot.rank
                self.store.set(f"world/{self.generation}/{self.names[worker]}", json.dumps(variables))
            else:
                name = f"{self.generation}.{slot.rank}"
                with STARTING:
                    worker = self.start(slot, {**variables, WORKER: name})
                    self.names[worker] = name
                    self.workers.append(worker)
        if leaving:
            end_quietly(leaving)


def end_quietly(workers: Sequence[Worker]) -> None:
    """Waits until workers that are not part of the new world have exited, and terminates those that have not."""
    deadline = time.monotonic() + 10
    while any(worker.poll() is None for worker in workers) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    end(workers)


def run(args: argparse.Namespace) -> int:
    """Runs the job. Returns 0 if all ranks of the last world succeed, else the exit code of the rank that failed
    last."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    hosts = discover(args.host_discovery_script, args.slots) if args.host_discovery_script else read_hosts(args)
    least = args.min_np or args.num_proc
    patience = args.HOROVOD_ELASTIC_TIMEOUT or 600
    here = "127.0.0.1" if all(is_local(host.name) for host in hosts) else socket.gethostname()
    store = TCPStore(here, 0, is_master=True, wait_for_workers=False)
    job = Job(args, create_starter(args), store, f"{here}:{store.port}", hosts)
    job.announce(grown=False)
    with terminate_at_end(job.workers):
        return _run_generations(job, least, patience)


def _run_generations(job: Job, least: int, patience: float) -> int:
    args, needed, code, finishing = job.args, job.args.num_proc, 0, False
    may_return = args.host_discovery_script or args.cooldown
    looked = since = time.monotonic()
    while True:
        now = time.monotonic()
        if now - looked > DISCOVERY_SECONDS:
            looked = now
            job.rediscover()
        running, started = len(job.workers), job.generation >= 0
        failed = job.reap()
        code = code if failed is None else failed
        finishing = finishing or (started and failed is None and len(job.workers) < running)
        if started and not job.workers:
            # No rank with the state is left: all ranks have finished, or all have failed.
            return code
        ready, possible = job.ready(), len(job.workers) + len(job.free_slots())
        if not finishing and possible < needed and (not may_return or now - since > patience):
            say(f"stopped: {needed} ranks are needed, and only {possible} are possible")
            return code or 1
        if finishing or (started and (not ready or len(ready) < len(job.workers))):
            since = since if ready else now
            if now - since > patience:
                end([worker for worker in job.workers if worker not in ready])
        elif possible >= needed:
            if args.reset_limit and job.generation >= args.reset_limit:
                say(f"stopped after {args.reset_limit} changes of the ranks")
                return code or 1
            job.form()
            needed, code, since = least, 0, time.monotonic()
        time.sleep(POLL_SECONDS)
