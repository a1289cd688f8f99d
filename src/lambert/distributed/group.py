"""The World of several processes that train together, on `torch.distributed`; `core.world.World` is that of one."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import torch
import torch.distributed

# The first step of most optimizers imports this module. If a process group exists by then, the module's default
# arguments keep a reference to it, and one run in ten aborts at exit because a thread of the group is still running.
import torch.distributed.nn.functional
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from lambert.core.errors import (
    EXPLAINED,
    STOPPED,
    DataError,
    DivergedError,
    LambertError,
    MachineError,
    SavedAndStopped,
    UsageError,
)
from lambert.core.world import T, World
from lambert.distributed.config import TIMEOUT_SECONDS
from lambert.distributed.failure_detector import FailureDetector, within_deadline
from lambert.distributed.launch_environment import ProcessInfo
from lambert.distributed.rendezvous import meet, roll_call
from lambert.engine.device import device_named, gpu_uuid, ran_out

_JOIN_SECONDS = 50.0
"""How long the ranks wait for each other at the start."""


class PeerLost(MachineError):
    """A collective failed because other ranks are gone or do not answer. The group cannot be used any more."""


def join(here: ProcessInfo, device: str, timeout: float) -> "Group":
    """Returns the group of several processes that this process belongs to, after all of them have connected.

    Raises:
        UsageError: The device is unknown or absent, or the ranks differ in what must be equal.
        MachineError: The processes cannot connect to each other.
    """
    owner = not torch.distributed.is_initialized()
    where, store = _connect(here, device, timeout)
    detector = FailureDetector(store, here.rank, here.size)
    group = Group(
        here.rank, here.size, here.local_rank, here.local_size, where, here.reason, timeout, detector=detector,
        owner=owner,
    )  # fmt: skip
    equal = group.largest(here.local_size) == -group.largest(-here.local_size)
    return group if equal else replace(group, local_size=1)


@dataclass(frozen=True, slots=True)
class Group(World):
    """The World of one of several processes, on `torch.distributed`: NCCL between GPUs, Gloo between hosts.

    A collective that fails raises PeerLost, which names the ranks that left, with their reasons, or the ranks that do
    not answer; it raises SavedAndStopped if the ranks that left had been asked to stop.
    """

    detector: FailureDetector = field(kw_only=True)
    """Reports which ranks left, and why."""
    timeout: float = TIMEOUT_SECONDS
    """How long a collective waits, in seconds."""
    owner: bool = True
    """Whether `close` destroys torch's default process group: not if it existed before."""

    def sum(self, tensor: Tensor) -> Tensor:
        with self.collective("summing"):
            torch.distributed.all_reduce(tensor)
        return tensor

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        with self.collective("broadcasting"):
            for tensor in tensors:
                torch.distributed.broadcast(tensor.detach(), src=0)

    def broadcast_text(self, text: str, seconds: float | None = None) -> str:
        content = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
        length = torch.tensor([len(text.encode())])
        with self.collective("broadcasting"):
            self._broadcast_within(length, self.timeout if seconds is None else seconds)
            if not self.is_first:
                content = torch.zeros(max(1, int(length)), dtype=torch.uint8)
            torch.distributed.broadcast(content, src=0)
        return content[: int(length)].numpy().tobytes().decode()

    def _broadcast_within(self, tensor: Tensor, seconds: float) -> None:
        options = torch.distributed.BroadcastOptions()
        options.timeout = timedelta(seconds=seconds)
        group = torch.distributed.group.WORLD
        assert group is not None
        group.broadcast([tensor], options).wait(options.timeout)

    def run_on_first(self, work: Callable[[], T], seconds: float | None = None) -> T:
        text = ""
        if self.is_first:
            try:
                text = json.dumps([work(), "", 0])
            except EXPLAINED as error:
                self.broadcast_text(json.dumps([None, str(error), error.exit_code]), seconds)
                raise
        value, problem, code = json.loads(self.broadcast_text(text, seconds))
        if code:
            raise _error_of_peer(problem, code)
        found: T = value
        return found

    def gather_text(self, text: str) -> list[str]:
        content = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
        width = self.largest(len(content))
        padded = torch.zeros(width, dtype=torch.uint8)
        padded[: len(content)] = content
        texts = [torch.empty_like(padded) for _ in range(self.size)]
        with self.collective("gathering"):
            torch.distributed.all_gather(texts, padded)
        return [bytes(found.tolist()).rstrip(b"\0").decode() for found in texts]

    def gather_tensors(self, named: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]]:
        own = {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}
        forms = {name: [str(tensor.dtype).removeprefix("torch."), tensor.shape] for name, tensor in own.items()}
        gathered: list[Mapping[str, Tensor]] = []
        for rank, text in enumerate(self.gather_text(json.dumps(forms))):
            found = own
            if rank != self.rank:
                found = {
                    name: torch.empty(shape, dtype=getattr(torch, dtype))
                    for name, (dtype, shape) in json.loads(text).items()
                }
            with self.collective("gathering"):
                for tensor in found.values():
                    if tensor.numel():
                        torch.distributed.broadcast(tensor.reshape(-1).view(torch.uint8), src=rank)
            gathered.append(found)
        return gathered

    def add(self, numbers: Sequence[float]) -> list[float]:
        values = torch.tensor([*numbers], dtype=torch.float64)
        with self.collective("counting"):
            torch.distributed.all_reduce(values)
        return [float(value) for value in values]

    def largest(self, number: int) -> int:
        value = torch.tensor([number])
        with self.collective("agreeing"):
            torch.distributed.all_reduce(value, op=torch.distributed.ReduceOp.MAX)
        return int(value)

    @contextmanager
    def fail_together(self, what: str) -> Iterator[None]:
        own: LambertError | SavedAndStopped | None = None
        try:
            yield
        except EXPLAINED as error:
            own = error
        answers = self.gather_text(json.dumps([str(own), own.exit_code]) if own else "")
        failed = [(rank, *json.loads(text)) for rank, text in enumerate(answers) if text]
        if own is not None and len(failed) == self.size:
            raise own
        if failed:
            rank, text, code = failed[0]
            raise _error_of_peer(f"Rank {rank} failed {what}: {text}", code) from own

    @contextmanager
    def collective(self, what: str) -> Iterator[None]:
        """A context for collectives. If torch raises a RuntimeError in it, other than for lack of memory, an error that
        names the rank that caused it is raised instead. `what` says in that error what this rank was doing."""
        try:
            yield
        except RuntimeError as error:
            if ran_out(error):
                raise
            raise self._explain(what, error) from error

    def close(self) -> None:
        self.detector.stop()
        if self.owner:
            torch.distributed.destroy_process_group()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, GeneratorExit):  # closing a generator is not a failure
            self.close()
        elif not isinstance(error, PeerLost):
            self.detector.leave(_reason(error), getattr(error, "exit_code", 1))
            within_deadline(self.close)

    def _explain(self, what: str, error: RuntimeError) -> LambertError | SavedAndStopped:
        """Returns the error that names the ranks that left, with their reasons, or the ranks that do not answer. It is
        a SavedAndStopped if they left because they were asked to stop."""
        lost = f"Rank {self.rank} lost its peers while {what}"
        answers = self.detector.answers()
        if answers is None:
            host = "rank 0, which hosts the rendezvous store,"
            return PeerLost(f"{lost}: {host} does not answer: killed, hung or cut off ({_summary(error)}).")
        left = [(rank, text, code) for rank, (text, code) in sorted(answers.items()) if text]
        if left:
            text, code = "; ".join(f"rank {rank} left: {text}" for rank, text, _ in left), left[0][2]
            return _error_of_peer(text, code) if code in STOPPED else PeerLost(f"{lost}: {text}")
        silent = [rank for rank in range(self.size) if rank != self.rank and rank not in answers]
        if silent:
            names = ", ".join(map(str, silent))
            return PeerLost(f"{lost}: rank {names} does not answer: killed, hung or cut off ({_summary(error)}).")
        return PeerLost(f"{lost}, and they lost it ({_summary(error)}). Check the network between the nodes.")


