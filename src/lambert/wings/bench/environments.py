"""The environment of each side of a measurement.

Lambert's commands give themselves two variables (engine/process.py). They must not reach another library, which they
may slow: with short waits a small model of transformers takes up to 1.6 times as long. A peer therefore starts in the
user's own environment, and the variables that may help it are tried once, before the rounds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from lambert.engine import process

Variables = Mapping[str, str]
"""Variables that a side has besides those of the user's environment."""
UNCHANGED: Variables = MappingProxyType({})
BOUND = {"OMP_PROC_BIND": "close", "OMP_SCHEDULE": "static"}
"""Variables that bind threads to cores. Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html,
"Utilize OpenMP"."""
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "OMP_SCHEDULE", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables with which a user chooses the cores of threads."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The variables of the fastest environment, and the seconds of each that was tried."""

    variables: Variables
    tried: Mapping[str, float] = field(default_factory=dict)
    """Seconds by `describe`; empty if there was no choice."""

    def as_json(self) -> dict[str, object]:
        """Returns its entries in a log."""
        return {"environment": dict(self.variables), "environments_tried": dict(self.tried)}


def candidates(device: str = "cpu") -> list[Variables]:
    """Returns the sets of variables to try for a peer; the first is empty, the user's own environment. On a GPU, only
    that. Variables that the user has set stay as they are."""
    if not device.startswith("cpu"):
        return [UNCHANGED]
    memory, waits = process.allocator_variables(), process.thread_variables()
    chosen = any(name.startswith(_BINDING) for name in process.INITIAL_ENVIRONMENT)
    made: list[Variables] = []
    for variables in (UNCHANGED, memory, waits, memory | waits, UNCHANGED if chosen else BOUND):
        if variables not in made:
            made.append(variables)
    return made


def of(variables: Variables) -> dict[str, str]:
    """Returns the whole environment: the user's own, and these variables. Python keeps compiled modules in it, as after
    an ordinary installation, because compiling the modules of a library at each start takes seconds."""
    own = {name: value for name, value in process.INITIAL_ENVIRONMENT.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**own, **variables}


def describe(variables: Variables) -> str:
    """Returns the names of the variables, or a text that says that there are none."""
    return " ".join(variables) or "unchanged"


def find_fastest(seconds: Callable[[Variables], float], tried: Sequence[Variables], rounds: int = 2) -> Trial:
    """Returns the best of `rounds` alternating trials of each of the environments; `seconds` runs one trial."""
    if len(tried) == 1:
        return Trial(tried[0])
    taken: list[list[float]] = [[] for _ in tried]
    for _ in range(rounds):
        for variables, times in zip(tried, taken, strict=True):
            times.append(seconds(variables))
    best = [min(times) for times in taken]
    found = {describe(variables): round(value, 4) for variables, value in zip(tried, best, strict=True)}
    return Trial(tried[best.index(min(best))], found)
