"""The parts of a report about the ranks of a run and about its incidents."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from statistics import median
from typing import Any

from lambert.verbs.report.cells import table
from lambert.verbs.report.folders import TIME, RunContents, is_number, is_rate

MOST_INCIDENTS = 40
"""Maximum number of incidents shown per file: half from the start, half from the end."""

WAIT_IS_HIGH = 0.25
"""Share of an update spent waiting for gradients from which the page gives advice."""
IMBALANCE_IS_HIGH = 1.1
"""Ratio of the largest number of tokens of a rank to the mean from which the page gives advice."""

_START = re.compile(r"(\d+) ranks, ([1-9]\d*) a machine .*gradients by (\w+)")
_TIMED = re.compile(r"exchange (\w+) +([\d.]+) s (?:an|per) update, +([\d.]+)x(.*)")
_CONTINUED = "continuing after update"
_STOPPED = "SavedAndStopped: "
_SLOW = re.compile(r"rank \d+ is slow")
_WRONG = re.compile(
    rf"{_CONTINUED}|{_SLOW.pattern}|\d+ of \d+ ranks have no(?:thing| work)|out of memory|"
    rf"warning: (?!the held-out|the run has|\S+ differs)|(?!{_STOPPED})[A-Z]\w+: "
)
"""Matches the lines of log.txt that report incidents. Skipped updates are in incidents.jsonl. A stop that was
asked for is not an incident, and neither is a warning about the whole run."""
_CLASS = re.compile(r"^(Usage|Data|Machine|Diverged)Error: ")


@dataclass(frozen=True, slots=True)
class Event:
    """An incident, or the reaction to one."""

    at: float
    """Seconds since 1970."""
    what: str
    update: int | None
    ranks: str
    sequences: int | None
    """Number of sequences of the update."""


def facts(runs: Sequence[RunContents]) -> list[tuple[str, list[str]]]:
    """Returns the rows of the table of ranks: a label and a cell for each run. None if all runs had one process."""
    if not any(map(_has_ranks, runs)):
        return []
    columns = [_facts(run) if _has_ranks(run) else {"Ranks": "1"} for run in runs]
    labels = dict.fromkeys(label for column in columns for label in column)
    return [(label, [column.get(label, "") for column in columns]) for label in labels]


def timings(runs: Sequence[RunContents]) -> list[dict[str, Any]]:
    """Returns the tables from which exchange.method = "auto" made its last choice."""
    chosen = (run for run in runs if any(_TIMED.fullmatch(text) for _, text in run.log))
    return [_timing_table(run, several=len(runs) > 1) for run in chosen]


def incidents(runs: Sequence[RunContents]) -> dict[str, Any] | None:
    """Returns the table of incidents in order of time, without empty columns."""
    found = [(run.name, event) for run in runs for event in _events(run)]
    if not found:
        return None
    # log.txt has whole seconds, and its lines follow from the incidents of the same second.
    found.sort(key=lambda pair: (int(pair[1].at), pair[1].sequences is None))
    columns = {
        "Time": [_clock(event.at) for _, event in found],
        "RunContents": [name if len(runs) > 1 else "" for name, _ in found],
        "Update": [_format_count(event.update) for _, event in found],
        "What": [event.what for _, event in found],
        "Ranks": [event.ranks for _, event in found],
        "Sequences": [_format_count(event.sequences) for _, event in found],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    return table("Incidents", [*shown], [*zip(*shown.values(), strict=True)])


def advice(run: RunContents) -> list[str]:
    """Returns advice that follows from the measurements of the ranks, one sentence each."""
    sentences = []
    waits = [wait for _, _, wait in exchange_shares(run)]
    if waits and median(waits) >= WAIT_IS_HIGH:
        sentences.append(
            f"{run.name}: {median(waits):.0%} of an update is waiting for gradients. Use a larger train.batch_size, "
            "or an exchange.method of fewer bits if the recipe tolerates it."
        )
    imbalance = [value for _, value in run.series("imbalance")]
    if imbalance and median(imbalance) > IMBALANCE_IS_HIGH:
        sentences.append(
            f"{run.name}: one rank has {median(imbalance):.2f} times the mean number of tokens, and the others wait "
            "for it. Use a smaller train.micro_tokens."
        )
    return sentences


def exchange_shares(run: RunContents) -> list[tuple[int, float, float]]:
    """Returns (update, share of its time in which gradients were exchanged, share in which the rank only waited for
    them) for each row that has both."""
    counted = [row for row in run.rows if is_number(row.get("sequences")) and is_rate(row.get("sequences_per_second"))]
    found = []
    for before, row in pairwise([{"step": 0, "sequences": 0}, *counted]):
        updates, sequences = row["step"] - before["step"], row["sequences"] - before["sequences"]
        keys = ("exchange_seconds", "exchange_wait_seconds")
        if updates > 0 and sequences > 0 and all(is_number(row.get(key)) for key in keys):
            seconds = sequences / updates / row["sequences_per_second"]
            found.append((row["step"], *(row[key] / seconds for key in keys)))
    return found


def _has_ranks(run: RunContents) -> bool:
    """Returns whether the run had several ranks at any time."""
    processes = run.environment.get("processes", 1)
    return any(_starts(run)) or any("imbalance" in row for row in run.rows) or (is_number(processes) and processes > 1)


def _facts(run: RunContents) -> dict[str, str]:
    starts = [*_starts(run)]
    named = sorted({int(match[0].split()[1]) for _, text in run.log if (match := _SLOW.match(text))})
    shares = exchange_shares(run)
    imbalance = [value for _, value in run.series("imbalance")]
    auto = " (auto)" if run.config.get("exchange.method") == "auto" else ""
    found = {
        "Ranks": _then([*(ranks for ranks, _, _ in starts), *_last(run)]),
        "Machines": _then(str(int(ranks) // int(local)) for ranks, local, _ in starts),
        "Gradients by": _then(method + auto for _, _, method in starts),
    }
    if shares:
        ways, waits = zip(*((way, wait) for _, way, wait in shares), strict=True)
        hidden = [1 - wait / way for way, wait in zip(ways, waits, strict=True) if way]
        found["Exchange, share of an update, median"] = f"{median(ways):.1%}"
        if hidden:
            found["Of it overlapped with the backward pass, median"] = f"{max(0.0, median(hidden)):.1%}"
        found["Waiting for gradients, share of an update, median"] = f"{median(waits):.1%}"
    if imbalance:
        found["Largest number of tokens of a rank over the mean"] = (
            f"{median(imbalance):.3f} median, {max(imbalance):.3f} maximum"
        )
    if run.log:
        found["Slow ranks"] = f"rank {', '.join(map(str, named))}" if named else "none"
        continued = sum(text.startswith(_CONTINUED) for _, text in run.log)
        found["Times continued"] = str(max(continued, len(starts) - 1))  # before its first checkpoint a run starts over
    return {label: text for label, text in found.items() if text}


def _last(run: RunContents) -> list[str]:
    """Returns the number of ranks of the last start, which a single process does not log."""
    processes = run.environment.get("processes")
    return [str(processes)] if processes is not None else []


def _timing_table(run: RunContents, *, several: bool) -> dict[str, Any]:
    last: dict[str, list[str]] = {}
    at = ""
    for when, text in run.log:
        if match := _TIMED.fullmatch(text):
            if match[1] in last:  # a new choice
                last = {}
            last[match[1]], at = [match[1], match[2], f"{match[3]} x", match[4].removeprefix(" <- ")], when
    of = f"{run.name}: an" if several else "An"
    caption = f"{of} update by each method, timed on the link at {_clock(_seconds(at))}"
    return table(caption, ["Method", "Seconds", "Times float32", ""], [*last.values()])


def _starts(run: RunContents) -> Iterator[tuple[str, str, str]]:
    """Returns (ranks, ranks per machine, method) of each start with several ranks."""
    return ((match[1], match[2], match[3]) for _, text in run.log if (match := _START.match(text)))


def _events(run: RunContents) -> list[Event]:
    stopped = [False, *(text.startswith(_STOPPED) for _, text in run.log)]
    logged = [
        _parse_line(at, _CLASS.sub("", text))
        for (at, text), after_stop in zip(run.log, stopped, strict=False)
        if _WRONG.match(text) and not (after_stop and text.startswith(_CONTINUED))
    ]
    return _thin(logged, "log.txt") + _thin([_incident(row) for row in run.incidents], "incidents.jsonl")


def _thin(events: list[Event], file: str) -> list[Event]:
    """Returns the first and the last events, and between them the number of those left out."""
    half = MOST_INCIDENTS // 2
    between = events[half:-half]
    if not between:
        return events
    return [*events[:half], Event(between[0].at, f"{len(between):,} more in {file}", None, "", None), *events[-half:]]


def _parse_line(at: str, text: str) -> Event:
    update, ranks = re.search(r"update ([\d,]+)", text), re.search(r"\brank (\d+(?:, \d+)*)", text)
    number = int(update[1].replace(",", "")) if update else None
    return Event(_seconds(at), text, number, ranks[1] if ranks else "", None)


def _incident(row: dict[str, Any]) -> Event:
    where = f", first in {row['parameter']}" if row.get("parameter") else ""
    what = f"{row.get('what')}: {_format_measure('loss', row)}, {_format_measure('grad_norm', row)}{where}"
    ranks, span = (found if isinstance(found := row.get(key), list) else [] for key in ("ranks", "sequences"))
    sequences = span[1] - span[0] + 1 if len(span) == 2 and all(map(is_number, span)) else None
    return Event(float(row["time"]), what, row["step"], ", ".join(map(str, ranks)), sequences)


def _format_measure(key: str, row: dict[str, Any]) -> str:
    name = {"loss": "loss", "grad_norm": "gradient norm"}[key]
    return f"{name} {row[key]:.4g}" if is_number(row.get(key)) else f"{name} not finite"


def _then(values: Iterable[str]) -> str:
    """Joins the values that differ from the previous one."""
    return ", then ".join(value for value, _ in groupby(values))


def _format_count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _seconds(text: str) -> float:
    return datetime.strptime(text, TIME).timestamp()


def _clock(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # outside of the calendar
        return ""
