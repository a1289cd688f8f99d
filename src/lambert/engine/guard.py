"""The guard: detects divergence (a loss that is not finite or increases sharply), stops or rolls back the run, and
writes what it found to incidents.jsonl."""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from lambert.core.errors import REMEDIES, DivergedError
from lambert.core.files import open_regular
from lambert.core.settings import check

if TYPE_CHECKING:
    from lambert.core.batch import Ints
    from lambert.core.world import World
    from lambert.engine.step import Step

Answer = Literal["go on", "roll back"]
Incident = Literal["skipped", "spike", "rolled back", "diverged"]
"""What happened at an update: it was skipped, or applied despite its high loss ("spike"), or the guard rolled the run
back or stopped it."""

INCIDENTS = "incidents.jsonl"
MAX_ROWS, MAX_BYTES = 1000, 1 << 25
"""Limits of the size of incidents.jsonl. Our choice: further rows would add no information."""

_LEAST_SCALE = 1.0
"""Loss scale below which loss scaling in float16 no longer helps (Megatron-LM stops there too: --min-loss-scale)."""

_log = logging.getLogger("lambert.incidents")


@dataclass(frozen=True, slots=True)
class GuardConfig:
    """When training counts as diverged, and what happens then. The bounds are our choice: no healthy run that we logged
    came near them."""

    action: Literal["stop", "roll back"] = "stop"
    """Exit with code 5, or return to a checkpoint before the divergence and continue with a smaller learning rate."""
    factor: float = 2.0
    """The loss has diverged if it exceeds factor x running mean + margin in `patience` updates in a row."""
    margin: float = 1.0
    """Added to the bound on the loss, in nats, so that a small loss may double."""
    patience: int = 20
    """Updates in a row above the bound on the loss that count as divergence."""
    window: int = 100
    """Time constant, in updates, of the exponential running mean of the loss."""
    skips: int = 10
    """Updates in a row with a non-finite gradient or loss that count as divergence. A few at the start of a float16 run
    are expected, until its loss scale has settled."""
    lr_factor: float = 0.5
    """Each roll back multiplies the learning rate by this factor: with the same data and seed, the run would otherwise
    diverge again."""
    roll_backs: int = 3
    """Roll backs after which the guard stops the run."""

    def __post_init__(self) -> None:
        count = "[1, inf)"
        check(self, "guard.", factor=count, patience=count, window=count, skips=count, lr_factor="(0, 1]")


class Guard:
    """A state machine that receives every Step in order. It judges each step when the next one arrives, so the host
    does not wait for the device.

    The guard uses only values that are equal on all ranks, so all ranks make the same decision.

    Args:
        scale: Returns the loss scale; called only after a skipped update.
        record: Receives every update with an Incident; the same on all ranks.
    """

    def __init__(
        self,
        config: GuardConfig,
        scale: Callable[[], float] = lambda: 1.0,
        record: Callable[["Step", Incident], None] = lambda step, what: None,
    ) -> None:
        self._config = config
        self._scale, self.record = scale, record
        self.lr_scale = 1.0
        """Factor by which the caller must multiply the schedule's learning rate."""
        self.healthy = 0
        """The last healthy step: the run must roll back to a checkpoint of this step or an earlier one."""
        self._roll_backs = 0
        self._mean: float | None = None
        self._high = self._skipped = 0
        self._unjudged: Step | None = None
        self._before: Step | None = None

    def watch(self, step: "Step") -> Answer:
        """Judges the step before `step` and returns what the run must do.

        Raises DivergedError, with the step, the numbers and what to try, if the run is to stop.
        """
        unjudged, self._unjudged = self._unjudged, step
        return "go on" if unjudged is None else self._judge(unjudged)

    def judge_last(self) -> Answer:
        """Judges the last step received, before the final weights are saved. Returns and raises as `watch` does."""
        unjudged, self._unjudged = self._unjudged, None
        return "go on" if unjudged is None else self._judge(unjudged)

    def state(self) -> dict[str, Any]:
        """Returns the plain values for the checkpoint. The counts of consecutive bad updates are not included: after a
        resume they start at 0."""
        return {"lr_scale": self.lr_scale, "roll_backs": self._roll_backs, "mean": self._mean, "healthy": self.healthy}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self.lr_scale, self._roll_backs = state["lr_scale"], state["roll_backs"]
        self._mean, self.healthy = state["mean"], state["healthy"]
        self._high = self._skipped = 0
        self._unjudged = self._before = None

    def roll_back(self, state: Mapping[str, Any]) -> None:
        """Called after a roll back with the guard's `state` in the checkpoint: counts the roll back and lowers the
        learning rate."""
        self.load({**state, "lr_scale": self.lr_scale * self._config.lr_factor, "roll_backs": self._roll_backs + 1})

    def _judge(self, step: "Step") -> Answer:
        config = self._config
        bad = step.skipped or not math.isfinite(step.loss)
        self._skipped = self._skipped + 1 if bad else 0
        high = not bad and self._mean is not None and step.loss > config.factor * self._mean + config.margin
        self._high = self._high + 1 if high or (bad and self._high) else 0
        answer: Answer = "go on"
        if step.skipped and (scale := self._scale()) < _LEAST_SCALE:
            answer = self._act(step, f"the float16 loss scale collapsed to {scale:g}, and gradients still overflow")
        elif self._skipped >= config.skips:
            answer = self._act(step, f"{self._skipped} updates in a row had a non-finite gradient or loss")
        elif self._high >= config.patience:
            answer = self._act(
                step,
                f"the loss was above {config.factor:g} x {self._mean:.4g} + {config.margin:g} in "
                f"{self._high} updates in a row",
            )
        elif bad or high:
            self.record(step, "skipped" if step.skipped else "spike")
        else:
            self.healthy = step.index
            pace = 1 / config.window
            self._mean = step.loss if self._mean is None else self._mean + pace * (step.loss - self._mean)
        self._before = step
        return answer

    def _act(self, step: "Step", why: str) -> Answer:
        config, before = self._config, self._before
        if config.action == "roll back" and self._roll_backs < config.roll_backs:
            self.record(step, "rolled back")
            return "roll back"
        self.record(step, "diverged")
        where = f" First parameter with a non-finite gradient: {step.non_finite}" if step.non_finite else ""
        if where:
            where += f" (rank {', '.join(map(str, step.faults))})." if step.faults and len(step.loads) > 1 else "."
        norm = f", gradient norm {before.grad_norm:.4g} at step {before.index}" if before else ""
        times = f" after {self._roll_backs} roll backs" if self._roll_backs else ""
        numbers = f"loss {step.loss:.4g}, learning rate {step.lr:.3g}{norm}"
        raise DivergedError(
            f"Training diverged at step {step.index}{times}: {why} ({numbers}).{where} The last healthy step is "
            f"{self.healthy}. {REMEDIES}"
        )


