"""The steps of `prepare` that keep documents: each turns one unit into one part, in any process and in any order.

A unit is an input file or a slice of a large one.

A part is `part-KEY.parquet` in the folder of its step. KEY is a hash of everything that determines its content, and
`part-KEY.json` beside it, which is written after it, is its record. A part without a whole record is made again. So a
command that was stopped, or that is given more files, does only what is missing.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from lambert.core.contents import HashedFile, misfit, sha256
from lambert.core.errors import UsageError
from lambert.core.files import atomic_file, make_folder, remove_all_leftovers, replace_files
from lambert.core.registry import lookup
from lambert.corpus.cleaning import code_hash
from lambert.corpus.config import PrepareConfig
from lambert.corpus.deduplication import Lists, deduplicate
from lambert.corpus.documents import NAMED, Source, changed, printable, too_many_bad
from lambert.corpus.drops import remaining
from lambert.corpus.filtering import Ledger, chain, decides, filtered, merged
from lambert.corpus.parts import disk_errors, read_part, write_part
from lambert.corpus.readers import KIND, READERS, Layout, Piece
from lambert.corpus.slices import Slice, SliceReader, divide
from lambert.corpus.streams import EXPANSION
from lambert.corpus.workers import Target, nobody, run, told

Progress = Callable[[int, int, str], None]
"""Called with the bytes done, the total bytes and the name of the current step."""
_RECORD = {
    "key": str, "source": str, "sha256": str, "documents": int, "unreadable": int, "characters": int, "named": [str],
    "dropped": {"*": int}, "passed_over": {"*": int}, "changed": {"*": int}, "found": {"*": int},
    "samples": {"*": [{"hash": str, "place": str, "text": str}]}, "record_sha256": str,
}  # fmt: skip
"""The content of a record."""
VERSIONS = {"extract": 3, "clean": 2}
"""Increase the number of a step when it writes something else, so that parts of older versions are made again."""
_PART = re.compile(r"part-[0-9a-f]{16}\.(parquet|json)")


@dataclass(frozen=True, slots=True)
class Unit:
    """What a step turns into a part."""

    source: str
    """The input file."""
    part: Slice
    """Which documents of it."""
    bytes: int
    """Bytes of the input file for these documents, approximately."""
    stamp: tuple[int, int, int] | None
    """Inode, size and modification time of the input file when it was hashed."""
    key: str
    """Hash of everything that determines the content of the part; before the first step, SHA-256 of the input file."""
    before: str = ""
    """The key of the step before."""

    def after(self, plan: "Plan") -> "Unit":
        """Returns the unit with the key of its part of a step."""
        causes = [plan.step, VERSIONS[plan.step], plan.settings, self.source, astuple(self.part), self.key]
        return replace(self, key=_hash(causes)[:16], before=self.key)


class Extract:
    """Writes the documents of a slice of an input file to a part."""

    def __init__(self, folder: Path, layout: Layout, kind: str) -> None:
        self._folder, self._read = folder, SliceReader(layout, kind)
        self.tell: Callable[[float], None] = nobody

    def __call__(self, unit: Unit) -> dict[str, Any]:
        named: list[str] = []
        passed_over: dict[str, int] = {}

        def pieces() -> Iterator[Piece]:
            expected = unit.bytes * EXPANSION.get(Path(unit.source).suffix.lower(), 1.0)
            for piece in told(self._read(Path(unit.source), unit.part), expected, self.tell):
                if piece.passed_over:
                    passed_over[piece.passed_over] = passed_over.get(piece.passed_over, 0) + 1
                    continue
                if piece.error and len(named) < NAMED:
                    named.append(printable(f"{unit.source}, {piece.place}, {piece.error}"))
                yield piece
            if HashedFile(Path(unit.source), "").stamp() != unit.stamp:
                raise changed(unit.source)

        return _write(self._folder, unit, pieces(), {"named": named, "passed_over": passed_over, **Ledger().record()})


class Clean:
    """Writes the documents of a part that no filter drops to another part."""

    def __init__(self, before: Path, folder: Path, config: PrepareConfig) -> None:
        self._before, self._folder, self._filters = before, folder, chain(config.cleaners, config)
        self.tell: Callable[[float], None] = nobody

    def __call__(self, unit: Unit) -> dict[str, Any]:
        ledger = Ledger()
        more: dict[str, Any] = {"named": [], "passed_over": {}}

        def pieces() -> Iterator[Piece]:
            path = _part(self._before, unit.before)
            expected = json.loads(path.with_suffix(".json").read_bytes())["characters"]
            yield from filtered(told(read_part(path), expected, self.tell), self._filters, ledger)
            more.update(ledger.record())

        return _write(self._folder, unit, pieces(), more)


@dataclass(frozen=True, slots=True)
class Plan:
    """A step of the command."""

    step: str
    folder: Path
    target: Target
    arguments: tuple[Any, ...]
    settings: Mapping[str, Any]
    """What, besides its input, determines the content of a part."""


def make_parts(
    config: PrepareConfig, inputs: Sequence[Mapping[str, Any]], stamps: Sequence[Any], workers: int, progress: Progress
) -> tuple[dict[str, dict[str, Any]], list[Source]]:
    """Runs the steps before `tokens` as far as `config.stages` names them.

    Returns the counts of each step, and what to read after the last of them, in the order of the inputs.

    Args:
        inputs: `file`, `bytes` and `sha256` of each input file.
        stamps: `HashedFile.stamp` of each when it was hashed.

    Raises:
        UsageError: A step that is not named has not been run on these inputs.
        DataError: More than a share `config.max_bad` of the documents is unreadable, or an input changed.
        MachineError: The disk refuses a write.
    """
    counts: dict[str, dict[str, Any]] = {}
    units = [
        Unit(str(entry["file"]), part, int(entry["bytes"]) // len(slices), stamp, str(entry["sha256"]))
        for entry, stamp, slices in zip(inputs, stamps, _divided(config, inputs, workers, progress), strict=True)
        for part in slices
    ]
    for plan in _plans(config):
        units = [unit.after(plan) for unit in units]
        records = _run_step(plan, units, config.stages, workers, progress)
        counts[plan.step] = _sum(records)
        if plan.step == "extract":
            named = [text for record in records for text in record["named"]]
            too_many_bad(counts["extract"]["unreadable"], counts["extract"]["documents"], config.max_bad, named)
    keys, paths = [unit.key for unit in units], [_part(plan.folder, unit.key) for unit in units]
    lists = None
    if config.deduplicates:
        folder = config.work_folder / "deduplicate"
        with disk_errors(folder):
            lists = deduplicate(list(zip(keys, paths, strict=True)), folder, config.deduplicate, workers, progress)
        nothing: dict[str, Any] = {kind: {} for kind in ("dropped", "passed_over", "changed", "found", "samples")}
        counts["deduplicate"] = {**counts[plan.step], **nothing, **lists.counts()}
        keys = [_hash([key, lists.hash_of(number)]) for number, key in enumerate(keys)]
    sources = [
        Source(unit.source, unit.bytes, _reader(unit, record["characters"], path, lists, number), keys[number])
        for number, (unit, record, path) in enumerate(zip(units, records, paths, strict=True))
    ]
    return counts, sources


def _reader(
    unit: Unit, characters: int, path: Path, lists: Lists | None, number: int
) -> Callable[[Callable[[int], None]], Iterator[Piece]]:
    def pieces(tell: Callable[[int], None]) -> Iterator[Piece]:
        found = told(read_part(path), characters, lambda share: tell(int(share * unit.bytes)))
        return found if lists is None else remaining(found, lists.of(number))

    return pieces


class Divide:
    """Divides an input file into slices."""

    def __init__(self, layout: Layout, kind: str) -> None:
        self._layout, self._kind = layout, kind

    def __call__(self, source: str) -> list[Slice]:
        return divide(Path(source), self._layout, self._kind)


def _divided(
    config: PrepareConfig, inputs: Sequence[Mapping[str, Any]], workers: int, progress: Progress
) -> list[list[Slice]]:
    """Returns the slices of each input file, which are kept in the folder of the step `extract`, because finding them
    may need the whole file."""
    folder = config.work_folder / "extract"
    layout = Layout(config.documents, config.text_field, max_ratio=config.max_ratio)
    found: dict[str, list[Slice]] = {}
    paths: dict[str, Path] = {}
    with disk_errors(folder):
        make_folder(folder)
        for entry in inputs:
            causes = [VERSIONS["extract"], asdict(layout), config.format, entry["file"], entry["sha256"]]
            paths[entry["file"]] = path = folder / f"slices-{_hash(causes)[:16]}.json"
            with suppress(OSError, ValueError, TypeError, RecursionError):
                kept = json.loads(path.read_bytes())
                if kept["hash"] == _hash(kept["slices"]):
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
            kept = json.dumps({"slices": values, "hash": _hash(values)})
            replace_files({paths[source]: kept.encode()})
        for path in folder.glob("slices-*.json"):
            if path not in paths.values() and "extract" in config.stages:
                path.unlink()
    return [found[entry["file"]] for entry in inputs]


def _plans(config: PrepareConfig) -> list[Plan]:
    """Returns the steps up to the last one that the command names."""
    layout = Layout(config.documents, config.text_field, max_ratio=config.max_ratio)
    folders = {step: config.work_folder / step for step in VERSIONS}
    reader = code_hash(lookup(READERS, config.format, "format", KIND)) if ":" in config.format else ""
    plans = [
        Plan(
            "extract", folders["extract"], Extract, (folders["extract"], layout, config.format),
            {**asdict(layout), "format": config.format, "code": reader},
        ),
        Plan(
            "clean", folders["clean"], Clean, (folders["extract"], folders["clean"], config),
            {"clean": decides(config.cleaners, config)},
        ),
    ]  # fmt: skip
    last = "clean" if config.cleaners and ("clean" in config.stages or config.makes_corpus) else "extract"
    return plans if last == "clean" else plans[:1]


def _run_step(
    plan: Plan, units: Sequence[Unit], named: Sequence[str], workers: int, progress: Progress
) -> list[dict[str, Any]]:
    """Makes the parts that are missing and returns the records of all. Removes other parts."""
    with disk_errors(plan.folder):
        make_folder(plan.folder)
        remove_all_leftovers(plan.folder)
        records = {unit.key: record for unit in units if (record := _complete(plan.folder, unit))}
        missing = [unit for unit in units if unit.key not in records]
        if missing and plan.step not in named:
            raise UsageError(
                f"steps = {', '.join(named)}: {plan.folder} lacks {len(missing):,} of {len(units):,} parts for these "
                f"inputs and settings. Add {plan.step} to steps."
            )
        if plan.step in named:
            _remove_others(plan.folder, {unit.key for unit in units})
        # the largest first, so that no process waits for one alone; those of a file in order, since it is read forwards
        missing.sort(key=lambda unit: (-unit.bytes, unit.source, unit.part.begin))
        total = sum(unit.bytes for unit in units)
        before = total - sum(unit.bytes for unit in missing)
        done = dict.fromkeys((unit.key for unit in missing), 0)
        lock = Lock()

        def tell(unit: Unit, share: float) -> None:
            with lock:
                done[unit.key] = int(share * unit.bytes)
                progress(before + sum(done.values()), total, plan.step)

        if missing:
            progress(before, total, plan.step)
        for unit, record in run(missing, workers, plan.target, plan.arguments, waiting=len(missing), told=tell):
            records[unit.key] = record
            tell(unit, 1.0)
    return [records[unit.key] for unit in units]


def _part(folder: Path, key: str) -> Path:
    return folder / f"part-{key}.parquet"


def _write(folder: Path, unit: Unit, pieces: Iterator[Piece], more: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a part and then its record, each complete or absent, and returns the record. `more` are entries of the
    record, which are complete when `pieces` ends."""
    path = _part(folder, unit.key)
    with disk_errors(path):
        with atomic_file(path) as temporary:
            counts = write_part(temporary, unit.source, pieces)
        record = {"key": unit.key, "source": unit.source, "sha256": sha256(path), **counts, **more}
        record["record_sha256"] = _hash(record)
        described = json.dumps(record) + "\n"
        replace_files({path.with_suffix(".json"): described.encode()})
    return record


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _complete(folder: Path, unit: Unit) -> dict[str, Any] | None:
    """Returns the record of a part if both are as they were written, or None."""
    path = _part(folder, unit.key)
    try:
        record = json.loads(path.with_suffix(".json").read_bytes())
        if misfit(record, _RECORD):
            return None
        own = {name: value for name, value in record.items() if name != "record_sha256"}
        whole = record["record_sha256"] == _hash(own) and record["sha256"] == sha256(path)
    except (OSError, ValueError, RecursionError):
        return None
    return dict(record) if whole and record["key"] == unit.key else None


def _remove_others(folder: Path, keys: set[str]) -> None:
    for path in folder.iterdir():
        if _PART.fullmatch(path.name) and path.stem.removeprefix("part-") not in keys:
            path.unlink()


def _sum(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {
        name: sum(int(record[name]) for record in records) for name in ("documents", "unreadable", "characters")
    }
    for kind in ("dropped", "passed_over", "changed", "found"):
        names = dict.fromkeys(name for record in records for name in record[kind])
        total[kind] = {name: sum(record[kind].get(name, 0) for record in records) for name in names}
    return total | {"samples": merged(records)}
