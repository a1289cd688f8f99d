"""Several processes that train together, on `torch.distributed`; `core.world.World` is one process alone."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import TracebackType

import torch
import torch.distributed

# The first step of most optimizers imports this. Imported with a group at hand, its default arguments would hold the
# group, and a thread of it that meets the end of the interpreter aborts the process, one run in ten.
import torch.distributed.nn.functional
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from lambert.core.errors import (
    STOPPED,
    DataError,
    DivergedError,
    LambertError,
    MachineError,
    SavedAndStopped,
    UsageError,
)
from lambert.core.world import World
from lambert.distributed.failure_detector import FailureDetector, bounded
from lambert.distributed.launch_environment import ProcessInfo, process_info
from lambert.distributed.rendezvous import meet, roll_call
from lambert.engine.device import card_of, device_named
from lambert.engine.device_memory import ran_out

TIMEOUT_SECONDS = 120.0
"""How long a collective waits for a rank that hangs. Torch's own default is 30 minutes, paid in idle machines."""
_MEETING_SECONDS = 50.0
"""How long the ranks wait for one another at the start."""


class Lost(MachineError):
    """A collective failed: other ranks are gone, or do not answer. What is left of the group answers to nobody."""


def detect(device: str = "auto", timeout: float = TIMEOUT_SECONDS) -> World:
    """The world this process was started in: alone, or as one of several (`distributed/launch_environment.py`).

    `device` is "auto" (a GPU where there is one), "cpu", "cuda", "cuda:N" or "mps"; `timeout` in seconds is how long a
    collective waits. Raises UsageError for a device that is unknown or absent, MachineError where the processes cannot
    meet.
    """
    here = process_info()
    if here.size == 1:
        return World(device=device_named(device, here.local_rank), reason=here.reason)
    where, store = _met(here, device, timeout)
    detector = FailureDetector(store, here.rank, here.size)
    group = Group(
        here.rank, here.size, here.local_rank, here.local_size, where, here.reason, timeout, detector=detector
    )
    equal = group.largest(here.local_size) == -group.largest(-here.local_size)
    return group if equal else replace(group, local_size=1)