class Incidents:
    """Appends a row for each update with an Incident to incidents.jsonl in the folder `run`, up to MAX_ROWS rows and
    about MAX_BYTES. Rows remain when a run is resumed or rolled back. Only rank 0 writes.

    A row has the keys step, time (seconds since 1970), what, loss and grad_norm (null if not finite), parameter and
    ranks (those with a non-finite gradient), sequences ([first, last], numbered over the whole run from 0) and samples
    ([[epoch, [index, ...]], ...] in the order of the sequences).

    Args:
        samples: Returns the epochs and indices [S] of the sequences of an update, given its number from 0.
    """

    def __init__(self, run: Path, samples: Callable[[int], "tuple[Ints, Ints]"], world: "World") -> None:
        self._path, self._samples = run / INCIDENTS, samples
        self._world, self._open, self._rows = world, world.is_first, -1

    def add(self, step: "Step", what: Incident) -> None:
        """Writes the row, and logs a skipped update. If the disk refuses, a warning is logged once and no further row
        is written."""
        if not self._open:
            return
        if what == "skipped":
            where = f", first in {step.non_finite}" if step.non_finite else ""
            if step.faults and self._world.size > 1:
                where += f", on rank {', '.join(map(str, step.faults))}"
            _log.info("update %d skipped: its gradient is not finite%s", step.index, where)
        try:
            with open_regular(self._path, "a+b") as file:
                if self._rows < 0:
                    self._rows = _repair(file)
                if self._rows >= MAX_ROWS or file.tell() >= MAX_BYTES:
                    self._open = False
                    _log.warning("%s is full: further incidents are not written.", self._path)
                    return
                file.write(json.dumps(self._row(step, what)).encode() + b"\n")
                self._rows += 1
        except OSError as error:
            self._open = False
            _log.warning("%s cannot be written: %s. The run continues without it.", self._path, error.strerror)

    def _row(self, step: "Step", what: Incident) -> dict[str, Any]:
        epochs_S, indices_S = (places_S.tolist() for places_S in self._samples(step.index - 1))
        pairs = groupby(zip(epochs_S, indices_S, strict=True), key=lambda pair: pair[0])
        first = (step.index - 1) * len(indices_S)
        return {
            "step": step.index,
            "time": round(time.time(), 3),
            "what": what,
            "loss": step.loss if math.isfinite(step.loss) else None,
            "grad_norm": step.grad_norm if math.isfinite(step.grad_norm) else None,
            "parameter": step.non_finite,
            "ranks": [*step.faults],
            "sequences": [first, first + len(indices_S) - 1],
            "samples": [[epoch, [index for _, index in group]] for epoch, group in pairs],
        }


def _repair(file: IO[bytes]) -> int:
    """Returns the number of rows in the file. Appends a newline if a killed process left the last row incomplete."""
    file.seek(0)
    before = file.read()
    if before and not before.endswith(b"\n"):
        file.write(b"\n")
    return len(before.splitlines())
