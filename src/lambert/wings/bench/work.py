"""Sides that do the same work in alternating rounds, and the figures computed from their times."""

import importlib
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from lambert.core.errors import UsageError
from lambert.core.registry import Kind, lookup
from lambert.measure.ceilings import Rates, Shape
from lambert.measure.training import Step
from lambert.wings.bench.settings import BenchConfig

OWN = "lambert"


@dataclass(frozen=True)
class Checked:
    """A step whose results are compared with those of another implementation, once, after its memory was measured."""

    step: Step
    compare: Callable[[], None]
    """Raises MachineError if they differ."""

    def __call__(self) -> float:
        return self.step()


Build = Callable[[], Step]
"""Builds a side: weights, compiled graphs, inputs. Its time counts as start-up."""


@dataclass(frozen=True)
class Work:
    """A kind of work and its sides, which all compute the same thing in their own way."""

    sides: Mapping[str, Build]
    """By name, OWN first; made by `sides`."""
    tokens: int
    """Number of units of a round, such as tokens without padding; see `unit`."""
    sequences: int = 0
    """Sequences of a round; 0 if the work has none."""
    padded: int = 0
    """Tokens of the peers' batch, padding included; 0 if nothing is padded."""
    operations: int = 0
    """Floating-point operations of a round's matrix products on real tokens; 0 if the work has none."""
    unit: str = "tokens"
    """The unit that `tokens` counts."""
    shapes: tuple[Shape, ...] = ()
    """Matrix products of a round, for the ceiling in these shapes; see `batches.layer_shapes`."""
    rebuilt: bool = False
    """Build a side again, untimed, before each of its rounds, because it caches results of earlier rounds."""
    more: Callable[[str, float], dict[str, float]] = lambda side, seconds: {}
    """Returns further figures of a side from its name and its median seconds per round."""


@dataclass
class Times:
    """The times of a side, in seconds."""

    build: float
    first: float
    """The first round, which includes compiling, the choice of kernels and the first use of memory."""
    check: float
    """The value of the first round."""
    memory_mb: int
    """Peak memory of the process after the build and two rounds; on a GPU, the rise of its allocated memory."""
    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def compile(self) -> float:
        """The first round minus the median of the later ones."""
        return max(0.0, self.first - self.median)


def sides(
    config: BenchConfig, own: Build, peers: Mapping[str, Callable[..., Step]], *arguments: object
) -> dict[str, Build]:
    """Returns Lambert's side and one for each peer that `config` names: a function in `peers`, or from outside, that
    builds a step from `arguments`. Raises UsageError, with the nearest name, for an unknown peer."""
    kind = Kind(tuple(type(argument) for argument in arguments))
    chosen = {name: partial(lookup(peers, name, "peer", kind), *arguments) for name in config.peers()}
    return {OWN: own, **chosen}


def import_peer(package: str, peer: str, install: str) -> Any:
    """Imports and returns the package. Raises UsageError that says what to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(f"peer = {peer} needs {package}: pip install '{install}'.") from error


def figures(work: Work, times: Mapping[str, Times], best: float, shaped: float) -> dict[str, dict[str, Any]]:
    """Returns the figures of each side. `best` and `shaped` are ceilings in operations per second; 0: not measured."""
    found = {}
    for name, taken in times.items():
        seconds = taken.median
        found[name] = {
            "sequences_per_second": round(work.sequences / seconds, 2) if work.sequences else None,
            f"{work.unit}_per_second": round(work.tokens / seconds, 1),
            f"padded_{work.unit}_per_second": round(work.padded / seconds, 1) if work.padded else None,
            "share_of_ceiling": round(work.operations / seconds / best, 3) if best else None,
            "share_of_shaped_ceiling": round(work.operations / seconds / shaped, 3) if shaped else None,
            "build_seconds": round(taken.build, 3),
            "compile_seconds": round(taken.compile, 3),
            "check": round(taken.check, 4),
            "seconds": [round(value, 6) for value in taken.rounds],
            **{figure: round(value, 3) for figure, value in work.more(name, seconds).items()},
        }
        if name != OWN:
            found[name] |= compare_rounds(times[OWN].rounds, taken.rounds)
    return found


def compare_rounds(own: Sequence[float], peer: Sequence[float]) -> dict[str, Any]:
    """Returns the ratio of a peer's seconds to Lambert's `own` in the same round: the median, and the range."""
    ratios = [other / lambert for lambert, other in zip(own, peer, strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
    }


def describe_machine(config: BenchConfig, rates: Rates) -> dict[str, Any]:
    """Returns the device of a measurement, and its ceilings; None for those that were not measured."""
    return {
        "threads": config.threads,
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "device": config.device,
        "ceiling_gflops": round(rates.product / 1e9, 1) if rates.product else None,
        "shaped_ceiling_gflops": round(rates.shaped / 1e9, 1) if rates.shaped else None,
        "copy_gb_per_second": round(rates.copy / 1e9, 1),
    }
