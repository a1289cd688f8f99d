"""Passes parts of the steps between machines that share no file system, through an object store.

A file has the same name below the URL of the store as below the work folder. The record of a part is written after the
part, so a part whose record is in the store is complete.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lambert.core.contents import HashedFile, sha256
from lambert.core.errors import DataError
from lambert.core.files import atomic_file, make_folder
from lambert.core.urls import public
from lambert.wings.corpus.disk import have_hashes, read_record
from lambert.wings.corpus.documents import build_change_error
from lambert.wings.corpus.duplicates.deduplication import Lists
from lambert.wings.corpus.duplicates.signatures import Signed
from lambert.wings.corpus.remote.fetch import fetch_again
from lambert.wings.corpus.remote.servers import source_of
from lambert.wings.corpus.remote.store import Store
from lambert.wings.corpus.units import Extent, Stage


class PartStore:
    """The files of a work folder in an object store."""

    def __init__(self, url: str, work: Path) -> None:
        self._store, self._work = Store(url), work
        self._there = set(self._store.objects())
        self._inputs: dict[Path, tuple[Any, str]] = {}

    def has(self, path: Path) -> bool:
        """Returns whether the store had a file when this object was created or `push` wrote it."""
        return self._name(path) in self._there

    def push(self, paths: Iterable[Path]) -> None:
        """Copies files, in this order, to the store. Raises MachineError if the stored content differs."""
        for path in paths:
            self._store.write(self._name(path), path)
            self._there.add(self._name(path))

    def pull(self, path: Path) -> None:
        """Copies a file from the store. Raises DataError if there is none."""
        if not self.has(path):
            raise DataError(f"{public(self._store.url)}/{self._name(path)} is missing: give the same command again.")
        make_folder(path.parent)
        with atomic_file(path) as new:
            self._store.copy(self._name(path), new)

    def delete(self, path: Path) -> None:
        """Deletes a file from the store, if it is there."""
        if self.has(path):
            self._store.delete(self._name(path))
            self._there.remove(self._name(path))

    def pull_inputs(self, stage: Stage, unit: Any, inputs: Sequence[str | Path]) -> Any:
        """Fetches the files that the target of a stage reads for a unit and that this machine lacks. Returns the unit
        with the paths of this machine. Raises DataError if an input has changed since the command hashed it."""
        lists = _find_lists(stage)
        for path in lists:
            if not have_hashes({path: lists[path]}):
                self.pull(path)
        if stage.step != "extract":
            record = unit.path.with_suffix(".json")
            if not _whole(unit.path, record):
                self.pull(record)
                self.pull(unit.path)
                if not _whole(unit.path, record):
                    raise DataError(f"{public(self._store.url)}/{self._name(unit.path)} is damaged: delete it.")
            return unit
        return replace(unit, extents=tuple(self._pull_extent(extent, inputs) for extent in unit.extents))

    def _pull_extent(self, extent: Extent, inputs: Sequence[str | Path]) -> Extent:
        source, folder = Path(extent.source), self._work / "fetch"
        if source.is_relative_to(folder):
            fetch_again(source, inputs, folder, source_of)
        stamp, found = self._hash_input(source)
        if found != extent.sha256:
            raise build_change_error(extent.source)
        return replace(extent, stamp=stamp)

    def push_inputs(self, stage: Stage, units: Iterable[Any]) -> None:
        """Copies the parts that the target of a stage reads, and that the store lacks, to the store."""
        self.push(_find_lists(stage))
        if stage.step != "extract":
            for unit in units:
                self.push(path for path in (unit.path, unit.path.with_suffix(".json")) if not self.has(path))

    def _hash_input(self, source: Path) -> tuple[Any, str]:
        """Returns the stamp and the SHA-256 of an input file, which several units may share."""
        stamp = HashedFile(source, "").stamp()
        if self._inputs.get(source, (None, ""))[0] != stamp or stamp is None:
            self._inputs[source] = stamp, sha256(source)
        return self._inputs[source]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._work).as_posix()


def list_outputs(stage: Stage, unit: Any) -> list[Path]:
    """Returns the files that the target of a stage makes from a unit, the record last."""
    if isinstance(unit, Signed):
        return [unit.documents, unit.lines, unit.record]
    part = stage.folder / f"part-{unit.key}.parquet"
    return [part, part.with_suffix(".json")]


def _find_lists(stage: Stage) -> dict[Path, str]:
    """Returns the lists of duplicates that the target of a stage reads, with their SHA-256."""
    found = [value for value in stage.arguments if isinstance(value, Lists)]
    return {own.folder / name: digest for own in found for name, digest in own.record["files"].items()}


def _whole(part: Path, record: Path) -> bool:
    found = read_record(record, {"sha256": str})
    return found is not None and have_hashes({part: found["sha256"]})
