"""The processes that train together. A world of one answers the same questions, so that the loop has no branches."""

import importlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import TracebackType
from typing import Self

import torch
import torch.distributed
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from lambert.core.batch import Batch, Target
from lambert.core.errors import DataError, DivergedError, LambertError, MachineError, SavedAndStopped, UsageError
from lambert.engine.rendezvous import Place, place

TIMEOUT_SECONDS = 120.0
"""How long a collective waits for a rank that hangs. Torch's own default is 30 minutes, paid in idle machines."""
_MEETING_SECONDS = 50.0
"""How long the ranks wait for one another at the start."""
_CONFESSION_SECONDS = 3.0
"""How long a rank that lost the others waits to learn which of them is to blame."""


@dataclass(frozen=True, slots=True)
class World:
    """One process alone; `Group` is several. Every method here is what a collective gives for a world of size one.

    As a context it is left together: a rank that fails tells the others why, and they do not wait for it.
    """

    rank: int = 0
    """Number of this process, from 0."""
    size: int = 1
    """Processes that train together."""
    local_rank: int = 0
    """Number of this process on its machine."""
    local_size: int = 1
    """Processes on this machine, and on every other; 1 where machines have unequal numbers of them."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where this process computes."""
    reason: str = "one process"
    """How that was found out."""

    @classmethod
    def detect(cls, device: str = "auto", timeout: float = TIMEOUT_SECONDS) -> "World":
        """The world this process was started in: alone, or as one of several (`engine/rendezvous.py`).

        `device` is "auto" (a GPU where there is one), "cpu", "cuda", "cuda:N" or "mps"; `timeout` in seconds is how
        long a collective waits. Raises UsageError for a device that is unknown or absent, MachineError where the
        processes cannot meet.
        """
        here = place()
        where = _device(device, here.local_rank)
        if where.type == "cuda":
            torch.cuda.set_device(where)
        if here.size == 1:
            return World(device=where, reason=here.reason)
        store = _met(here, where, timeout)
        group = Group(here.rank, here.size, here.local_rank, here.local_size, where, here.reason, store, timeout)
        equal = group.largest(here.local_size) == -group.largest(-here.local_size)
        return group if equal else replace(group, local_size=1)

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes files and speaks to the user."""
        return self.rank == 0

    def put(self, batch: Batch) -> Batch:
        """The batch on this world's device. From pinned memory: the host does not wait for the copy."""
        return (_pinned(batch) if self.device.type == "cuda" else batch).to(self.device)

    def sum(self, tensor: Tensor) -> Tensor:
        """Adds `tensor` over all ranks, in place."""
        return tensor

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrites `tensors` with those of the first rank."""

    def broadcast_text(self, text: str) -> str:
        """The first rank's text, on every rank. Bytes travel, never pickles."""
        return text

    def gather_text(self, text: str) -> list[str]:
        """Every rank's text, on every rank, by rank."""
        return [text]

    def add(self, numbers: Sequence[int]) -> list[int]:
        """The sums of the ranks' numbers. They travel over the host, so the device need not be waited for."""
        return [*numbers]

    def largest(self, number: int) -> int:
        """The largest of the ranks' numbers. It travels over the host, so the device need not be waited for."""
        return number

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Where one rank fails in here with a LambertError, all fail, with an error that names the rank: `what` is what
        they were at. For work that holds no collective of its own."""
        yield

    def close(self) -> None:
        """Leaves the group and ends its threads, before the interpreter goes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Group(World):
    """Several processes on `torch.distributed`: NCCL between GPUs, Gloo between hosts.

    A collective that fails raises MachineError, which names the ranks that left, and why, or that do not answer.
    """

    store: Store = field(default_factory=HashStore)
    """Where the ranks met, and where one that leaves says why."""
    timeout: float = TIMEOUT_SECONDS
    """Seconds that a collective waits."""

    def sum(self, tensor: Tensor) -> Tensor:
        with self.collective("a sum"):
            torch.distributed.all_reduce(tensor)
        return tensor

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        with self.collective("a broadcast"):
            for tensor in tensors:
                torch.distributed.broadcast(tensor.detach(), src=0)

    def broadcast_text(self, text: str) -> str:
        content = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
        length = torch.tensor([len(text.encode())])
        with self.collective("a broadcast"):
            torch.distributed.broadcast(length, src=0)
            if not self.is_first:
                content = torch.zeros(max(1, int(length)), dtype=torch.uint8)
            torch.distributed.broadcast(content, src=0)
        return bytes(content[: int(length)].tolist()).decode()

    def gather_text(self, text: str) -> list[str]:
        content = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
        width = self.largest(len(content))
        padded = torch.zeros(width, dtype=torch.uint8)
        padded[: len(content)] = content
        texts = [torch.empty_like(padded) for _ in range(self.size)]
        with self.collective("a gathering"):
            torch.distributed.all_gather(texts, padded)
        return [bytes(found.tolist()).rstrip(b"\0").decode() for found in texts]

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
        """In here ranks meet. Raises MachineError, which says who did not come, where torch raises RuntimeError."""
        try:
            yield
        except RuntimeError as error:
            raise MachineError(f"Rank {self.rank} lost the others at {what}: {self._blame(error)}") from error

    def close(self) -> None:
        torch.distributed.destroy_process_group()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(RuntimeError):  # the rank that holds the store may be the one that is gone
            self.store.set(_key(self.rank), _line(error) or type(error).__name__)
            self.close()  # ends the others' wait, who then look into the store
            if self.is_first:  # and takes the store with it when it leaves
                self._others(_CONFESSION_SECONDS)

    def _blame(self, error: RuntimeError) -> str:
        """Which ranks left, and what they said; or which do not answer."""
        try:
            self.store.set(_key(self.rank), "")
            said = self._others(_CONFESSION_SECONDS)
        except RuntimeError:
            return f"rank 0 is gone, which they meet at ({_line(error)}). Its own last lines say why."
        left = [f"rank {rank} left: {text}" for rank, text in sorted(said.items()) if text]
        if left:
            return "; ".join(left)
        silent = [rank for rank in range(self.size) if rank != self.rank and rank not in said]
        if silent:
            names = ", ".join(map(str, silent))
            return f"rank {names} does not answer: killed, hung or cut off ({_line(error)})."
        return f"{_line(error)}. All ranks are there: look at the network between them."

    def _others(self, seconds: float) -> dict[int, str]:
        """What other ranks said when they left: "" of one that lost the others itself. Waits for all, or so long."""
        said: dict[int, str] = {}
        until = time.monotonic() + seconds
        while True:
            for rank in range(self.size):
                if rank not in said and rank != self.rank and self.store.check([_key(rank)]):
                    said[rank] = self.store.get(_key(rank)).decode()
            if len(said) == self.size - 1 or time.monotonic() > until:
                return said
            time.sleep(0.05)