@dataclass(frozen=True, slots=True)
class Group(World):
    """Several processes on `torch.distributed`: NCCL between GPUs, Gloo between hosts.

    A collective that fails raises Lost, which names the ranks that left, and why, or that do not answer; or
    SavedAndStopped where they were asked to stop.
    """

    detector: FailureDetector = field(kw_only=True)
    """It tells who leaves, and why."""
    timeout: float = TIMEOUT_SECONDS
    """Seconds that a collective waits."""

    def sum(self, tensor: Tensor) -> Tensor:
        with self.collective("at a sum"):
            torch.distributed.all_reduce(tensor)
        return tensor

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        with self.collective("at a broadcast"):
            for tensor in tensors:
                torch.distributed.broadcast(tensor.detach(), src=0)

    def broadcast_text(self, text: str, seconds: float | None = None) -> str:
        content = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
        length = torch.tensor([len(text.encode())])
        with self.collective("at a broadcast"):
            self._broadcast_patiently(length, self.timeout if seconds is None else seconds)
            if not self.is_first:
                content = torch.zeros(max(1, int(length)), dtype=torch.uint8)
            torch.distributed.broadcast(content, src=0)
        return content[: int(length)].numpy().tobytes().decode()

    def _broadcast_patiently(self, tensor: Tensor, seconds: float) -> None:
        options = torch.distributed.BroadcastOptions()
        options.timeout = timedelta(seconds=seconds)
        group = torch.distributed.group.WORLD
        assert group is not None
        group.broadcast([tensor], options).wait(options.timeout)

    def gather_text(self, text: str) -> list[str]:
        content = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
        width = self.largest(len(content))
        padded = torch.zeros(width, dtype=torch.uint8)
        padded[: len(content)] = content
        texts = [torch.empty_like(padded) for _ in range(self.size)]
        with self.collective("at a gathering"):
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
            with self.collective("at a gathering"):
                for tensor in found.values():
                    if tensor.numel():
                        torch.distributed.broadcast(tensor.reshape(-1).view(torch.uint8), src=rank)
            gathered.append(found)
        return gathered

    def add(self, numbers: Sequence[int]) -> list[int]:
        values = torch.tensor([*numbers])
        with self.collective("counting"):
            torch.distributed.all_reduce(values)
        return [int(value) for value in values]

    def largest(self, number: int) -> int:
        value = torch.tensor([number])
        with self.collective("agreeing"):
            torch.distributed.all_reduce(value, op=torch.distributed.ReduceOp.MAX)
        return int(value)

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        own: LambertError | None = None
        try:
            yield
        except LambertError as error:
            own = error
        said = self.gather_text(json.dumps([str(own), own.exit_code]) if own else "")
        failed = [(rank, *json.loads(text)) for rank, text in enumerate(said) if text]
        if own is not None and len(failed) == self.size:
            raise own
        if failed:
            rank, text, code = failed[0]
            raise _again(f"Rank {rank} failed {what}: {text}", code) from own

    @contextmanager
    def collective(self, what: str) -> Iterator[None]:
        """In here ranks meet. Raises Lost, which says who did not come, where torch raises RuntimeError that is not for
        want of memory here."""
        try:
            yield
        except RuntimeError as error:
            if ran_out(error):
                raise
            raise self._blame(what, error) from error

    def close(self) -> None:
        self.detector.stop()
        torch.distributed.destroy_process_group()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, GeneratorExit):  # a generator that is closed ends as its caller meant
            self.close()
        elif not isinstance(error, Lost):
            self.detector.leave(_why(error), getattr(error, "exit_code", 1))
            bounded(self.close)

    def _blame(self, what: str, error: RuntimeError) -> LambertError:
        """Names the ranks that left, and what they said, or that do not answer. Where they were asked to stop, so is
        this one."""
        lost = f"Rank {self.rank} lost the others {what}"
        said = self.detector.ask()
        if said is None:
            return Lost(f"{lost}: rank 0, where all meet, does not answer: killed, hung or cut off ({_line(error)}).")
        left = [(rank, text, code) for rank, (text, code) in sorted(said.items()) if text]
        if left:
            told = "; ".join(f"rank {rank} left: {text}" for rank, text, _ in left)
            code = left[0][2]
            return _again(told, code) if code in STOPPED else Lost(f"{lost}: {told}")
        silent = [rank for rank in range(self.size) if rank != self.rank and rank not in said]
        if silent:
            names = ", ".join(map(str, silent))
            return Lost(f"{lost}: rank {names} does not answer: killed, hung or cut off ({_line(error)}).")
        return Lost(f"{lost}, who lost it too ({_line(error)}). Look at the network between them.")


def _again(text: str, code: int) -> LambertError:
    """The error of another rank, which left with this exit code."""
    if code in STOPPED:
        return SavedAndStopped(text, code)
    return {kind.exit_code: kind for kind in (UsageError, DataError, DivergedError)}.get(code, MachineError)(text)


def _met(here: ProcessInfo, device: str, timeout: float) -> tuple[torch.device, Store]:
    """Where this rank computes, and the ranks' common store, once all are there and torch's default group stands."""
    where, problem = torch.device("cpu"), None
    try:
        where = device_named(device, here.local_rank)
    except UsageError as error:
        problem = error
    seconds = min(timeout, _MEETING_SECONDS)
    store = meet(here, seconds)
    text, code = roll_call(here, store, where.type, problem, seconds, card=card_of(where))
    if text:
        raise _again(text, code)
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
            f"Rank {here.rank} of {here.size} met the others at {here.address}:{here.port}, and cannot reach them: "
            f"{_line(error)}. May the machines open connections to one another?"
        ) from error
    return where, store


def _why(error: BaseException) -> str:
    """In one line; of what was not meant for the user with its kind."""
    line = _line(error)
    return line if line and isinstance(error, LambertError) else f"{type(error).__name__}: {line}".rstrip(": ")


def _line(error: BaseException) -> str:
    """Of what Gloo says the first sentence, without the place in its sources."""
    text = re.sub(r"\[[^\]]*\.(cc|cpp|h|hpp):\d+\] ?", "", " ".join(str(error).split()))
    return (text if isinstance(error, LambertError) else text.split(". ")[0])[:300].rstrip(".")
