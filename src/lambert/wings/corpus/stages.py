"""The steps of `prepare` that store documents. Each makes one part from one unit, in any process and in any order.

A part is `part-KEY.parquet` in the folder of its step. KEY is a hash of everything that determines its content, and its
record, `part-KEY.json`, is written after it. A part without a complete record is made again. So a command that was
stopped, or that gets more files, makes only the missing parts.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from lambert.core.contents import HashedFile, sha256
from lambert.core.errors import UsageError, printable_line
from lambert.core.files import atomic_file, make_folder, read_file, remove_all_leftovers
from lambert.core.registry import lookup
from lambert.text.tokenizers.encoding import Encoder
from lambert.text.tokenizers.tokenizer import fingerprint
from lambert.wings.corpus.cleaning import hash_code
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.disk import digest, disk_errors, have_hashes, read_record, write_record
from lambert.wings.corpus.documents import InputFile, add_name, build_change_error, check_bad, select_found
from lambert.wings.corpus.duplicates.deduplication import Lists, deduplicate
from lambert.wings.corpus.duplicates.lists import Drops, apply_drops
from lambert.wings.corpus.filtering import Ledger, apply_filters, list_causes, merge_samples
from lambert.wings.corpus.filtering import build_filters as filters_of
from lambert.wings.corpus.parts import mark_ends, read_part, write_part
from lambert.wings.corpus.reading.pieces import escape_name
from lambert.wings.corpus.reading.readers import KIND, READERS, Layout, Piece
from lambert.wings.corpus.reading.slices import SliceReader
from lambert.wings.corpus.tokens.encoded import encode_part
from lambert.wings.corpus.units import (
    Extent,
    Make,
    Progress,
    Stage,
    Unit,
    divide_inputs,
    is_small,
    make_here,
    make_units,
)
from lambert.wings.corpus.workers import ignore_progress, report_progress

_RECORD = {
    "key": str, "files?": [{"source": str, "documents": int, "unreadable": int}], "sha256": str, "documents": int,
    "unreadable": int, "characters": int, "named": [str],
    "dropped": {"*": int}, "passed_over": {"*": int}, "changed": {"*": int}, "found": {"*": int},
    "samples": {"*": [{"hash": str, "source": str, "place": str, "text": str}]},
}  # fmt: skip
"""The content of a record."""
VERSIONS = {"extract": 7, "clean": 5, "encode": 2}
"""Increase the number of a step when its output changes, so that parts of older versions are made again."""
FileCounts = dict[str, dict[str, int]]
"""For each input file: the numbers of documents that were read, were unreadable, and were dropped by each step."""
_PART = re.compile(r"part-[0-9a-f]{16}\.(parquet|json)")


class Extract:
    """Writes the documents of a unit to a part."""

    def __init__(self, folder: Path, layout: Layout, kind: str) -> None:
        self._folder, self._read = folder, SliceReader(layout, kind)
        self.tell: Callable[[float], None] = ignore_progress

    def __call__(self, unit: Unit) -> dict[str, Any]:
        named: list[str] = []
        passed_over: dict[str, int] = {}
        seen: Counter[str] = Counter()
        more: dict[str, Any] = {"named": named, "passed_over": passed_over, **Ledger().record()}

        def of_file(extent: Extent) -> Iterator[Piece]:
            own = escape_name(extent.source)
            for piece in self._read(Path(extent.source), extent.part):
                if piece.passed_over:
                    passed_over[piece.passed_over] = passed_over.get(piece.passed_over, 0) + 1
                    continue
                if piece.error:
                    add_name(named, printable_line(f"{extent.source}, {piece.place}, {piece.error}"))
                seen.update(piece.found)
                yield piece if len(unit.extents) == 1 else replace(piece, source=own)
            if HashedFile(Path(extent.source), "").stamp() != extent.stamp:
                raise build_change_error(extent.source)

        def pieces() -> Iterator[Piece]:
            yield from chain.from_iterable(mark_ends(of_file(extent)) for extent in unit.extents)
            more["found"] = select_found(seen)

        expected = sum(extent.text_bytes for extent in unit.extents)
        found = report_progress(pieces(), expected, self.tell)
        return _write(self._folder, unit, lambda path: write_part(path, _names(unit), found), more)


class Clean:
    """Writes the documents of a part that no filter drops to another part."""

    def __init__(self, folder: Path, config: PrepareConfig) -> None:
        self._folder, self._filters = folder, filters_of(config.cleaners, config)
        self.tell: Callable[[float], None] = ignore_progress

    def __call__(self, unit: Unit) -> dict[str, Any]:
        ledger = Ledger()
        more: dict[str, Any] = {"named": [], "passed_over": {}}

        def pieces() -> Iterator[Piece]:
            yield from apply_filters(_read_part(unit, self.tell), self._filters, ledger)
            more.update(ledger.record())

        return _write(self._folder, unit, lambda path: write_part(path, _names(unit), pieces()), more)


class Encode:
    """Writes the ids of the documents of a part, without duplicates, to another part."""

    def __init__(self, folder: Path, lists: Lists | None, tokenizer_json: str, language: str, lines: str) -> None:
        self._folder, self._lists, self._encoder = folder, lists, Encoder(tokenizer_json, language, lines)
        self.tell: Callable[[float], None] = ignore_progress

    def __call__(self, unit: Unit) -> dict[str, Any]:
        read = _make_reader(unit, self._lists)
        source = InputFile(_names(unit), unit.bytes, lambda _: read(lambda done: self.tell(done / max(unit.bytes, 1))))
        more = {"passed_over": {}, **Ledger().record()}
        return _write(self._folder, unit, lambda path: encode_part(path, source, self._encoder), more)


def make_parts(
    config: PrepareConfig, inputs: Sequence[Mapping[str, Any]], stamps: Sequence[Any], shares: Sequence[float],
    given: Any, workers: int, progress: Progress, make: Make = make_here,
) -> tuple[dict[str, dict[str, Any]], list[InputFile], FileCounts]:  # fmt: skip
    """Runs the steps before `tokens` that `config.stages` names. Returns the counts of each step; the sources that the
    last of them leaves, in the order of the inputs; and the counts of each input file.

    Args:
        inputs: `file`, `bytes` and `sha256` of each input file.
        stamps: `HashedFile.stamp` of each when it was hashed.
        shares: How often the documents of each are used.
        given: The tokenizer that the command names; None if it is learnt.
        make: Makes the files of the units of a stage, with a number of processes.

    Raises:
        UsageError: A step that is not named has not been run on these inputs.
        DataError: More than a share `config.max_bad` of the documents is unreadable, or an input changed.
        MachineError: The disk refuses a write.
    """
    counts: dict[str, dict[str, Any]] = {}
    slices = divide_inputs(config, inputs, VERSIONS["extract"], workers, progress)
    units = make_units(inputs, stamps, slices, shares, config.format)
    by_file: FileCounts = {}
    files: list[Any] = []

    def run_step(stage: Stage) -> None:
        nonlocal units, files
        units = [unit.after(stage.step, VERSIONS[stage.step], stage.settings) for unit in units]
        records = _run_step(stage, units, config.stages, workers, progress, make)
        counts[stage.step] = _sum_records(records)
        units = [replace(unit, path=_part(stage.folder, unit.key)) for unit in units]
        if stage.step in VERSIONS and stage.step != "encode":
            files = [record["files"] for record in records]
            _count_files(by_file, stage.step, files)
        if stage.step == "extract":
            named: list[str] = []
            for record in records:
                for text in record["named"]:
                    add_name(named, text)
            counts["extract"]["named"] = named
            check_bad(counts["extract"]["unreadable"], counts["extract"]["documents"], config.max_bad, named)

    for stage in list_stages(config):
        run_step(stage)
    lists = None
    if config.deduplicates:
        folder = config.work_folder / "deduplicate"
        parts = [(unit.key, unit.path) for unit in units]
        with disk_errors(folder):
            lists = deduplicate(parts, folder, config.deduplicate, workers, progress, make)
        nothing: dict[str, Any] = {kind: {} for kind in ("dropped", "passed_over", "changed", "found")}
        before = {name: count for name, count in counts[stage.step].items() if name != "named"}
        counts["deduplicate"] = {**before, **nothing, **lists.counts()}
        units = [replace(unit, key=digest([unit.key, lists.hash_drops(unit.number)])) for unit in units]
        left = [_subtract_drops(entries, lists.read_drops(number)) for number, entries in enumerate(files)]
        _count_files(by_file, "deduplicate", left)
    else:
        _check_lists(config)
    sources = [
        InputFile(_names(unit), unit.bytes, _make_reader(unit, lists), unit.key, grows=is_small(unit.extents[0].bytes))
        for unit in units
    ]
    if "encode" in config.stages:
        run_step(_plan_encoding(config, given, lists))
        del counts["encode"]
        sources = [replace(source, encoded=unit.path) for source, unit in zip(sources, units, strict=True)]
    return counts, sources, by_file


def _count_files(by_file: FileCounts, step: str, parts: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Adds the number of documents that a step dropped to the counts of each input file, given the documents that each
    part has after the step."""
    left: Counter[str] = Counter()
    for entry in (entry for part in parts for entry in part):
        left[entry["source"]] += entry["documents"]
        if step == "extract":
            own = by_file.setdefault(entry["source"], {"read": 0, "unreadable": 0})
            own["read"] += entry["documents"]
            own["unreadable"] += entry["unreadable"]
    for name, own in by_file.items():
        if step != "extract":
            dropped_before = sum(count for kind, count in own.items() if kind not in ("read", "unreadable"))
            own[step] = own["read"] - dropped_before - left[name]


