"""The guard: stops a run whose loss is not finite or runs away, instead of letting it train on."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lambert.core.errors import DivergedError, UsageError

if TYPE_CHECKING:
    from lambert.engine.loop import Step

Answer = Literal["go on", "roll back"]

_LEAST_SCALE = 1.0
"""Loss scale below which float16 has lost what it was for (Megatron-LM stops there too: --min-loss-scale)."""


@dataclass(frozen=True, slots=True)
class GuardConfig:
    """When training counts as diverged, and what happens then. The bounds are ours: wide enough that no healthy run
    we logged came near them."""

    action: Literal["stop", "roll back"] = "stop"
    """Leave with exit code 5, or go back to a checkpoint from before and continue with a smaller learning rate."""
    factor: float = 2.0
    """The loss has run away where it is above factor x running mean + margin ..."""
    margin: float = 1.0
    """... (in nats, so that a small loss may double) ..."""
    patience: int = 20
    """... in so many updates in a row."""
    window: int = 100
    """Updates over which the running mean forgets (exponentially)."""
    skips: int = 10
    """Updates in a row skipped for a non-finite gradient or loss that count as divergence. The first few of a
    float16 run are expected: its loss scale settles."""
    lr_factor: float = 0.5
    """Each roll back multiplies the learning rate by this: with the same data and seed, nothing else would change."""
    roll_backs: int = 3
    """Roll backs before the guard stops all the same."""

    def __post_init__(self) -> None:
        if self.factor < 1 or self.margin < 0:
            raise UsageError(
                f"guard.factor = {self.factor} must be at least 1, and guard.margin = {self.margin} at least 0."
            )
        if min(self.patience, self.window, self.skips) < 1 or self.roll_backs < 0:
            raise UsageError(
                "guard.patience, guard.window and guard.skips must be at least 1, guard.roll_backs at least 0."
            )
        if not 0 < self.lr_factor <= 1:
            raise UsageError(f"guard.lr_factor = {self.lr_factor} must be above 0 and at most 1.")


@dataclass(frozen=True, slots=True)
class Incident:
    """An update that went wrong; the same on all ranks."""

    step: int
    """Updates done, this one included."""
    what: Literal["skipped", "spike", "rolled back", "diverged"]
    """What became of it. A spike was applied; the last two say what the guard did at this update, whatever it was."""
    loss: float
    grad_norm: float
    parameter: str | None
    """The first one whose gradient is not finite."""
    ranks: tuple[int, ...]
    """Those whose own gradient was not finite before the sum."""


class Guard:
    """A state machine fed with every Step in order. It judges one step late, so that nobody waits for the device.

    It judges by what is equal on all ranks, so that all of them decide alike. `scale` gives the loss scale, and is
    asked only where an update was skipped; `record` is handed every Incident.
    """

    def __init__(
        self,
        config: GuardConfig,
        scale: Callable[[], float] = lambda: 1.0,
        record: Callable[[Incident], None] = lambda incident: None,
    ) -> None:
        self._config = config
        self._scale, self.record = scale, record
        self.lr_scale = 1.0
        """What the schedule's learning rate is to be multiplied by."""
        self.healthy = 0
        """The last step before trouble began: roll back to a checkpoint of at most this step."""
        self._roll_backs = 0
        self._mean: float | None = None
        self._high = self._skipped = 0
        self._unjudged: Step | None = None
        self._before: Step | None = None

    def watch(self, step: "Step") -> Answer:
        """Judges the step before `step`. Raises DivergedError, with the step, the numbers and what to try."""
        unjudged, self._unjudged = self._unjudged, step
        return "go on" if unjudged is None else self._judge(unjudged)

    def settle(self) -> Answer:
        """Judges the step watched last: before the weights are saved for good."""
        unjudged, self._unjudged = self._unjudged, None
        return "go on" if unjudged is None else self._judge(unjudged)

    def state(self) -> dict[str, Any]:
        """Plain values for the checkpoint. Counts of a trouble in progress are left out: it shows itself again."""
        return {
            "lr_scale": self.lr_scale,
            "roll_backs": self._roll_backs,
            "mean": self._mean,
            "healthy": self.healthy,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state` gave."""
        self.lr_scale, self._roll_backs = state["lr_scale"], state["roll_backs"]
        self._mean, self.healthy = state["mean"], state["healthy"]
        self._forget()

    def rolled_back(self, state: Mapping[str, Any]) -> None:
        """After a roll back, with the `state` of the checkpoint: keeps count of it and lowers the learning rate."""
        self._mean, self.healthy = state["mean"], state["healthy"]
        self._roll_backs += 1
        self.lr_scale *= self._config.lr_factor
        self._forget()

    def _forget(self) -> None:
        self._high = self._skipped = 0
        self._unjudged = self._before = None

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
            self._record(step, "skipped" if step.skipped else "spike")
        else:
            self.healthy = step.index
            pace = 1 / config.window
            self._mean = step.loss if self._mean is None else self._mean + pace * (step.loss - self._mean)
        self._before = step
        return answer

    def _act(self, step: "Step", why: str) -> Answer:
        config, before = self._config, self._before
        if config.action == "roll back" and self._roll_backs < config.roll_backs:
            self._record(step, "rolled back")
            return "roll back"
        self._record(step, "diverged")
        where = f" First parameter with a non-finite gradient: {step.non_finite}" if step.non_finite else ""
        if where:
            where += f" (rank {', '.join(map(str, step.faults))})." if step.faults and len(step.loads) > 1 else "."
        norm = f", gradient norm {before.grad_norm:.4g} at step {before.index}" if before else ""
        times = f" after {self._roll_backs} roll backs" if self._roll_backs else ""
        numbers = f"loss {step.loss:.4g}, learning rate {step.lr:.3g}{norm}"
        raise DivergedError(
            f"Training diverged at step {step.index}{times}: {why} ({numbers}).{where} The last healthy step is "
            f"{self.healthy}. Try a smaller optim.lr, a longer warm-up, optim.clip = 1, or bfloat16 instead of float16."
        )

    def _record(self, step: "Step", what: Literal["skipped", "spike", "rolled back", "diverged"]) -> None:
        self.record(Incident(step.index, what, step.loss, step.grad_norm, step.non_finite, (*step.faults,)))
