"""Checks that all ranks of a run agree: on settings, data and code at the start, and on the weights at intervals."""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import nn

import lambert
from lambert.core.errors import MachineError, UsageError
from lambert.core.version import __version__
from lambert.core.world import World
from lambert.engine import state


def compare(world: World, facts: Mapping[str, object]) -> None:
    """Raises UsageError on all ranks if `facts` (plain values by name) differ between ranks. The error names the first
    key that differs and the rank."""
    reports = [json.loads(text) for text in world.gather_text(json.dumps(dict(facts), default=str, sort_keys=True))]
    for rank, report in enumerate(reports[1:], 1):
        differing = [key for key in sorted(reports[0] | report) if reports[0].get(key) != report.get(key)]
        if differing:
            key, more = differing[0], f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
            raise UsageError(
                f"Rank {rank} differs from rank 0 in {key}{more}: {report.get(key, 'not set')} instead of "
                f"{reports[0].get(key, 'not set')}. All ranks need the same recipe, data and code."
            )


@cache
def code() -> str:
    """Returns 16 hexadecimal digits of the SHA-256 of the package's source files: two checkouts of different code may
    have the same version. A process reads the files once."""
    digest = hashlib.sha256()
    root = Path(lambert.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def software() -> dict[str, str]:
    """Returns the facts about the code that determine results: the sources, the versions of Lambert and torch, and the
    CPU instruction set that torch's kernels use."""
    return {
        "code": code(),
        "lambert": __version__,
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def compare_weights(world: World, model: nn.Module, update: int) -> None:
    """Raises MachineError on all ranks if the weights are not bit-identical on all ranks. The error names the ranks in
    the minority and the first parameter that differs. The cost is one pass over the weights and one small collective.
    """
    if world.size == 1:
        return
    sums = {name: tensor.detach() for name, tensor in state.tensors(model).items()}
    digests = [
        int(tensor.contiguous().view(torch.uint8).view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64))
        for tensor in sums.values()
    ]
    reports = [json.loads(text) for text in world.gather_text(json.dumps(digests))]
    if all(report == reports[0] for report in reports):
        return
    usual = max(reports, key=reports.count)
    wrong = [rank for rank, report in enumerate(reports) if report != usual]
    name = next(name for name, *values in zip(sums, *reports, strict=True) if len(set(values)) > 1)
    ranks = ", ".join(map(str, wrong))
    raise MachineError(
        f"After update {update:,} the weights of rank {ranks} differ from those of the other ranks, first in {name}: "
        "faulty memory or network? Continue from the last checkpoint; if it happens again, leave out the node of that "
        "rank."
    )


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type of each element size in bytes. A sum of such integers changes if any bit of one element changes."""