def _subtract_drops(files: Sequence[Mapping[str, Any]], drops: Drops) -> list[dict[str, Any]]:
    """Returns the files of a part with the numbers of their documents that are not dropped."""
    ends = np.cumsum([entry["documents"] for entry in files])
    dropped = np.bincount(np.searchsorted(ends, drops.documents["document"], "right"), minlength=len(files)).tolist()
    return [{**entry, "documents": entry["documents"] - gone} for entry, gone in zip(files, dropped, strict=True)]


def _check_lists(config: PrepareConfig) -> None:
    """Raises UsageError if later steps run without `deduplicate` and would ignore its existing lists."""
    if "extract" in config.stages or not {"encode", "tokens"}.intersection(config.stages):
        return
    if (config.work_folder / "deduplicate" / "lists" / "record.json").exists():
        named = ", ".join(config.stages)
        raise UsageError(
            f"steps = {named} would use the documents that {config.work_folder / 'deduplicate'} lists as duplicates. "
            "Add deduplicate to steps to omit them, or extract to use all documents; finished work is not repeated."
        )


def _plan_encoding(config: PrepareConfig, given: Any, lists: Lists | None) -> Stage:
    folder, how = config.work_folder / "encode", {"language": config.language, "lines": config.lines}
    arguments = (folder, lists, given.to_str(), *how.values())
    return Stage(
        "encode", folder, Encode, arguments, how | {"tokenizer": fingerprint(given)}, partial(_read_complete, folder)
    )


