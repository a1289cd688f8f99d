"""Checks that need ranks: processes are started once, and every check runs in them, in groups of 2 and 3.

Groups of 4 are slow on a machine of two cores: they are started once, too, for tests that are marked so.
"""

import json
import tempfile
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from patience import HANGS
from tiny import free_port, start
from torch import Tensor
from torch.distributed import ProcessGroup

from lambert.distributed.detection import detect
from lambert.engine.gradients import Bucket

QUICK, SLOW = (2, 3), (4,)
Check = Callable[[ProcessGroup], None]


def on_all_ranks(*checks: Check, sizes: Sequence[int] = ()) -> Callable[..., None]:
    """A test of each check in groups of each size, by default of those above. The first that runs starts the processes,
    for all of them."""

    @cache
    def found(sizes: Sequence[int]) -> dict[tuple[str, int], str]:
        with tempfile.TemporaryDirectory() as folder:
            return outcomes(checks, Path(folder), sizes)

    slow = [pytest.param(size, marks=pytest.mark.slow) for size in SLOW]

    @pytest.mark.parametrize("size", sizes or [*QUICK, *slow])
    @pytest.mark.parametrize("check", [check.__name__ for check in checks])
    def test(check: str, size: int) -> None:
        outcome = found(tuple(sizes) or (QUICK if size in QUICK else SLOW))[check, size]
        assert not outcome, outcome

    return test


def outcomes(checks: Sequence[Check], folder: Path, sizes: Sequence[int]) -> dict[tuple[str, int], str]:
    """What went wrong, by the name of the check and the size of the group: nothing where it holds on every rank."""
    port, ranks = free_port(), max(sizes)
    processes = [start(_all, checks, folder, sizes, rank=rank, world=ranks, port=port) for rank in range(ranks)]
    for process in processes:
        process.join(HANGS)
        process.kill()
    found: dict[tuple[str, int], str] = {(check.__name__, size): "" for check in checks for size in sizes}
    for rank in range(ranks):
        file = folder / f"{rank}.json"
        said = json.loads(file.read_text()) if file.exists() else {}
        for name, size in found:
            if rank < size:
                found[name, size] += said.get(f"{name} {size}", f"rank {rank} did not come to it")
    return found


def _all(checks: Sequence[Check], folder: Path, sizes: Sequence[int]) -> None:
    world = detect("cpu", timeout=HANGS)
    groups = {size: dist.new_group([*range(size)]) for size in sizes}
    said = {}
    for check in checks:
        for size, group in groups.items():
            if world.rank < size:
                try:
                    check(group)
                    said[f"{check.__name__} {size}"] = ""
                except Exception:
                    said[f"{check.__name__} {size}"] = f"rank {world.rank}: {traceback.format_exc()}"
                (folder / f"{world.rank}.json").write_text(json.dumps(said))
    world.sum(torch.zeros(1))
    world.close()


def bucket_of(grads: Sequence[Tensor], index: int = 0, align: int = 1, first: int = 0) -> Bucket:
    """A bucket of parameters p0, p1, ..., each beginning at a multiple of `align`; `first` numbers the first."""
    starts, length = [], 0
    for grad in grads:
        starts.append(length)
        length += -(-grad.numel() // align) * align
    flat = torch.zeros(length)
    views = [flat[at : at + grad.numel()].view_as(grad) for at, grad in zip(starts, grads, strict=True)]
    for view, grad in zip(views, grads, strict=True):
        view.copy_(grad)
    return Bucket(index, flat, views, [f"p{first + i}" for i in range(len(grads))])


def gradients(shapes: Sequence[tuple[int, ...]], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def everyones(tensor: Tensor, group: ProcessGroup) -> list[Tensor]:
    """Of all ranks, in their order."""
    found = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(found, tensor.contiguous(), group=group)
    return found


def assert_same_bits(tensor: Tensor, group: ProcessGroup) -> None:
    first, *others = everyones(tensor.reshape(-1).view(torch.uint8), group)
    for other in others:
        assert torch.equal(first, other)
