"""The processes that train together. A world of one answers the same questions, so that the loop has no branches."""

import importlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import torch
import torch.distributed
from torch import Tensor

from lambert.core.batch import Batch, Target
from lambert.core.errors import MachineError, UsageError

TIMEOUT_SECONDS = 120.0
"""How long a collective waits for a rank that hangs. Torch's own default is 30 minutes, paid in idle machines."""


@dataclass(frozen=True, slots=True)
class World:
    """One process alone; `Group` is several. Every method here is what a collective gives for a world of size one."""

    rank: int = 0
    """Number of this process, from 0."""
    size: int = 1
    """Processes that train together."""
    local_rank: int = 0
    """Number of this process on its machine."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where this process computes."""

    @classmethod
    def detect(cls, device: str = "auto", timeout: float = TIMEOUT_SECONDS) -> "World":
        """The world this process was started in: alone, or under `torchrun` (RANK, WORLD_SIZE, LOCAL_RANK).

        `device` is "auto" (a GPU where there is one), "cpu", "cuda", "cuda:N" or "mps"; `timeout` in seconds.
        Raises UsageError for a device that is unknown or absent, MachineError where the processes cannot meet.
        """
        rank, size, local_rank = _place()
        where = _device(device, local_rank)
        if where.type == "cuda":
            torch.cuda.set_device(where)
        if size == 1:
            return World(device=where)
        if not torch.distributed.is_initialized():
            # The first optimizer step imports this; imported with a group at hand it keeps the group's threads alive
            # beyond `close`, and one that meets the end of the interpreter aborts the process, one run in ten.
            importlib.import_module("torch._dynamo")
            try:
                torch.distributed.init_process_group(
                    "cpu:gloo,cuda:nccl" if where.type == "cuda" else "gloo",
                    rank=rank,
                    world_size=size,
                    timeout=timedelta(seconds=timeout),
                    device_id=where if where.type == "cuda" else None,
                )
            except (RuntimeError, ValueError) as error:
                meeting = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
                text = f"Rank {rank} of {size} could not join the others at {meeting}: {_line(error)}."
                raise MachineError(f"{text} Start all processes with the same `torchrun` settings.") from error
        return Group(rank=rank, size=size, local_rank=local_rank, device=where)

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

    def largest(self, number: int) -> int:
        """The largest of the ranks' numbers. It travels over the host, so the device need not be waited for."""
        return number

    def close(self) -> None:
        """Leaves the group and ends its threads, before the interpreter goes."""


@dataclass(frozen=True, slots=True)
class Group(World):
    """Several processes on `torch.distributed`: NCCL between GPUs, Gloo between hosts."""

    def sum(self, tensor: Tensor) -> Tensor:
        torch.distributed.all_reduce(tensor)
        return tensor

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            torch.distributed.broadcast(tensor.detach(), src=0)

    def broadcast_text(self, text: str) -> str:
        content = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
        length = torch.tensor([len(text.encode())])
        torch.distributed.broadcast(length, src=0)
        if not self.is_first:
            content = torch.zeros(max(1, int(length)), dtype=torch.uint8)
        torch.distributed.broadcast(content, src=0)
        return bytes(content[: int(length)].tolist()).decode()

    def largest(self, number: int) -> int:
        value = torch.tensor([number])
        torch.distributed.all_reduce(value, op=torch.distributed.ReduceOp.MAX)
        return int(value)

    def close(self) -> None:
        torch.distributed.destroy_process_group()


def _place() -> tuple[int, int, int]:
    try:
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        local_rank = int(os.environ.get("LOCAL_RANK", str(rank)))
    except ValueError as error:
        raise UsageError(f"RANK, WORLD_SIZE and LOCAL_RANK must be numbers; `torchrun` sets them: {error}.") from error
    if not 0 <= rank < size:
        raise UsageError(f"RANK={rank} is not below WORLD_SIZE={size}; start the processes with `torchrun`.")
    return rank, size, local_rank


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
