"""Divides the input files of `prepare` into slices, in several processes, and keeps the result."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from lambert.core.files import make_folder, read_file, replace_files
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.disk import disk_errors
from lambert.wings.corpus.plan import Progress, digest
from lambert.wings.corpus.reading.readers import Layout
from lambert.wings.corpus.reading.slices import WHOLE, Slice, divide
from lambert.wings.corpus.units import is_small
from lambert.wings.corpus.workers import run


class Divide:
    """Divides an input file into slices."""

    def __init__(self, layout: Layout, kind: str) -> None:
        self._layout, self._kind = layout, kind

    def __call__(self, source: str) -> list[Slice]:
        return divide(Path(source), self._layout, self._kind)


def divided(
    config: PrepareConfig, inputs: Sequence[Mapping[str, Any]], version: int, workers: int, progress: Progress
) -> list[list[Slice]]:
    """Returns the slices of each input file. They are stored in the folder of the step `extract`, because finding them
    may require reading the whole file."""
    folder = config.work_folder / "extract"
    layout = config.layout
    found: dict[str, list[Slice]] = {}
    paths: dict[str, Path] = {}
    with disk_errors(folder):
        make_folder(folder)
        for entry in inputs:
            if is_small(entry["bytes"]):
                found[entry["file"]] = [WHOLE]
                continue
            causes = [version, asdict(layout), config.format, entry["file"], entry["sha256"]]
            paths[entry["file"]] = path = folder / f"slices-{digest(causes)[:16]}.json"
            with suppress(OSError, ValueError, TypeError, RecursionError):
                kept = json.loads(read_file(path))
                if kept["hash"] == digest(kept["slices"]):
                    found[entry["file"]] = [Slice(*values) for values in kept["slices"]]
        missing = [entry["file"] for entry in inputs if entry["file"] not in found]
        sizes = {entry["file"]: int(entry["bytes"]) for entry in inputs}
        done, total = 0, sum(sizes[source] for source in missing)
        for source, slices in run(missing, workers, Divide, (layout, config.format)):
            found[source] = slices
            done += sizes[source]
            progress(done, total, "dividing")
            if len(slices) == 1:
                continue
            values = [astuple(part) for part in slices]
            kept = json.dumps({"slices": values, "hash": digest(values)})
            replace_files({paths[source]: kept.encode()})
        kept_paths = set(paths.values())
        for path in folder.glob("slices-*.json"):
            if path not in kept_paths and "extract" in config.stages:
                path.unlink()
    return [found[entry["file"]] for entry in inputs]