def _key(rank: int) -> str:
    return f"lambert/left/{rank}"


def _again(text: str, code: int) -> LambertError:
    """The error of another rank, which left with this exit code."""
    if code in (75, 130):
        return SavedAndStopped(text, code)
    return {kind.exit_code: kind for kind in (UsageError, DataError, DivergedError)}.get(code, MachineError)(text)


def _met(here: Place, device: torch.device, timeout: float) -> Store:
    """The ranks' common store, once all of them are there and torch's default group stands."""
    # The first optimizer step imports this; imported with a group at hand it keeps the group's threads alive beyond
    # `close`, and one that meets the end of the interpreter aborts the process, one run in ten.
    importlib.import_module("torch._dynamo")
    os.environ |= {"MASTER_ADDR": here.address, "MASTER_PORT": str(here.port)}
    try:
        store, _, _ = next(
            rendezvous("env://", here.rank, here.size, timeout=timedelta(seconds=min(timeout, _MEETING_SECONDS)))
        )
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore("lambert", store),
            rank=here.rank,
            world_size=here.size,
            timeout=timedelta(seconds=timeout),
            device_id=device if device.type == "cuda" else None,
        )
    except (RuntimeError, ValueError) as error:
        text = (
            f"Rank {here.rank} of {here.size} could not meet the others at {here.address}:{here.port}: {_line(error)}."
        )
        raise MachineError(f"{text} Are all ranks started, with the same address, and is that port free?") from error
    return store


def _device(name: str, local_rank: int) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device = {name!r} is unknown. Known: auto, cpu, cuda, cuda:N, mps.") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"device = {name!r} is not supported. Known: auto, cpu, cuda, cuda:N, mps.")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        device = torch.device("cuda", local_rank if device.index is None else device.index)
        if device.index >= count:
            raise UsageError(
                f"device = {name!r} needs GPU {device.index}, and torch finds {count} here; try device = 'cpu'."
            )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device = 'mps' needs an Apple GPU, and torch finds none here; try device = 'cpu'.")
    return device


def _pinned(batch: Batch) -> Batch:
    return replace(
        batch,
        ids_T=batch.ids_T.pin_memory(),
        types_T=batch.types_T.pin_memory(),
        positions_T=batch.positions_T.pin_memory(),
        bounds_S1=batch.bounds_S1.pin_memory(),
        targets={
            name: Target(target.at_N.pin_memory(), target.labels_N.pin_memory())
            for name, target in batch.targets.items()
        },
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300].rstrip(".")
