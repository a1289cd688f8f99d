"""The parts of a report about training: charts, final numbers, differing settings, advice."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from lambert.engine.progress import COUNTS, format_duration, score_text
from lambert.verbs.report.cells import cell, side_by_side, words
from lambert.verbs.report.curves import Chart, Line
from lambert.verbs.report.folders import RunContents, is_number, is_rate
from lambert.verbs.report.ranks import exchange_shares

UNLEARNT = ("warning: the held-out masked-LM loss is ", "the masked-LM loss has been near the unigram entropy")
"""Beginnings of the lines of log.txt about a run that learnt no more than the frequencies of the vocabulary's pieces;
see `runs.log`."""
TRUST = "Trust ratio of LAMB"
WAIT_IS_HIGH = 0.1
"""Share of the time spent waiting for data from which the page gives advice."""


def advice(run: RunContents) -> list[str]:
    """Returns advice that follows from the curves and from the warnings in log.txt, one sentence each."""
    unlearnt = [text.removeprefix("warning: ") for _, text in run.log if text.startswith(UNLEARNT)]
    sentences = [f"{run.name}: {text}" for text in unlearnt[-1:]]
    waits = [share for _, share in run.series("wait_share")][1:]  # the first interval starts with an empty queue
    if waits and fmean(waits) >= WAIT_IS_HIGH:
        sentences.append(
            f"{run.name}: {fmean(waits):.0%} of the time was spent waiting for data. Keep a core free for the loader, "
            "or put the corpus on a faster disk."
        )
    skipped, updates = run.last("skipped") or 0.0, run.updates
    if skipped > 0.01 * updates:
        sentences.append(
            f"{run.name}: {skipped:,.0f} of {updates:,} updates were skipped for a non-finite gradient. Try bfloat16."
        )
    missing = [row["step"] for row in run.rows if "loss" in row and not is_number(row["loss"])]
    if missing:
        sentences.append(
            f"{run.name}: {len(missing)} of {sum('loss' in row for row in run.rows)} logged losses are not finite, the "
            f"first after {missing[0]:,} updates. The curves leave them out, and the final numbers are those of "
            "earlier updates."
        )
    for key in _keys([run], "heldout/"):
        losses = run.series(key)
        if f"loss/{key.removeprefix('heldout/')}" not in _keys([run], "loss/") or len(losses) < 3:
            continue
        at, best = min(losses, key=lambda point: point[1])
        if losses[-1][1] > 1.02 * best:
            sentences.append(
                f"{run.name}: the held-out loss {key.removeprefix('heldout/')} was lowest, {best:.4g}, after {at:,} "
                f"updates and is {losses[-1][1]:.4g} at the end: the model overfits. Train for fewer updates, or "
                "on more text."
            )
    return sentences


def mismatches(runs: Sequence[RunContents]) -> list[str]:
    """Returns a sentence if the runs learn different tasks: losses and scores of one name are then not comparable."""
    tasks = {run.name: str(run.config.get("task.name", "pre-training")) for run in runs if run.config}
    if len(set(tasks.values())) < 2:
        return []
    listed = ", ".join(f"{name} {task}" for name, task in tasks.items())
    return [f"The runs learn different tasks ({listed}): losses and scores of the same name are not comparable."]


def charts(runs: Sequence[RunContents], starts: Sequence[int]) -> list[Chart]:
    """Returns the charts with two or more points of a run; the updates of run r are counted from starts[r]."""

    def lines(key: str, held_out: bool = False) -> list[Line]:
        found = (
            Line(r, run.series(key, start), held_out) for r, (run, start) in enumerate(zip(runs, starts, strict=True))
        )
        return [line for line in found if line.points]

    def trust(group: str) -> list[Line]:
        """Medians over the tensors, with the range from the smallest to the largest."""
        keys = [f"trust/{group}_{figure}" for figure in ("median", "min", "max")]
        series = [[run.series(key, start) for key in keys] for run, start in zip(runs, starts, strict=True)]
        return [Line(r, points, ends=(low, high)) for r, (points, low, high) in enumerate(series) if points]

    waits = (
        Line(r, [(start + step, wait) for step, _, wait in exchange_shares(run)])
        for r, (run, start) in enumerate(zip(runs, starts, strict=True))
    )
    objectives = [key.removeprefix("loss/") for key in _keys(runs, "loss/")]
    out = [
        Chart(f"Loss, {name}", lines(f"loss/{name}") + lines(f"heldout/{name}", held_out=True)) for name in objectives
    ] or [Chart("Loss", lines("loss"))]
    out += [
        Chart(f"Held out, {words(key)}", lines(key, held_out=True))
        for key in _scores(runs)
        if key.removeprefix("heldout/") not in objectives and not key.endswith(COUNTS)
    ]
    out += [
        Chart("Learning rate", lines("lr"), ".3g", noisy=False),
        Chart("Gradient norm, before clipping", lines("grad_norm"), ".3g"),
        *(Chart(f"{TRUST}, {group}", trust(group), ".3g") for group in ("embeddings", "blocks", "heads")),
        Chart("Real tokens per second", lines("tokens_per_second"), ",.0f", from_zero=True),
        Chart("Time spent waiting for data", lines("wait_share"), ".1%", from_zero=True),
        Chart("Share of an update spent waiting for gradients", [w for w in waits if w.points], ".1%", from_zero=True),
        Chart("Share of the device's measured ceiling", lines("utilisation"), ".1%", from_zero=True),
    ]
    return [chart for chart in out if any(len(line.points) > 1 for line in chart.lines)]


def final_numbers(runs: Sequence[RunContents]) -> list[tuple[str, list[str]]]:
    """Returns the rows of the table of results: a label and a cell for each run."""

    def row(label: str, key: str, form: str) -> tuple[str, list[str]]:
        values = [run.last(key) for run in runs]
        return label, ["" if value is None else format(value, form) for value in values]

    rows = [
        ("Updates", [f"{run.updates:,}" for run in runs]),
        row("Sequences", "sequences", ",.0f"),
        row("Real tokens", "tokens", ",.0f"),
        ("Training time", [format_duration(seconds) if (seconds := _seconds(run)) else "" for run in runs]),
        *([row("Loss", "loss", ".4f")] if any(len(_keys([run], "loss/")) != 1 for run in runs) else []),
        *(row(f"Loss, {words(key)}", key, ".4f") for key in _keys(runs, "loss/")),
        *((f"Held out, {words(key)}", [_score(run, key) for run in runs]) for key in _scores(runs)),
        ("Real tokens per second, mean", [_mean(run, "tokens_per_second", ",.0f") for run in runs]),
        ("Sequences per second, mean", [_mean(run, "sequences_per_second", ",.1f") for run in runs]),
        ("Share of the device's ceiling, mean", [_mean(run, "utilisation", ".1%") for run in runs]),
        row("The ceiling, GFLOP/s", "ceiling_gflops", ",.0f"),
        ("Waiting for data, mean", [_mean(run, "wait_share", ".1%") for run in runs]),
        row("Peak memory, MB", "memory_mb", ",.0f"),
        row("Updates skipped", "skipped", ",.0f"),
        row("Cost so far", "cost", ",.2f"),
    ]
    shown = {name for key in _keys(runs, "heldout/") for name in (key, key.removeprefix("heldout/"))}
    rows += [pair for pair in side_by_side([_with_errors(run.scores) for run in runs]) if pair[0] not in shown]
    return [(label, cells) for label, cells in rows if any(cells)]


def differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Returns the settings that differ between the runs."""
    return [(key, cells) for key, cells in side_by_side(configs) if len(set(cells)) > 1]