def _make_reader(unit: Unit, lists: Lists | None) -> Callable[[Callable[[int], None]], Iterator[Piece]]:
    def pieces(tell: Callable[[int], None]) -> Iterator[Piece]:
        found = _read_part(unit, lambda share: tell(int(share * unit.bytes)))
        return found if lists is None else apply_drops(found, lists.read_drops(unit.number))

    return pieces


def _read_part(unit: Unit, tell: Callable[[float], None]) -> Iterator[Piece]:
    expected = json.loads(read_file(unit.path.with_suffix(".json")))["characters"]
    return report_progress(read_part(unit.path), expected, tell)


def list_stages(config: PrepareConfig) -> list[Stage]:
    """Returns the steps that write texts, up to the last one that the command names."""
    layout = config.layout
    reader = hash_code(lookup(READERS, config.format, "format", KIND)) if ":" in config.format else ""
    settings = {**asdict(layout), "format": config.format, "code": reader}
    folder = config.work_folder / "extract"
    found = [
        Stage("extract", folder, Extract, (folder, layout, config.format), settings, partial(_read_complete, folder))
    ]
    if config.cleaners and (config.makes_corpus or {"clean", "encode"}.intersection(config.stages)):
        folder, settings = config.work_folder / "clean", {"clean": list_causes(config.cleaners, config)}
        found.append(Stage("clean", folder, Clean, (folder, config), settings, partial(_read_complete, folder)))
    return found


