"""The step `deduplicate`: compares the documents of all parts, and lists which documents and lines are duplicates.

The folder of the step has files for each part (`signatures`), made in any process and any order, and `lists`, which
depends only on the set of texts and is made again when a part is added.
"""

import hashlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.contents import sha256
from lambert.core.files import atomic_folder, make_folder, remove_all_leftovers
from lambert.core.shards import RECORD_HASH, with_hash
from lambert.wings.corpus.config import DeduplicateConfig
from lambert.wings.corpus.disk import digest, have_hashes, read_record
from lambert.wings.corpus.duplicates import minhash
from lambert.wings.corpus.duplicates.lists import DOCUMENT, LINE, Drops, write_lists
from lambert.wings.corpus.duplicates.near import Index, link_clusters
from lambert.wings.corpus.duplicates.signatures import Sign, Signed
from lambert.wings.corpus.duplicates.similarity import link_similar
from lambert.wings.corpus.units import Make, Progress, Stage, make_here

VERSION = 1
"""Increase it when the files of this step change, so that those of older versions are made again."""
_RECORD = {
    "key": str, "parts": [{"key": str, "documents": [int], "lines": [int]}], "documents": int, "characters": int,
    "dropped": {"*": int}, "lines_removed": int, "pairs": {"compared": int, "similar": int}, "files": {"*": str},
    "samples": {"*": [{"hash": str, "source": str, "place": str, "text": str}]},
}  # fmt: skip
_FILES = {"documents": DOCUMENT, "lines": LINE}


@dataclass(frozen=True, slots=True)
class Lists:
    """The finished lists of a set of parts."""

    folder: Path
    record: dict[str, Any]

    def read_drops(self, part: int) -> Drops:
        """Returns the documents and lines that are removed from the part with this number in the order of the
        corpus."""
        return Drops(*(self._slice(name, *self.record["parts"][part][name]) for name in _FILES))

    def hash_drops(self, part: int) -> str:
        """Returns a hash of what is removed from the part."""
        found = self.read_drops(part)
        removed = [np.ascontiguousarray(values).tobytes() for values in (found.documents["document"], found.lines)]
        return hashlib.sha256(b"".join([len(removed[0]).to_bytes(8, "little"), *removed])).hexdigest()

    def counts(self) -> dict[str, Any]:
        """Returns the counts of what remains and of what is dropped by reason, with samples."""
        return {name: self.record[name] for name in ("documents", "characters", "dropped", "lines_removed", "samples")}

    def _slice(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        path, dtype = self.folder / f"{name}.bin", _FILES[name]
        return np.fromfile(path, dtype, count=end - begin, offset=begin * dtype.itemsize)


def deduplicate(
    parts: Sequence[tuple[str, Path]], folder: Path, config: DeduplicateConfig, workers: int, progress: Progress,
    make: Make = make_here,
) -> Lists:  # fmt: skip
    """Compares the documents of the parts with each other and returns the lists of duplicates. Finished work is not
    repeated.

    Args:
        parts: The key and path of each part, in the order of the corpus. The key is a hash of all that determines it.
        folder: The folder of the step. The caller must hold its lock.
        make: Makes the files of the units of a plan, with a number of processes.

    Raises OSError if the disk refuses a write.
    """
    least = config.paragraph_characters if config.paragraphs else 0
    make_folder(folder)
    remove_all_leftovers(folder)
    signed = [Signed(key, path, folder, _name(key, least)) for key, path in parts]
    counts = _sign(signed, folder, least, workers, progress, make)
    settings = [VERSION, config.threshold, least]
    run_key = digest([settings, [part.name for part in signed]])
    lists = folder / "lists"
    record = _complete(lists, run_key)
    if record is None:
        with atomic_folder(lists, replace=True) as new:
            record = _write(new, run_key, signed, counts, config, workers, progress)
    return Lists(lists, record)


def _name(key: str, least: int) -> str:
    versions = [VERSION, minhash.import_rensa().ALGORITHM_VERSION, unicodedata.unidata_version]
    return digest([versions, key, least])[:16]


def _sign(
    signed: Sequence[Signed], folder: Path, least: int, workers: int, progress: Progress,
    make: Make = make_here,
) -> list[int]:  # fmt: skip
    """Makes the files of parts that lack them, removes those of other parts, and returns the numbers of documents."""
    records = {part.name: record for part in signed if (record := part.complete())}
    named = {path.name for part in signed for path in (part.documents, part.lines, part.record)}
    for path in folder.iterdir():
        if path.is_file() and path.name.startswith(("signatures-", "lines-")) and path.name not in named:
            path.unlink()
    missing = list({part.name: part for part in signed if part.name not in records}.values())
    sizes = {part.name: part.path.stat().st_size for part in signed}
    missing.sort(key=lambda part: -sizes[part.name])
    done, total = sum(sizes[name] for name in records), sum(sizes.values())
    for part, record in make(Stage("deduplicate", folder, Sign, (least,), {}, Signed.complete), missing, workers, None):
        records[part.name] = record
        done += sizes[part.name]
        progress(done, total, "hashing documents")
    return [records[part.name]["documents"] for part in signed]


def _write(
    folder: Path, key: str, signed: Sequence[Signed], counts: Sequence[int], config: DeduplicateConfig, workers: int,
    progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """Writes the lists and their record to a new folder and returns the record."""

    size = sum(part.path.stat().st_size for part in signed)

    def tick(done: int, total: int) -> None:
        progress(size * done // total, size, "comparing documents")

    index = Index(signed, counts)
    unsure = folder / "unsure"
    found = link_clusters(index, config.threshold, folder, unsure)
    compared = link_similar(index, found, unsure, config.threshold, folder, workers, tick)
    written = write_lists(index, found, folder, paragraphs=config.paragraphs)
    record = {
        "key": key,
        **written,
        "pairs": compared,
        "files": {path.name: sha256(path) for path in sorted(folder.iterdir())},
    }
    record = with_hash(record, RECORD_HASH)
    (folder / "record.json").write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    return record


def _complete(lists: Path, key: str) -> dict[str, Any] | None:
    """Returns the record of the lists if they are complete and have this key, otherwise None."""
    record = read_record(lists / "record.json", _RECORD)
    if record is None or record["key"] != key:
        return None
    files = [f"{name}.bin" for name in _FILES]
    return record if have_hashes({lists / name: record["files"].get(name, "") for name in files}) else None