def _error_of_peer(text: str, code: int) -> LambertError | SavedAndStopped:
    """Returns the error of another rank that left with this exit code."""
    if code in STOPPED:
        return SavedAndStopped(text, code)
    return {kind.exit_code: kind for kind in (UsageError, DataError, DivergedError)}.get(code, MachineError)(text)


def _connect(here: ProcessInfo, device: str, timeout: float) -> tuple[torch.device, Store]:
    """Returns this rank's device and the store of all ranks, after all have joined torch's default process group."""
    where, problem = torch.device("cpu"), None
    try:
        where = device_named(device, here.local_rank)
        if torch.distributed.is_initialized():
            _check_process_group(here, where)
    except UsageError as error:
        problem = error
    seconds = min(timeout, _JOIN_SECONDS)
    store = meet(here, seconds)
    text, code = roll_call(here, store, where.type, problem, seconds, card=own_card(where))
    if text:
        raise _error_of_peer(text, code)
    if torch.distributed.is_initialized():
        return where, store
    try:
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if where.type == "cuda" else "gloo",
            store=PrefixStore("lambert", store),
            rank=here.rank,
            world_size=here.size,
            timeout=timedelta(seconds=timeout),
            device_id=where if where.type == "cuda" else None,
        )
    except (RuntimeError, ValueError) as error:
        raise MachineError(
            f"Rank {here.rank} of {here.size} found its peers at {here.address}:{here.port}, but cannot reach them: "
            f"{_summary(error)}. Does a firewall block connections between the nodes?"
        ) from error
    return where, store


