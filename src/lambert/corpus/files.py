"""Resolution of paths, folders and globs to input files."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from lambert.core.errors import DataError
from lambert.core.unsupported import refuse_archive, refuse_arrow, refuse_corpus
from lambert.corpus.readers import SUFFIXES, begins_dump
from lambert.corpus.streams import EXPANSION, inner_suffix


def find(inputs: Sequence[str | Path], without: Sequence[Path] = ()) -> tuple[list[Path], list[Path]]:
    """Returns (files to read, files passed over), each file once, with the files of a folder sorted by name.

    A file that is named is read whatever its name; in a folder (searched recursively) those with a known suffix or none
    at all and MediaWiki dumps are, hidden ones are not; a glob (`*`, `?`, `[`, `**`) names what it matches. Nothing
    below the folders `without` (the output) is read. Raises DataError where something named does not exist or is an
    archive, an Arrow data set or a prepared corpus, and where nothing is left.
    """
    chosen: dict[Path, None] = {}
    passed: dict[Path, None] = {}
    apart = {folder.resolve() for folder in without}
    for entry in inputs:
        path = Path(entry)
        if path.exists():
            matches = [path]
        else:
            matches = [Path(match) for match in sorted(glob.glob(os.path.expanduser(str(entry)), recursive=True))]
            if not matches:
                raise DataError(f"No such file or folder: {entry}.{_near(path)}")
        for match in matches:
            refuse_archive(match)
            refuse_arrow(match)
            refuse_corpus(match)
            for file in _walk(match) if match.is_dir() else [match]:
                if apart.intersection(file.resolve().parents):
                    continue
                (chosen if file == match or _is_text(file) else passed)[file] = None
    if not chosen:
        known = " ".join(SUFFIXES)
        raise DataError(
            f"No files to read in {', '.join(map(str, inputs))}: {len(passed)} with unknown suffixes. "
            f"Known: {known}, also compressed."
        )
    return list(chosen), list(passed)


def text_bytes(files: Sequence[Path]) -> int:
    """Returns an estimate of the bytes of text in the files, based on their sizes."""
    return int(sum(file.stat().st_size * EXPANSION.get(file.suffix.lower(), 1.0) for file in files))


def _walk(folder: Path) -> list[Path]:
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root) / name for name in sorted(names) if not name.startswith(".")]
    return found


def _is_text(file: Path) -> bool:
    inner = inner_suffix(file)
    if inner.startswith(".xml"):  # parts of large dumps end in .xml-p1p41242.bz2
        return begins_dump(file)
    return inner in SUFFIXES or not inner


def _near(path: Path) -> str:
    if not path.parent.is_dir():
        return f" The folder {path.parent} does not exist."
    names = sorted(child.name for child in path.parent.iterdir() if not child.name.startswith("."))[:5]
    folder = "The current folder" if path.parent == Path() else path.parent
    return f" {folder} holds: {', '.join(names)}." if names else f" {folder} is empty."