def endings(chart: Chart, runs: int) -> list[tuple[int, str, str]]:
    """Returns (run, last value in training, last held-out value) for the legend of a chart."""
    ends = {(line.run, line.held_out): format(line.points[-1][1], chart.form) for line in chart.lines}
    both = ((number, ends.get((number, False), ""), ends.get((number, True), "")) for number in range(runs))
    return [ending for ending in both if ending[1] or ending[2]]


def _scores(runs: Sequence[RunContents]) -> list[str]:
    """Returns the keys of held-out scores, without those of their standard errors."""
    keys = _keys(runs, "heldout/")
    return [key for key in keys if key.removesuffix("_se") == key or key.removesuffix("_se") not in keys]


def _score(run: RunContents, key: str) -> str:
    """Returns the last score with its standard error, and with train.keep_best that of the published weights."""
    name = key.removeprefix("heldout/")
    if "best_update" in run.scores and name in run.scores:
        value, error = run.scores[name], run.scores.get(f"{name}_se")
    else:
        value, error = run.last(key), run.last(f"{key}_se")
    return "" if value is None else score_text(key, value) + ("" if error is None else f" ± {error:.4f}")


def _with_errors(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the scores with their standard errors in the same cell."""
    joined = {name: f"{cell(scores[name])} ± {cell(scores[f'{name}_se'])}" for name in scores if f"{name}_se" in scores}
    errors = {f"{name}_se" for name in joined}
    return {name: joined.get(name, value) for name, value in scores.items() if name not in errors}


def _keys(runs: Iterable[RunContents], prefix: str) -> list[str]:
    """Returns the keys with this prefix and at least one number, in order of their first appearance."""
    return list(
        dict.fromkeys(
            k for run in runs for row in run.rows for k, v in row.items() if k.startswith(prefix) and is_number(v)
        )
    )


def _seconds(run: RunContents) -> float:
    """Returns the time spent in updates, from counts and rates, without pauses between continuations."""
    rows = [row for row in run.rows if is_number(row.get("sequences")) and is_rate(row.get("sequences_per_second"))]
    counts = [0, *(row["sequences"] for row in rows)]
    return math.fsum((b - a) / row["sequences_per_second"] for (a, b), row in zip(pairwise(counts), rows, strict=True))


def _mean(run: RunContents, key: str, form: str) -> str:
    values = [value for _, value in run.series(key)]
    return format(fmean(values), form) if values else ""
