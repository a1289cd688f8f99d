"""The steps of `prepare` that keep documents: each turns one unit into one part, in any process and in any order.

`WORK/extract/part-00000.parquet` has the documents of the first input file, and `part-00000.json` beside it, which is
written after it, says from what it was made. A part whose record has another key, or that has another hash, is made
again. So a command that was stopped, or that is given more files, does only what is missing.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lambert.core.contents import misfit, sha256
from lambert.core.errors import MachineError, UsageError
from lambert.core.files import atomic_file, make_folder, remove_all_leftovers, replace_files
from lambert.corpus.config import PrepareConfig
from lambert.corpus.parts import read_part, write_part
from lambert.corpus.readers import Layout, Piece, read
from lambert.corpus.steps import chosen, cleaned
from lambert.corpus.workers import run

Progress = Callable[[int, int, str], None]
_RECORD = {
    "key": str, "source": str, "sha256": str, "documents": int, "unreadable": int, "characters": int,
    "dropped?": {"*": int}, "named?": [str], "record_sha256": str,
}  # fmt: skip
"""The content of a record."""
VERSIONS = {"extract": 1, "clean": 1}
"""Raised when a step changes what it writes, so that parts of older versions are made again."""


class Extract:
    """Writes the documents of an input file to a part, and its record."""

    def __init__(self, folder: str, layout: Layout, kind: str) -> None:
        self._folder, self._layout, self._kind = Path(folder), layout, kind

    def __call__(self, unit: tuple[int, str, str]) -> dict[str, Any]:
        number, file, key = unit
        unreadable: list[str] = []

        def pieces() -> Iterator[Piece]:
            for piece in read(Path(file), self._layout, self._kind):
                if piece.error and len(unreadable) < 20:
                    unreadable.append(f"{file}, {piece.place}, {piece.error}")
                yield piece

        return _write(self._folder, number, key, file, pieces(), lambda: {"named": unreadable})


class Clean:
    """Writes the documents of a part that no step drops to another part, and its record."""

    def __init__(self, source: str, folder: str, names: tuple[str, ...]) -> None:
        self._source, self._folder, self._steps = Path(source), Path(folder), chosen(names)

    def __call__(self, unit: tuple[int, str, str]) -> dict[str, Any]:
        number, file, key = unit
        dropped = dict.fromkeys((name for name, _ in self._steps), 0)
        pieces = cleaned(read_part(part_path(self._source, number)), self._steps, dropped)
        return _write(self._folder, number, key, file, pieces, lambda: {"dropped": dropped})


def part_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.parquet"


def record_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.json"


def make_parts(
    config: PrepareConfig, inputs: Sequence[Mapping[str, Any]], workers: int, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Runs the steps `extract` and `clean` as far as `config.stages` names them, and returns the counts of each.

    Args:
        inputs: The input files: `file`, `bytes` and `sha256` of each.

    Raises UsageError if a step that is not named has not been run on these inputs.
    """
    counts: dict[str, dict[str, Any]] = {}
    made_from = [str(entry["sha256"]) for entry in inputs]
    layout = Layout(config.documents, config.text_field)
    extracted = config.work_folder / "extract"
    settings: dict[str, Any] = {"documents": layout.documents, "text_field": layout.text_field, "format": config.format}
    plan: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = [
        ("extract", Extract, (str(extracted), layout, config.format), settings)
    ]
    if config.clean:
        cleaned_folder = config.work_folder / "clean"
        arguments = (str(extracted), str(cleaned_folder), config.clean)
        plan.append(("clean", Clean, arguments, {"clean": config.clean}))
    for step, target, arguments, values in plan:
        folder = config.work_folder / step
        keys = [_key(step, values, content) for content in made_from]
        units = [(number, str(inputs[number]["file"]), key) for number, key in enumerate(keys)]
        with _disk_errors(folder):
            make_folder(folder)
            remove_all_leftovers(folder)
            records = {number: found for number, _, key in units if (found := _complete(folder, number, key))}
            missing = [unit for unit in units if unit[0] not in records]
            if missing and step not in config.stages:
                raise UsageError(
                    f"steps = {', '.join(config.stages)}: {folder} lacks {len(missing):,} of {len(units):,} parts for "
                    f"these inputs and settings. Add {step} to steps."
                )
            _remove_surplus(folder, len(units))
            size = [int(entry["bytes"]) for entry in inputs]
            done = sum(size[number] for number in records)
            for (number, _, _), record in run(missing, min(workers, max(1, len(missing))), target, arguments):
                records[number] = record
                done += size[number]
                progress(done, sum(size), step)
        counts[step] = _sum([records[number] for number in range(len(units))])
        made_from = [records[number]["sha256"] for number in range(len(units))]
    return counts


def parts_reader(config: PrepareConfig, files: Sequence[Path]) -> Callable[..., Iterator[Piece]]:
    """Returns a function with the interface of `readers.read` that reads the part of an input file."""
    folder = config.work_folder / ("clean" if config.clean else "extract")
    numbers = {file: number for number, file in enumerate(files)}

    def read_file(path: Path, layout: Layout, kind: str, tell: Callable[[int], None]) -> Iterator[Piece]:
        yield from read_part(part_path(folder, numbers[path]))

    return read_file


def _write(
    folder: Path, number: int, key: str, source: str, pieces: Iterator[Piece], more: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Writes a part and then its record, each complete or absent, and returns the record."""
    path = part_path(folder, number)
    with _disk_errors(path):
        with atomic_file(path) as temporary:
            counts = write_part(temporary, source, pieces)
        record = {"key": key, "source": source, "sha256": sha256(path), **counts, **more()}
        stored = {**record, "record_sha256": _hash(record)}
        replace_files({record_path(folder, number): (json.dumps(stored, ensure_ascii=False) + "\n").encode()})
    return record


def _key(step: str, values: Mapping[str, Any], content: str) -> str:
    """Returns what a part depends on, as a SHA-256: the step, its version and settings, and the hash of its input."""
    return _hash([step, VERSIONS[step], dict(values), content])


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _complete(folder: Path, number: int, key: str) -> dict[str, Any] | None:
    """Returns the record of a part that is complete and was made from the same input and settings, or None."""
    try:
        record = json.loads(record_path(folder, number).read_bytes())
        if misfit(record, _RECORD) or record.pop("record_sha256") != _hash(record):
            return None
        same = record["key"] == key and record["sha256"] == sha256(part_path(folder, number))
    except (OSError, ValueError, RecursionError):
        return None
    return dict(record) if same else None


def _remove_surplus(folder: Path, count: int) -> None:
    """Removes the parts of input files that are not given any more."""
    for number in range(count, count + len(os.listdir(folder))):
        for path in (record_path(folder, number), part_path(folder, number)):
            path.unlink(missing_ok=True)


def _sum(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {name: sum(int(record[name]) for record in records)
                             for name in ("documents", "unreadable", "characters")}  # fmt: skip
    total["dropped"] = {}
    for record in records:
        for name, count in record.get("dropped", {}).items():
            total["dropped"][name] = total["dropped"].get(name, 0) + count
    return total


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"{path} cannot be written: {error.strerror or error}. Complete parts are kept; free space, or choose "
            "another work folder."
        ) from error
