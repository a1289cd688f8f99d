"""Progress on the console: a live bar with the time left on a terminal, now and then a plain line elsewhere."""

import contextlib
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

PLAIN_SECONDS = 10.0
"""Between two plain lines."""


class progress:  # noqa: N801 - reads as a verb: `with progress(total, "tokenize") as bar:`
    """A context that shows how far `description` is and when it will be done. Goes to stderr; `quiet` shows nothing.

    `total` is in `unit`s, None where it is not known; `seconds` lie between two plain lines; `done` were there before.
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
    ) -> None:
        self.total, self.description, self.unit, self.quiet = total, description, unit, quiet
        self.done, self._before, self._seconds = done, done, seconds
        self._details = ""
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        self._began = self._spoke = time.monotonic()
        if not self.quiet and sys.stderr.isatty():
            self._bar = self._live()
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._refresh()
            self._bar.stop()
        elif not self.quiet and kind is None:
            _say(f"{self._plain()}, done in {duration(time.monotonic() - self._began)}")

    def advance(self, count: float = 1, details: str = "") -> None:
        """`count` more are done; `details` (numbers of this moment) stand beside the bar."""
        self.done += count
        self.show(details)

    def show(self, details: str = "") -> None:
        """Shows `details` in place of the former ones."""
        self._details = details or self._details
        if self._bar is not None:
            self._refresh()
        elif not self.quiet and time.monotonic() - self._spoke >= self._seconds:
            self._spoke = time.monotonic()
            left = self.seconds_left
            after = f", {duration(left)} left" if left is not None else ""
            _say(f"{self._plain()}{after}")

    def note(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        elif not self.quiet:
            _say(text)

    @property
    def seconds_left(self) -> float | None:
        """At the mean pace so far; None where nothing is known."""
        made = self.done - self._before
        if self.total is None or made <= 0:
            return None
        return max(0.0, self.total - self.done) * (time.monotonic() - self._began) / made

    def _plain(self) -> str:
        of = f"/{self.total:,.0f} ({self.done / self.total:.0%})" if self.total else ""
        unit, details = f" {self.unit}" if self.unit else "", f", {self._details}" if self._details else ""
        return f"{self.description}: {self.done:,.0f}{of}{unit}{details}"

    def _live(self) -> "Bar":
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None if self.total is None else 28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.fields[details]}", markup=False),
        ]
        bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=4)
        total = None if self.total is None else int(self.total)
        bar.add_task(self.description, total=total, completed=int(self.done), unit=self.unit, left="", details="")
        return bar

    def _refresh(self) -> None:
        if self._bar is not None:
            left = self.seconds_left
            shown = "" if left is None else f"{duration(left)} left"
            self._bar.update(self._bar.task_ids[0], completed=int(self.done), left=shown, details=self._details)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed pipe or a full disk behind stderr is no reason to stop working
        print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 3 min 5 s, 2 h 7 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
