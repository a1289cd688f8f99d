"""The log of a run: metrics.jsonl, log.txt, environment.json, TensorBoard, the console. Only the first rank writes."""

import json
import logging
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch

from lambert.core.errors import MachineError, UsageError
from lambert.core.files import identity, removed_message, replace_files, sync
from lambert.core.world import World
from lambert.engine import environment
from lambert.engine.progress import PLAIN_SECONDS, progress
from lambert.engine.step import Step

METRICS = "metrics.jsonl"

_WAIT_SHOWN = 0.01
"""Share of the time that training waited for data from which the console says so."""


COUNTS = ("examples", "words", "questions")
"""What the names of scores end in that are counts."""


class RunLog:
    """The log of a run of `steps` updates in the folder `run`, continued after update `start`.

    A row of metrics.jsonl has the keys step, time (seconds since 1970), sequences and tokens (since the first update),
    loss, loss/<objective>, lr, grad_norm, skipped (updates, since the first), sequences_per_second, tokens_per_second
    and wait_share (means since the row before), utilisation (share of `peak_flops`, or null), memory_mb (peak) and
    checkpoint_pause_seconds (that saving held training up since the row before). Several ranks add, as means of an
    update, imbalance (tokens of the rank with most of them over their mean), exchange_seconds (gradients were on their
    way) and exchange_wait_seconds (of these, what the backward pass did not hide). A held-out row has step and
    heldout/<name>. A value that is not finite is null.

    On continuation, rows after `start` are dropped and a torn last line is mended; `state` is what `state()` gave then.
    `facts` are added to environment.json. `look` sees each row; a line that it answers with is noted, and the row is
    marked by `plateau`. A disk that refuses is said once, and the run goes on.
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
        tensorboard: bool = False,
        quiet: bool = False,
        description: str = "train",
        seconds: float = PLAIN_SECONDS,
        facts: Mapping[str, Any] | None = None,
        world: World | None = None,
        look: Callable[[Mapping[str, Any]], str] = lambda row: "",
    ) -> None:
        self._world = world or World()
        self._look = look
        self._run, self._start, self._every, self._peak_flops = run, start, every, peak_flops
        self._ended = start >= steps
        self._facts = dict(facts or {})
        self._totals = {"sequences": 0, "tokens": 0, "skipped": 0} | dict(state or {})
        self._interval = _Interval()
        self._pending: Step | None = None
        self._details, self._complained = "", False
        self._identity: tuple[int, int] | None = None
        self._writes = self._world.is_first
        self._bar = progress(
            steps, description, unit="updates", quiet=quiet or not self._writes, seconds=seconds, done=start
        )
        self._board = _board(run, start) if tensorboard and self._writes else None

    def __enter__(self) -> Self:
        self._bar.__enter__()
        if self._writes:
            self._open()
        return self

    def _open(self) -> None:
        self._metrics = _Lines(self._run / METRICS, self._complain)
        self._text = _Lines(self._run / "log.txt", self._complain)
        self._handler = _Records(self)
        logging.getLogger("lambert").addHandler(self._handler)
        self._level = logging.getLogger("lambert").level
        logging.getLogger("lambert").setLevel(logging.INFO)
        with self._surviving():
            self._run.mkdir(parents=True, exist_ok=True)
            self._identity = identity(self._run)
            mend(self._run / METRICS, self._start, ended=self._ended)
            described = json.dumps(environment.describe(self._world) | self._facts, indent=1)
            replace_files({self._run / "environment.json": (described + "\n").encode()})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writes:
            if error is not None:
                self._text.write(f"{_now()} {type(error).__name__}: {error}")
            logging.getLogger("lambert").removeHandler(self._handler)
            logging.getLogger("lambert").setLevel(self._level)
            self._metrics.sync()  # the last scores come after the last checkpoint, and before the model
            self._metrics.close()
            self._text.close()
        if self._board is not None:
            with self._surviving():
                self._board.close()
        self._bar.__exit__(kind, error, trace)

    def step(self, step: Step, flops: float | None = None) -> None:
        """Counts an update, whose model work was `flops`, and writes a row where one is due."""
        self._totals["sequences"] += step.sequences
        self._totals["tokens"] += step.tokens
        # The step before is read instead of this one: the device has just begun with this one.
        if self._pending is not None:
            self._totals["skipped"] += self._pending.skipped
            self._interval.add(self._pending)
        self._pending = step
        self._interval.flops = None if flops is None or self._interval.flops is None else self._interval.flops + flops
        if step.due(self._every):
            self._flush()
            row = self._row(step)
            self._details = _details(row)
            told = self._look(row)
            if self._writes:
                self._write(row | ({"plateau": 1} if told else {}))
            self.say(told)
            self._interval = _Interval()
        self._bar.advance(1, self._details)

    def paused(self, seconds: float) -> None:
        """Counts what a save held training up."""
        self._interval.pause_seconds += seconds

    def scores(self, step: int, scores: Mapping[str, float]) -> None:
        """Writes a row of held-out scores after update `step`, and says them; nothing where there are none."""
        if self._writes and scores:
            self._write({"step": step, **{f"heldout/{name}": value for name, value in scores.items()}})
            shown = (f"{name} {written(name, value, '.4g')}" for name, value in scores.items() if name[-3:] != "_se")
            self.note(f"held out after {step:,} updates: {', '.join(shown)}")

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Within it, the progress says what holds up the next update, such as "saving"."""
        before = self._bar.details
        self._bar.show(f"{before}, {what}" if before else what)
        yield
        self._bar.details = before

    def note(self, text: str) -> None:
        """A line for the console and log.txt."""
        if self._writes:
            self._text.write(f"{_now()} {text}")
            self._bar.note(text)

    def say(self, text: str) -> None:
        """As `note`; nothing where there is nothing to say."""
        if text:
            self.note(text)

    def state(self) -> dict[str, Any]:
        """Plain values for the checkpoint, from which a continued log counts on. All rows are flushed to the disk."""
        self._flush()
        if self._writes:
            self._metrics.sync()
        return dict(self._totals)

    def rewind(self, start: int, state: Mapping[str, Any]) -> None:
        """Forgets what came after update `start`, with the `state` of its checkpoint, after a roll back."""
        self._totals |= dict(state)
        self._pending, self._interval = None, _Interval()
        self._bar.done = start
        if self._writes:
            self._metrics.close()
            with self._surviving():
                mend(self._run / METRICS, start)

    def _flush(self) -> None:
        if self._pending is not None:
            self._totals["skipped"] += self._pending.skipped
            self._interval.add(self._pending)
            self._pending = None

    def _row(self, step: Step) -> dict[str, Any]:
        interval = self._interval
        seconds = max(interval.seconds, 1e-9)
        flops, peak = interval.flops, self._peak_flops
        return {
            "step": step.index,
            "time": round(time.time(), 3),
            **self._totals,
            "loss": step.loss,
            **{f"loss/{name}": value for name, value in step.losses.items()},
            "lr": step.lr,
            "grad_norm": step.grad_norm,
            "sequences_per_second": interval.sequences / seconds,
            "tokens_per_second": interval.tokens / seconds,
            "utilisation": flops / seconds / peak if flops is not None and peak else None,
            "wait_share": min(1.0, interval.wait_seconds / seconds),
            "memory_mb": _memory_mb(self._world.device),
            **(interval.between_ranks() if self._world.size > 1 else {}),
            "checkpoint_pause_seconds": round(interval.pause_seconds, 4),
        }

    def _write(self, row: dict[str, Any]) -> None:
        if self._identity is not None and identity(self._run) != self._identity:
            raise MachineError(removed_message(self._run))
        self._metrics.write(json.dumps({key: _finite(value) for key, value in row.items()}))
        if self._board is not None:
            with self._surviving():
                for key, value in row.items():
                    if key not in ("step", "time") and isinstance(value, int | float):
                        self._board.add_scalar(key, value, row["step"])

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._complain(f"{error.filename or self._run} cannot be written: {error.strerror}")

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            self._bar.note(f"warning: {text}. The run goes on; from here on its log may have gaps.")