def _run_step(
    stage: Stage, units: Sequence[Unit], named: Sequence[str], workers: int, progress: Progress,
    make: Make = make_here,
) -> list[dict[str, Any]]:  # fmt: skip
    """Makes the missing parts and returns the records of all. Removes parts that are no longer needed."""
    with disk_errors(stage.folder):
        make_folder(stage.folder)
        remove_all_leftovers(stage.folder)
        with ThreadPoolExecutor(workers) as pool:
            found = zip(units, pool.map(stage.complete, units), strict=True)
            records = {unit.key: record for unit, record in found if record}
        missing = [unit for unit in units if unit.key not in records]
        if missing and stage.step not in named:
            raise UsageError(
                f"steps = {', '.join(named)}: {stage.folder} lacks {len(missing):,} of {len(units):,} parts for these "
                f"inputs and settings. Add {stage.step} to steps."
            )
        if stage.step in named:
            _remove_others(stage.folder, {unit.key for unit in units})
        # The largest units first, so that none is left for one process at the end; slices of a file in their order.
        missing.sort(key=lambda unit: (-unit.bytes, unit.extents[0].source, unit.extents[0].part.begin))
        total = sum(unit.bytes for unit in units)
        before = total - sum(unit.bytes for unit in missing)
        done = dict.fromkeys((unit.key for unit in missing), 0)
        lock = Lock()

        def tell(unit: Unit, share: float) -> None:
            with lock:
                done[unit.key] = int(share * unit.bytes)
                progress(before + sum(done.values()), total, stage.step)

        if missing:
            progress(before, total, stage.step)
        for unit, record in make(stage, missing, workers, tell):
            records[unit.key] = record
            tell(unit, 1.0)
    return [records[unit.key] for unit in units]


def _part(folder: Path, key: str) -> Path:
    return folder / f"part-{key}.parquet"


def _names(unit: Unit) -> tuple[str, ...]:
    return tuple(extent.source for extent in unit.extents)


def _write(
    folder: Path, unit: Unit, write: Callable[[Path], Mapping[str, Any]], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes a part and then its record, each complete or absent, and returns the record.

    Args:
        write: Writes the file of the part and returns entries of the record.
        more: Further entries of the record; it may be filled while `write` runs.
    """
    path = _part(folder, unit.key)
    with disk_errors(path):
        with atomic_file(path) as temporary:
            counts = write(temporary)
        return write_record(path.with_suffix(".json"), {"key": unit.key, "sha256": sha256(path), **counts, **more})


def _read_complete(folder: Path, unit: Unit) -> dict[str, Any] | None:
    """Returns the record of a part if both files are unchanged since they were written, otherwise None."""
    path = _part(folder, unit.key)
    record = read_record(path.with_suffix(".json"), _RECORD)
    whole = record and record["key"] == unit.key and have_hashes({path: record["sha256"]})
    return record if whole else None


def _remove_others(folder: Path, keys: set[str]) -> None:
    for path in folder.iterdir():
        if _PART.fullmatch(path.name) and path.stem.removeprefix("part-") not in keys:
            path.unlink()


def _sum_records(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {
        name: sum(int(record[name]) for record in records) for name in ("documents", "unreadable", "characters")
    }
    for kind in ("dropped", "passed_over", "changed", "found"):
        names = dict.fromkeys(name for record in records for name in record[kind])
        total[kind] = {name: sum(record[kind].get(name, 0) for record in records) for name in names}
    return total | {"samples": merge_samples(records)}
