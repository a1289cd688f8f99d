"""torch.compile for the blocks of a net: all blocks share a few graphs, which serve batches of every shape.

Blocks are compiled in place, so the names of parameters and checkpoints do not change. If compilation fails, the blocks
run eagerly, and one line reports why.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from lambert.core.world import World


@dataclass(frozen=True, slots=True)
class Compilation:
    """The result of an attempt to compile."""

    active: bool = False
    """Whether blocks are compiled now."""
    seconds: float = 0.0
    """How long compilation took, whether or not it succeeded."""
    problem: str = ""
    """Why compilation failed, in one line; empty if it succeeded or was not requested."""


def should_compile(setting: str, device: torch.device) -> bool:
    """Returns whether `setting` asks for compilation on this device. auto: only on GPUs, because on a CPU the explicit
    products of `model/linear.py` and `model/attention.py` are faster."""
    return setting == "on" or (setting == "auto" and device.type == "cuda")


def compile_blocks(blocks: Iterable[nn.Module]) -> None:
    """Marks each block to be compiled in place at its first call, with one graph for all numbers of tokens."""
    for block in blocks:
        block.compile(dynamic=True)


@contextmanager
def compile_or_fall_back(
    blocks: Iterable[nn.Module], trial: Callable[[], object], world: World
) -> Iterator[Compilation]:
    """A context in which the blocks are compiled on all ranks, if `trial`, a forward and backward pass through them,
    succeeds on all ranks; otherwise the blocks run eagerly on all ranks."""
    blocks = [*blocks]
    try:
        compile_blocks(blocks)
        with warnings.catch_warnings():
            # torch warns about the states between two blocks, whose gradients are not used.
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
            found = try_compiling(trial)
            if world.largest(int(bool(found.problem))):
                _eager(blocks)
                found = replace(found, active=False, problem=found.problem or "another rank could not")
            yield found
    finally:
        _eager(blocks)


def try_compiling(trial: Callable[[], object]) -> Compilation:
    """Runs `trial`, in which functions or modules are compiled at their first call, and returns the result."""
    began, problem = time.perf_counter(), ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compilers print pages of advice
        try:
            trial()
        except Exception as error:  # a backend, a C compiler or a driver may raise anything
            problem = describe_cause(error)
    return Compilation(not problem, time.perf_counter() - began, problem)


def describe_cause(error: BaseException) -> str:
    """Returns one line for `error`: the type and the first non-empty line of the innermost error that caused it."""
    while error.__cause__ is not None:
        error = error.__cause__
    inner = getattr(error, "inner_exception", error)
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return f"{type(inner).__name__}: {lines[0][:200]}" if lines else type(inner).__name__


def _eager(blocks: Iterable[nn.Module]) -> None:
    for block in blocks:
        block._compiled_call_impl = None  # Module.compile sets it, and no public function resets it