class _Interval:
    """Sums over the updates since the last row."""

    def __init__(self) -> None:
        self.sequences = self.tokens = 0
        self.seconds = self.wait_seconds = self.pause_seconds = 0.0
        self.flops: float | None = 0.0
        self.updates = 0
        self.imbalance = self.exchange_seconds = self.exchange_wait_seconds = 0.0

    def add(self, step: Step) -> None:
        self.updates += 1
        self.imbalance += step.imbalance
        self.exchange_seconds += step.exchange_seconds[0]
        self.exchange_wait_seconds += step.exchange_seconds[1]
        self.sequences += step.sequences
        self.tokens += step.tokens
        self.seconds += step.seconds
        self.wait_seconds += step.wait_seconds

    def between_ranks(self) -> dict[str, float]:
        """Means over the updates."""
        names = ("imbalance", "exchange_seconds", "exchange_wait_seconds")
        return {name: round(getattr(self, name) / max(1, self.updates), 5) for name in names}


class _Lines:
    """A text file that lines are added to, each in one write; a full disk is passed on to `complain`, never raised."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        self._path, self._complain, self._torn = path, complain, False
        self._new = True
        self._handle: int | None = None

    def write(self, line: str) -> None:
        data = (("\n" if self._torn else "") + line + "\n").encode()
        try:
            if self._handle is None:
                self._handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            written = os.write(self._handle, data)
        except OSError as error:
            self._complain(f"{self._path} cannot be written: {error.strerror}")
            return
        self._torn = written < len(data)
        if self._torn:
            self._complain(f"{self._path} cannot be written: the disk is full")

    def sync(self) -> None:
        """Flushes the lines, and the first time the file's name, to the disk."""
        if self._handle is None:
            return
        try:
            os.fsync(self._handle)
            if self._new:
                sync(self._path.parent)
                self._new = False
        except OSError as error:
            self._complain(f"{self._path} cannot be written: {error.strerror}")

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class _Records(logging.Handler):
    """Records of the loggers under "lambert", to log.txt and the console."""

    def __init__(self, log: RunLog) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        prefix = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        self._log.note(prefix + record.getMessage())


