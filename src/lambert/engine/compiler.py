"""torch.compile around the blocks of a net: all of them share a few graphs, for batches of every shape.

A block is compiled in place, so that names of parameters and checkpoints are the same. What does not compile runs
eagerly, and is said in a line.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from lambert.engine.cluster.dist import World

Setting = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class Compilation:
    """What became of it."""

    active: bool = False
    """Whether blocks are compiled now."""
    seconds: float = 0.0
    """What compiling took, or failing to."""
    problem: str = ""
    """Why it could not be done, in a line; empty where it was, or was not wanted."""


def wanted(setting: str, device: torch.device) -> bool:
    """auto: on GPUs alone. On a CPU the explicit products of `model/linear.py` and `model/attention.py` are faster."""
    return setting == "on" or (setting == "auto" and device.type == "cuda")


def compile_blocks(blocks: Iterable[nn.Module]) -> None:
    """Compiles each block in place, at its first call. `dynamic`: one graph for every number of tokens."""
    for block in blocks:
        block.compile(dynamic=True)


@contextmanager
def compiled(blocks: Iterable[nn.Module], trial: Callable[[], object], world: World) -> Iterator[Compilation]:
    """Blocks are compiled inside of it, on all ranks, where `trial`, a pass forward and backward through them, succeeds
    on all; otherwise they run eagerly."""
    blocks = [*blocks]
    began, problem = time.perf_counter(), ""
    try:
        compile_blocks(blocks)
        with warnings.catch_warnings():
            # Said of the states between two blocks, whose gradient nobody asks for.
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a compiler's advice is pages long
                    trial()
            except Exception as error:  # whatever a backend, a C compiler or a driver raises
                problem = cause(error)
            if world.largest(int(bool(problem))):
                _eager(blocks)
                problem = problem or "another rank could not"
            yield Compilation(not problem, time.perf_counter() - began, problem)
    finally:
        _eager(blocks)


def cause(error: BaseException) -> str:
    """The first line that says something, of the innermost error that a backend's one was raised for."""
    while error.__cause__ is not None:
        error = error.__cause__
    inner = getattr(error, "inner_exception", error)
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return f"{type(inner).__name__}: {lines[0][:200]}" if lines else type(inner).__name__


def _eager(blocks: Iterable[nn.Module]) -> None:
    for block in blocks:
        block._compiled_call_impl = None  # what Module.compile sets, and nothing public takes back
