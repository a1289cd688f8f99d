"""The log of a run: metrics.jsonl, log.txt, environment.json, trackers and the console. Only rank 0 writes."""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from lambert.core.errors import MachineError, printable_line
from lambert.core.files import explain_removal, identity, json_text, replace_files
from lambert.core.urls import without_secrets
from lambert.core.world import World
from lambert.engine import environment
from lambert.engine.ceiling import CEILING
from lambert.engine.device import peak_megabytes
from lambert.engine.metrics_file import METRICS, AppendOnlyFile, last_number, truncate
from lambert.engine.progress import PLAIN_SECONDS, progress, score_text
from lambert.engine.step import Step
from lambert.engine.trackers import Tracker, start_trackers

LOG = "log.txt"
SCORED = "scored"
"""Key of `RunLog.state()`: the last update with a row of held-out scores. Earlier versions did not store it."""
Monitor = Callable[[Mapping[str, Any]], str]
"""Receives each row of metrics.jsonl and returns a line for the log, or an empty string."""
_WAIT_SHOWN = 0.01
"""The console shows the share of time that training waited for data if it is at least this."""
_MEASURED = 10
"""Updates from which the time left is estimated, at least. The first ones are slower."""


class RunLog:
    """The log of a run in the folder `run`. If the disk refuses a write, one warning is shown and the run continues.

    A row of metrics.jsonl has the keys step, time (seconds since 1970), sequences, tokens and skipped updates (since
    the first update), loss, loss/<objective>, lr, grad_norm, sequences_per_second, tokens_per_second and wait_share
    (means since the last row), utilisation (share of `peak_flops`, or null), ceiling_gflops (`peak_flops` / 1e9, or
    null), memory_mb (peak) and checkpoint_pause_seconds (how long saving delayed training since the last row). With
    several ranks a row also has, as means per update, imbalance (`Step.imbalance`), exchange_seconds and
    exchange_wait_seconds (`Step.exchange_seconds`). A row of held-out scores has step, heldout/<name>
    and, if the best weights are kept, best_update. With a `price`, all rows have the cost so far. Values that are not
    finite are null.

    Args:
        steps: Number of updates of the whole run.
        start: The update after which the run continues; rows of later updates are removed.
        every: Number of updates per row.
        state: What `state()` returned for the checkpoint from which the run continues.
        peak_flops: Highest measured floating-point operations per second of the device; may be raised during the run.
        trackers: Names of programs that get the rows too.
        seconds: Interval between two lines of progress without a terminal.
        facts: Additional entries of environment.json.
        price: Price of an hour of a process.
        measure: Returns additional numbers of a row when one is written.
        monitor: If it returns a line for a row, the line is logged and the row gets the entry plateau = 1.
    """

    def __init__(
        self,
        run: Path,
        *,
        steps: int,
        start: int = 0,
        every: int = 10,
        state: Mapping[str, Any] | None = None,
        peak_flops: float | None = None,
        trackers: Sequence[str] = (),
        quiet: bool = False,
        description: str = "train",
        seconds: float = PLAIN_SECONDS,
        facts: Mapping[str, Any] | None = None,
        world: World | None = None,
        monitor: Monitor = lambda row: "",
        price: float = 0.0,
        measure: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._world = world or World()
        self._monitor, self._measure = monitor, measure
        self._rate, self._paid, self._began = price * self._world.size / 3600, 0.0, time.monotonic()
        self._run, self._start, self._every, self.peak_flops = run, start, every, peak_flops
        self._ended = start >= steps
        self._facts = dict(facts or {})
        self._load({"sequences": 0, "tokens": 0, "skipped": 0, SCORED: 0} | dict(state or {}))
        self._interval: defaultdict[str, float] = defaultdict(float)
        self._pending: Step | None = None
        self._details, self._warned = "", False
        self._identity: tuple[int, int] | None = None
        self._writes = self._world.is_first
        self._bar = progress(
            steps, description, unit="updates", quiet=quiet or not self._writes, seconds=seconds, done=start,
            measured=_MEASURED,
        )  # fmt: skip
        self._trackers = start_trackers(trackers, run, start) if self._writes else {}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._totals = {name: state[name] for name in ("sequences", "tokens", "skipped")}
        self._scored: int = state[SCORED]

    def __enter__(self) -> Self:
        self._bar.__enter__()
        if not self._writes:
            return self
        self._metrics = AppendOnlyFile(self._run / METRICS, self._warn_once)
        self._text = AppendOnlyFile(self._run / LOG, self._warn_once)
        self._handler = _Records(self)
        logging.getLogger("lambert").addHandler(self._handler)
        self._level = logging.getLogger("lambert").level
        logging.getLogger("lambert").setLevel(logging.INFO)
        with self._tolerate_disk_errors():
            self._run.mkdir(parents=True, exist_ok=True)
            self._identity = identity(self._run)
            self._paid = last_number(self._run / METRICS, "cost")  # of rows that are removed too: it has been paid
            truncate(self._run / METRICS, self._start, ended=self._ended)
            described = json.dumps(environment.describe(self._world) | self._facts, indent=1)
            replace_files({self._run / "environment.json": (described + "\n").encode()})
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._writes:
            if self._rate:
                self.note(f"cost so far: {self._cost()['cost']:,.2f}")
            if error is not None:
                self._text.write(f"{_now()} {type(error).__name__}: {error}")
            logging.getLogger("lambert").removeHandler(self._handler)
            logging.getLogger("lambert").setLevel(self._level)
            self._metrics.sync()  # the final scores come after the last checkpoint and before the model folder
            self._metrics.close()
            self._track(lambda tracker: tracker.close())
            self._text.close()
        self._bar.__exit__(kind, error, trace)

    def step(self, step: Step, flops: float = 0.0) -> None:
        """Counts an update that took `flops` floating-point operations, and writes a row if one is due."""
        self._totals["sequences"] += step.sequences
        self._totals["tokens"] += step.tokens
        # The values read are those of the step before, because the device has just begun to compute this one.
        self._flush()
        self._pending = step
        self._interval["flops"] += flops
        if step.due(self._every):
            self._flush()
            row = self._row(step)
            self._details = _details(row)
            finding = self._monitor(row)
            if self._writes:
                self._write(row | ({"plateau": 1} if finding else {}))
            self.note(finding)
            self._interval.clear()
        self._bar.advance(1, self._details)

    def add_pause(self, seconds: float) -> None:
        """Adds the time that a save delayed training."""
        self._interval["pause_seconds"] += seconds

    def scores(self, step: int, scores: Mapping[str, float], best: int = 0) -> None:
        """Writes a row of held-out scores after update `step`, and shows them. Does nothing without scores. `best` is
        the update with the best scores so far, 0 if the run does not keep its weights."""
        self._scored = step if scores else self._scored
        if self._writes and scores:
            marked = ({"best_update": best} if best else {}) | self._cost()
            self._write({"step": step, **{f"heldout/{name}": value for name, value in scores.items()}, **marked})
            shown = (f"{name} {score_text(name, value, '.4g')}" for name, value in scores.items() if name[-3:] != "_se")
            self.note(f"held out after {step:,} updates: {', '.join(shown)}")

    @contextmanager
    def show_activity(self, what: str) -> Iterator[None]:
        """A context in which the progress shows what delays the next update, such as "saving"."""
        before = self._bar.details
        self._bar.show(f"{before}, {what}" if before else what)
        yield
        self._bar.details = before

    def note(self, text: str) -> None:
        """Writes a line to the console and log.txt. Does nothing for an empty line."""
        if self._writes and text:
            line = printable_line(without_secrets(text))
            self._text.write(f"{_now()} {line}")
            self._bar.note(line)

    def state(self) -> dict[str, Any]:
        """Returns the plain values for the checkpoint, and flushes all rows to the disk."""
        self._flush()
        if self._writes:
            self._metrics.sync()
        return {**self._totals, SCORED: self._scored}

    def rewind(self, start: int, state: Mapping[str, Any]) -> None:
        """Called after a roll back to the checkpoint of update `start`, which has this `state`: removes later rows."""
        self._load(self._totals | {SCORED: self._scored} | dict(state))
        self._pending = None
        self._interval.clear()
        self._bar.done, self._bar.details, self._details = start, "", ""
        if self._writes:
            self._metrics.close()
            with self._tolerate_disk_errors():
                truncate(self._run / METRICS, start)

    def _flush(self) -> None:
        step, self._pending = self._pending, None
        if step is None:
            return
        self._totals["skipped"] += step.skipped
        self._interval["updates"] += 1
        self._interval["exchange_seconds"] += step.exchange_seconds[0]
        self._interval["exchange_wait_seconds"] += step.exchange_seconds[1]
        for name in ("imbalance", "sequences", "tokens", "seconds", "wait_seconds"):
            self._interval[name] += getattr(step, name)

    def _row(self, step: Step) -> dict[str, Any]:
        sums, peak = self._interval, self.peak_flops
        seconds = max(sums["seconds"], 1e-9)
        between = ("imbalance", "exchange_seconds", "exchange_wait_seconds") if self._world.size > 1 else ()
        return {
            "step": step.index,
            "time": round(time.time(), 3),
            **self._totals,
            "loss": step.loss,
            **{f"loss/{name}": value for name, value in step.losses.items()},
            "lr": step.lr,
            "grad_norm": step.grad_norm,
            "sequences_per_second": sums["sequences"] / seconds,
            "tokens_per_second": sums["tokens"] / seconds,
            "utilisation": sums["flops"] / seconds / peak if peak else None,
            CEILING: round(peak / 1e9, 1) if peak else None,
            "wait_share": min(1.0, sums["wait_seconds"] / seconds),
            "memory_mb": peak_megabytes(self._world.device),
            **{name: round(sums[name] / max(1, sums["updates"]), 5) for name in between},
            "checkpoint_pause_seconds": round(sums["pause_seconds"], 4),
            **self._measure(),
            **self._cost(),
        }

    def _cost(self) -> dict[str, float]:
        """Returns the cost of the run so far, since its first log was opened; empty without a price."""
        cost = self._paid + self._rate * (time.monotonic() - self._began)
        return {"cost": round(cost, 6)} if self._rate else {}

    def _write(self, row: dict[str, Any]) -> None:
        if self._identity is not None and identity(self._run) != self._identity:
            raise MachineError(explain_removal(self._run))
        self._metrics.write(json_text(row))
        self._track(lambda tracker: tracker.row(row))

    def _track(self, call: Callable[[Tracker], None]) -> None:
        """Calls each tracker; one that fails gets no further call, and a warning is shown."""
        for name, tracker in [*self._trackers.items()]:
            try:
                call(tracker)
            except Exception as error:
                del self._trackers[name]
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self.note(f"warning: the tracker {name} gets no further rows: {reason}. The run continues.")

    @contextmanager
    def _tolerate_disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._warn_once(f"{error.filename or self._run} cannot be written: {error.strerror}")

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            self._bar.note(f"warning: {text}. The run continues, and its log may have gaps.")


class _Records(logging.Handler):
    """Writes the records of the loggers under "lambert" to log.txt and the console."""

    def __init__(self, log: RunLog) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        prefix = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        self._log.note(prefix + record.getMessage())


def _details(row: Mapping[str, Any]) -> str:
    waiting = f", waiting for data {row['wait_share']:.0%}" if row["wait_share"] >= _WAIT_SHOWN else ""
    cost = f", cost {row['cost']:,.2f}" if "cost" in row else ""
    return f"loss {row['loss']:.4f}, lr {row['lr']:.2e}, {row['tokens_per_second']:,.0f} tokens/s{waiting}{cost}"


def append(run: Path, text: str) -> None:
    """Writes a line to log.txt of a run whose RunLog is closed. Does nothing if the disk refuses the line."""
    file = AppendOnlyFile(run / LOG, lambda problem: None)
    file.write(f"{_now()} {printable_line(without_secrets(text))}")
    file.close()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