class _Board(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """As torch's SummaryWriter."""

    def close(self) -> None:
        """Flushes."""


def mend(path: Path, start: int, *, ended: bool = False) -> None:
    """Leaves only the whole rows of `path` up to update `start`: cut off behind them, or written aside and renamed.

    Where the run has `ended` with that update, its held-out scores are left out too: they come after its checkpoint.
    """
    if not path.exists():
        return
    found = path.read_bytes()
    kept = b"".join(line + b"\n" for line in found.splitlines() if _belongs(line, start, ended))
    if found.startswith(kept):
        os.truncate(path, len(kept))
        return
    replace_files({path: kept})


def last_update(path: Path) -> int:
    """The last update that has a row; 0 without any."""
    rows = path.read_bytes().splitlines() if path.is_file() else []
    return max((step for step in map(_step, rows) if step is not None), default=0)


def _step(line: bytes) -> int | None:
    """The update of a row; None where it is torn."""
    try:
        row = json.loads(line)
        return int(row["step"])
    except (ValueError, TypeError, KeyError):
        return None


def _belongs(line: bytes, start: int, ended: bool) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return False
    if not isinstance(row, dict):
        return False
    step = int(row.get("step", start + 1))
    return 0 < start >= step and not (ended and step == start and "loss" not in row)


def _board(run: Path, start: int) -> _Board:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("tensorboard = true needs TensorBoard: pip install 'lambert-bert[tensorboard]'.") from error
    return SummaryWriter(str(run / "tensorboard"), purge_step=start + 1)


def _details(row: Mapping[str, Any]) -> str:
    waiting = f", waiting for data {row['wait_share']:.0%}" if row["wait_share"] >= _WAIT_SHOWN else ""
    return f"loss {row['loss']:.4f}, lr {row['lr']:.2e}, {row['tokens_per_second']:,.0f} tokens/s{waiting}"


def written(name: str, value: float, form: str = ".4f") -> str:
    """A score as text: counts as whole numbers, all else in the given form."""
    return f"{value:,.0f}" if name.endswith(COUNTS) else f"{value:{form}}"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _memory_mb(device: torch.device) -> int:
    """Peak: of the GPU where there is one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 1_000_000
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 1_000_000


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