def own_card(device: torch.device) -> str:
    """Returns the UUID of this rank's GPU, which no other rank may use. It is empty for other devices, and where ranks
    may share a GPU: the process group of the calling program does without NCCL, or NCCL (from 2.30 on) may do so."""
    allowed = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    if torch.distributed.is_initialized():
        allowed |= "cuda:nccl" not in torch.distributed.get_backend_config()
    return "" if allowed else gpu_uuid(device)


def _check_process_group(here: ProcessInfo, device: torch.device) -> None:
    """Raises UsageError if Lambert cannot use torch's default process group, which the calling program, such as a
    worker of Ray Train, has initialized."""
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if (rank, size) != (here.rank, here.size):
        raise UsageError(
            f"torch's process group has rank {rank} of {size} here, and {here.reason} says rank {here.rank} of "
            f"{here.size}: make them agree, or let Lambert initialize the group."
        )
    backends = torch.distributed.get_backend_config()
    if device.type == "cuda" and not ("cpu:" in backends and "cuda:" in backends):
        raise UsageError(
            f"torch's process group has the backend {backends}, and Lambert communicates between CPUs too: initialize "
            "it with cpu:gloo,cuda:nccl (in Ray Train: TorchConfig(backend=...))."
        )


def _reason(error: BaseException) -> str:
    """Returns the reason for which this rank leaves, in one line: an error that is not a LambertError with its type."""
    line = _summary(error)
    return line if line and isinstance(error, EXPLAINED) else f"{type(error).__name__}: {line}".rstrip(": ")


def _summary(error: BaseException) -> str:
    """Returns one line of at most 300 characters: of an error of torch, its first sentence without source locations."""
    text = re.sub(r"\[[^\]]*\.(cc|cpp|h|hpp):\d+\] ?", "", " ".join(str(error).split()))
    return (text if isinstance(error, EXPLAINED) else text.split(". ")[0])[:300].rstrip(".")
