"""Units, which the steps of `prepare` turn into parts in any process: a slice of a large input file, or several small
input files."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from lambert.core.files import make_folder, read_file, replace_files
from lambert.text.streams import EXPANSION, inner_suffix
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.disk import digest, disk_errors
from lambert.wings.corpus.reading.readers import Layout
from lambert.wings.corpus.reading.slices import WHOLE, Slice, divide
from lambert.wings.corpus.versions import list_reader_versions
from lambert.wings.corpus.workers import Target, run

SMALL = 1 << 20
"""Input files with fewer bytes are grouped (our choice)."""
GROUP = 8 << 20
"""Mean bytes of text of a unit of small files; the maximum is twice this (our choice: large beside the cost of a part,
and quick to make again when one of its files changes)."""
OPENING = 4096
"""Bytes that are added to the size of each file, because opening it takes as long as reading this much (our choice)."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Documents of an input file."""

    source: str
    """The input file."""
    part: Slice
    """Which of its documents."""
    bytes: int
    """Bytes of the input file for these documents, approximately."""
    stamp: tuple[int, int, int] | None
    """Inode, size and modification time of the input file when it was hashed."""
    sha256: str
    """SHA-256 of the input file."""

    @property
    def text_bytes(self) -> float:
        """Estimated bytes of text."""
        return self.bytes * EXPANSION.get(Path(self.source).suffix.lower(), 1.0)


@dataclass(frozen=True, slots=True)
class Unit:
    """The input of a step that becomes one part."""

    extents: tuple[Extent, ...]
    """The documents in the order of the corpus, possibly of several small files."""
    bytes: int
    """Sum of the bytes of `extents`."""
    key: str
    """Hash of everything that determines the content of the part; before the first step, of its input files."""
    path: Path = Path()
    """The part of the step before."""
    number: int = 0
    """Number of the part, in the order of the corpus."""

    @property
    def source(self) -> str:
        """Name of the unit in messages."""
        more = f" and {len(self.extents) - 1:,} more" if len(self.extents) > 1 else ""
        return f"{self.extents[0].source}{more}"

    def after(self, step: str, version: int, settings: Mapping[str, Any]) -> "Unit":
        """Returns the unit with the key of its part of a step."""
        return replace(self, key=digest([step, version, settings, self.key])[:16])


def is_small(size: int) -> bool:
    """Returns whether an input file of `size` bytes is grouped with other small files."""
    return size < SMALL


def make_units(
    inputs: Sequence[Mapping[str, Any]], stamps: Sequence[Any], slices: Sequence[Sequence[Slice]],
    shares: Sequence[float], kind: str = "auto",
) -> list[Unit]:  # fmt: skip
    """Returns the units of all input files, in the order of the corpus.

    Consecutive small files form a unit. The hash of a file decides whether the unit ends with it; without such a file,
    its size does. So adding, changing or removing a file affects its own unit and seldom another one.

    Args:
        inputs: `file`, `bytes` and `sha256` of each input file.
        stamps: `HashedFile.stamp` of each when it was hashed.
        slices: The slices of each.
        shares: How often the documents of each are used; the same for all files of a unit.
        kind: Name of the reader, or "auto".
    """
    found: list[list[Extent]] = []
    held, before = 0.0, 0.0
    for entry, stamp, parts, share in zip(inputs, stamps, slices, shares, strict=True):
        source, size, sha256 = str(entry["file"]), int(entry["bytes"]), str(entry["sha256"])
        extents = [Extent(source, part, size // len(parts), stamp, sha256) for part in parts]
        if not is_small(size):
            found += [[extent] for extent in extents]
            held = 0.0
            continue
        if not held or share != before:
            found.append([])
            held, before = 0.0, share
        weight = extents[0].text_bytes + OPENING
        found[-1] += extents
        held += weight
        drawn = int(digest([source, sha256])[:16], 16) / 2**64
        if held >= 2 * GROUP or drawn < weight / GROUP:
            held = 0.0
    return [
        Unit(
            tuple(extents),
            sum(extent.bytes for extent in extents),
            digest(
                [[extent.source, astuple(extent.part), extent.sha256, *_versions(extent, kind)] for extent in extents]
            ),
            number=number,
        )
        for number, extents in enumerate(found)
    ]


def _versions(extent: Extent, kind: str) -> tuple[str, ...]:
    return list_reader_versions(kind, inner_suffix(Path(extent.source)))


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of the command."""

    step: str
    folder: Path
    target: Target
    """Makes the files of a unit and returns their record."""
    arguments: tuple[Any, ...]
    settings: Mapping[str, Any]
    """Everything besides its input that determines the content of a part."""
    complete: Callable[[Any], dict[str, Any] | None]
    """Returns the record of a unit if its files are unchanged since they were written, otherwise None."""


Units = Sequence[Any]
Progress = Callable[[int, int, str], None]
"""Called with the bytes done, the total bytes and the name of the current step."""
Make = Callable[[Stage, Units, int, Callable[[Any, float], None] | None], Iterable[tuple[Any, dict[str, Any]]]]
"""Makes the files of units of a stage with a number of processes, and may tell which share of a unit is done. Returns
each unit with its record."""


def make_here(
    stage: Stage, units: Units, workers: int, tell: Callable[[Any, float], None] | None
) -> Iterable[tuple[Any, dict[str, Any]]]:
    """Makes the files in processes of this machine."""
    return run(units, workers, stage.target, stage.arguments, waiting=len(units), told=tell)


class Divide:
    """Divides an input file into slices."""

    def __init__(self, layout: Layout, kind: str) -> None:
        self._layout, self._kind = layout, kind

    def __call__(self, source: str) -> list[Slice]:
        return divide(Path(source), self._layout, self._kind)


def divide_inputs(
    config: PrepareConfig, inputs: Sequence[Mapping[str, Any]], version: int, workers: int, progress: Progress
) -> list[list[Slice]]:
    """Divides the input files, in several processes, and returns the slices of each. They are stored in the folder of
    the step `extract`, because finding them may require reading the whole file."""
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
