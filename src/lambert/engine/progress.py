"""Progress on the console: a live bar with the time left on a terminal, a plain line at intervals elsewhere."""

import contextlib
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from lambert.core.errors import printable_line

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

PLAIN_SECONDS = 10.0
"""Interval between two plain lines."""
TASK_SHARE = 0.1
"""Share of the time that a task has taken, after which `update` prints its next plain line: long tasks print few."""
_WIDE = 100
"""Columns of a terminal from which the bar is long."""
COUNTS = ("examples", "words", "questions", "queries", "texts", "update")
"""Endings of the names of scores that are counts."""


class progress:  # noqa: N801 - reads as a verb: `with progress(total, "tokenize") as bar:`
    """A context that shows the progress of a task and the time left, on stderr.

    Args:
        total: Units of work in all; None if unknown.
        description: Name of the task.
        unit: Name of the unit of work.
        quiet: Show nothing.
        seconds: Interval between two plain lines.
        done: Units that were done before.
        measured: Units to be done now before the time left is shown.
        summary: Without a terminal, print a last line at the end.
    """

    def __init__(
        self,
        total: float | None,
        description: str,
        *,
        unit: str = "",
        quiet: bool = False,
        seconds: float = PLAIN_SECONDS,
        done: float = 0,
        measured: float = 0,
        summary: bool = True,
    ) -> None:
        self.total, self.description, self.unit = total, description, unit
        self.quiet = quiet or sys.stderr is None  # which Python sets where the stream is closed
        self.done, self._before, self._seconds, self._summary = done, done, seconds, summary
        self.details, self._measured = "", measured
        self._interval, self._paced = seconds, False
        self._bar: Bar | None = None
        self._bar_width = 0

    def __enter__(self) -> Self:
        self._began = self._spoke = time.monotonic()
        if not self.quiet and sys.stderr.isatty():
            self._bar = self._live()
            self._bar.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self._end_task()
        if self._bar is not None:
            with contextlib.suppress(OSError):  # the terminal was closed
                self._refresh()
                self._bar.stop()
        elif self._summary and not self.quiet and kind is None:
            aside(f"{self._plain()}, done in {format_duration(time.monotonic() - self._began)}")

    def update(self, description: str, done: float, total: float) -> None:
        """Shows the work done, the total and the mean speed of a task, which may be another one than before. When a
        task has taken some time, a line about it remains."""
        now = time.monotonic()
        if description != self.description:
            self._end_task()
            self.description, self._began, self._before, self.details = description, now, done, ""
            if self._bar is not None:
                self._bar.reset(self._bar.task_ids[0], total=None)
        self.done, self.total = done, total
        self._interval = max(self._seconds, TASK_SHARE * (now - self._began))
        self._paced = True
        self.show(self._speed(now))

    def _speed(self, now: float) -> str:
        made, seconds = self.done - self._before, now - self._began
        return f"{made / seconds:,.1f} {self.unit}/s" if made > 0 and seconds > 0 else ""

    def _end_task(self) -> None:
        """Leaves a line about a task that `update` has shown, if it took some time."""
        now = time.monotonic()
        speed = self._speed(now)
        if self._paced and speed and now - self._began >= (1.0 if self._bar is not None else self._seconds):
            made = f"{self.done - self._before:,.0f} {self.unit}"
            self.note(f"{self.description}: {made} in {format_duration(now - self._began)}, {speed}")
            self._spoke = now
        self._paced = False

    def advance(self, count: float = 1, details: str = "") -> None:
        """Adds `count` units to the work done, and shows `details` (current numbers) beside the bar."""
        self.done += count
        self.show(details)

    def show(self, details: str = "") -> None:
        """Shows `details` instead of the former details."""
        self.details = details or self.details
        if self._bar is not None:
            self._refresh()
        elif not self.quiet and time.monotonic() - self._spoke >= self._interval:
            self._spoke = time.monotonic()
            left = self.seconds_left
            after = f", {format_duration(left)} left" if left is not None else ""
            aside(f"{self._plain()}{after}")

    def note(self, line: str) -> None:
        """Prints a line above the bar."""
        if self._bar is not None:
            self._bar.console.print(printable_line(line), markup=False, highlight=False)
        elif not self.quiet:
            aside(line)

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at the mean pace so far; None if unknown."""
        made = self.done - self._before
        if self.total is None or made <= 0 or made < self._measured:
            return None
        return max(0.0, self.total - self.done) * (time.monotonic() - self._began) / made

    def _plain(self) -> str:
        of = f"/{self.total:,.0f} ({self.done / self.total:.0%})" if self.total else ""
        unit, details = f" {self.unit}" if self.unit else "", f", {self.details}" if self.details else ""
        return f"{self.description}: {self.done:,.0f}{of}{unit}{details}"

    def _live(self) -> "Bar":
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        console, whole = Console(stderr=True), Column(no_wrap=True)
        self._bar_width = 28 if console.width >= _WIDE else 8
        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None if self.total is None else self._bar_width),
            MofNCompleteColumn(table_column=whole),
            TextColumn("{task.fields[unit]}", markup=False),
            TimeElapsedColumn(table_column=whole),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.fields[details]}", markup=False),
        ]
        bar = Progress(*columns, console=console, refresh_per_second=4)
        total = None if self.total is None else int(self.total)
        bar.add_task(
            printable_line(self.description), total=total, completed=int(self.done), unit=self.unit, left="", details=""
        )
        return bar

    def _refresh(self) -> None:
        if self._bar is not None:
            left = self.seconds_left
            shown = "" if left is None else f"{format_duration(left)} left"
            self._bar.update(
                self._bar.task_ids[0], description=printable_line(self.description), completed=int(self.done),
                total=None if self.total is None else int(self.total), left=shown,
                details=self._fit_details(printable_line(self.details), shown),
            )  # fmt: skip

    def _fit_details(self, details: str, left: str) -> str:
        """Returns the first of the comma-separated details that fit into the terminal beside the rest."""
        assert self._bar is not None
        if self.total is None:
            return details
        used = len(self.description) + self._bar_width + 2 * len(f"{self.total:.0f}") + 1 + len(self.unit) + len(left)
        room = self._bar.console.width - used - len("0:00:00") - 6
        kept = details.split(", ")
        while len(kept) > 1 and len(", ".join(kept)) > room:
            kept.pop()
        return ", ".join(kept)


def in_notebook() -> bool:
    """Returns whether a kernel of IPython runs this process, as in Jupyter."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def aside(line: str) -> None:
    """Prints a line on stderr."""
    with contextlib.suppress(OSError):  # a closed pipe or a full disk behind stderr must not stop the task
        print(printable_line(line), file=sys.stderr, flush=True)


def format_duration(seconds: float) -> str:
    """Returns a duration as text: 42 s, 3 min 5 s, 2 h 7 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def score_text(name: str, value: float, form: str = ".4f") -> str:
    """Returns a score as text: a count as a whole number, any other score in the format `form`."""
    return f"{value:,.0f}" if name.endswith(COUNTS) else f"{value:{form}}"


def format_scores(scores: Mapping[str, float]) -> dict[str, str]:
    """Returns scores as text by name, each with ± its standard error, the score NAME_se, if there is one."""
    errors = {name: f"{name}_se" for name in scores if f"{name}_se" in scores}
    return {
        name: score_text(name, value) + (f" ± {scores[errors[name]]:.4f}" if name in errors else "")
        for name, value in scores.items()
        if name not in errors.values()
    }
