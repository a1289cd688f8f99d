"""`lambert prepare`: converts raw text to a tokenizer and token shards."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from lambert.corpus.config import PrepareConfig
from lambert.corpus.pipeline import prepare
from lambert.engine.signals import START_AGAIN, graceful_stop
from lambert.runs.result import Result, Say, silent

__all__ = ["PrepareConfig", "run"]

INTERVAL = 10.0  # seconds between lines of progress if the output is not a terminal


def run(config: PrepareConfig, say: Say = silent) -> Result:
    """Prepares the corpus and reports what was kept and dropped. On a terminal it shows progress.

    Raises SavedAndStopped after a signal.
    """
    with graceful_stop(" before the end; no corpus was written", START_AGAIN):
        _prepare(config, say)
    return Result(config.out)


def _prepare(config: PrepareConfig, say: Say) -> None:
    console = Console(quiet=say is silent)
    started = time.monotonic()
    notes: list[str] = []
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("reading", total=None)
        shown = started

        def progress(done: int, total: int, note: str) -> None:
            nonlocal shown
            if note not in notes:
                notes.append(note)
            bar.update(task, completed=done, total=total, description=note)
            if not console.is_terminal and time.monotonic() - shown >= INTERVAL:
                shown = time.monotonic()
                say(f"{note}: {done / max(total, 1):.0%} of {total / 1e6:.0f} MB")

        manifest = prepare(config, progress)
    if "already prepared" in notes:
        say(f"already prepared: {config.out}")
    for line in summary(manifest):
        say(line)
    say(f"corpus  {config.out}  ({time.monotonic() - started:.1f} s)")


def summary(manifest: dict[str, Any]) -> list[str]:
    """Returns a summary of a manifest in a few lines."""
    documents = manifest["documents"]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in documents["dropped"].items() if count) or "none"
    size = sum(entry["bytes"] for entry in manifest["inputs"])
    passed = manifest["files_passed_over"]["count"]
    lines = [
        f"files      {len(manifest['inputs']):,} ({size / 1e6:,.1f} MB)"
        + (f", {passed:,} of another kind" if passed else ""),
        f"documents  {documents['kept']:,} kept of {documents['read']:,}; dropped: {dropped}",
    ]
    lines += [f"  unreadable: {named}" for named in documents["unreadable"][:3]]
    if manifest["characters_removed"]:
        lines.append(f"characters {manifest['characters_removed']:,} NUL characters removed")
    for name, split in manifest["splits"].items():
        if not split["documents"]:
            lines.append(f"{name:<10} no documents")
            continue
        lines.append(
            f"{name:<10} {split['documents']:,} documents, {split['sentences']:,} sentences, "
            f"{split['tokens']:,} tokens, {split['unknown_rate']:.2%} [UNK], "
            f"unigram entropy {split['unigram_entropy']:.2f} nats"
        )
    lines.append(f"vocabulary {manifest['vocabulary']:,} pieces")
    return lines + warnings(manifest)


def warnings(manifest: dict[str, Any]) -> list[str]:
    """Returns warnings about results that the user probably did not intend, with what to do."""
    found, kept = [], manifest["documents"]["kept"]
    settings, splits = manifest["settings"], manifest["splits"]
    if kept == 1:
        found.append(
            "warning: the corpus is one document. Nothing is held out, and next-sentence pairs need two documents. If "
            "the file contains several documents, use --documents blank-line or --documents line"
        )
    elif settings["heldout"] and not splits["heldout"]["documents"]:
        found.append("warning: no document is held out, so pre-training has no held-out scores")
    return found
