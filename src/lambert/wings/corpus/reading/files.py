"""Finds the input files that paths, folders and globs name, and checks their first bytes."""

import glob
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lambert.core.contents import HashedFile, sha256
from lambert.core.errors import DataError
from lambert.core.files import not_read, open_regular
from lambert.core.shards import is_corpus
from lambert.core.unsupported import explain_markup, is_work_folder, refuse_archive
from lambert.text.arrow import is_dataset, list_dataset_files
from lambert.text.encodings import UTF8
from lambert.text.streams import EXPANSION, Stream, inner_suffix, unpack
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.reading.labelled import LABELLED, refuse_corpus
from lambert.wings.corpus.reading.readers import SUFFIXES, recognise


def find(
    inputs: Sequence[str | Path], without: Sequence[Path] = (), text_field: str = "text"
) -> tuple[list[Path], list[Path]]:
    """Returns the files that `find_sources` finds, and those that it skips."""
    chosen, passed = find_sources(inputs, without, text_field)
    return list(chosen), passed


def find_sources(
    inputs: Sequence[str | Path], without: Sequence[Path] = (), text_field: str = "text"
) -> tuple[dict[Path, int], list[Path]]:
    """Returns (files to read, each with the number of the first input that names it; skipped files). Each file occurs
    once; the files of a folder are sorted by name.

    A named file is read with any name, and so is each match of a glob (`*`, `?`, `[`, `**`). In a folder, searched
    recursively, the files with a known suffix or none, MediaWiki dumps, and tables that have the column `text_field`
    are read; hidden files, corpora and work folders of `prepare` are not. Of a data set in a folder, its own files are
    read. Nothing below the folders `without` (the output) is read. Raises DataError if something named does not exist
    or is an archive, a device or a prepared corpus, and if nothing is left.
    """
    chosen: dict[Path, int] = {}
    passed: dict[Path, None] = {}
    apart = {os.path.realpath(folder) for folder in without}
    for number, entry in enumerate(inputs):
        path = Path(entry)
        if path.exists():
            matches = [path]
        else:
            matches = [Path(match) for match in sorted(glob.glob(os.path.expanduser(str(entry)), recursive=True))]
            if not matches:
                raise DataError(f"No such file or folder: {entry}.{_describe_near(path)}")
        for match in matches:
            refuse_archive(match)
            refuse_corpus(match)
            if not match.is_dir() and not match.is_file():
                raise DataError(f"{match} is not a regular file (a pipe, a device or a broken link): name a file.")
            for file in _walk(match) if match.is_dir() else [match]:
                real = Path(os.path.realpath(file))
                if file != path and apart.intersection(map(str, (real, *real.parents))):
                    continue
                if file == match or _is_text(file, text_field):
                    chosen.setdefault(file, number)
                else:
                    passed[file] = None
    if not chosen:
        known = " ".join(SUFFIXES)
        named = ", ".join(map(str, inputs))
        if not passed:
            raise DataError(f"No files to read in {named}: the folder is empty, or its files are hidden.")
        raise DataError(
            f"No files to read in {named}: {len(passed)} with unknown suffixes. Known: {known}, also compressed."
        )
    return chosen, list(passed)


def estimate_text(files: Mapping[Path, int], weights: Sequence[float] = ()) -> int:
    """Returns an estimate of the bytes of text in the files, based on their sizes.

    Args:
        files: For each file, the number of the input that names it.
        weights: How often the documents of each input are used; empty: once.
    """
    times = {file: weights[number] if weights else 1.0 for file, number in files.items()}
    return int(sum(find_size(file) * EXPANSION.get(file.suffix.lower(), 1.0) * times[file] for file in files))


def hash_files(
    found: Sequence[Path], progress: Callable[[int, int, str], None]
) -> tuple[list[dict[str, Any]], list[tuple[int, int, int] | None]]:
    """Returns `file`, `bytes` and `sha256` of each file, and the `HashedFile.stamp` of each before it was read. Raises
    DataError if one cannot be read."""
    inputs: list[dict[str, Any]] = []
    stamps: list[tuple[int, int, int] | None] = []
    done, total = 0, sum(map(find_size, found))
    progress(0, total, "hashing inputs")
    for file in found:
        try:
            stamps.append(HashedFile(file, "").stamp())
            digest = sha256(file, lambda count: progress(done + count, total, "hashing inputs"))  # noqa: B023
            inputs.append({"file": str(file), "bytes": file.stat().st_size, "sha256": digest})
        except OSError as error:
            raise not_read(file, error) from error
        done += inputs[-1]["bytes"]
    return inputs, stamps


def find_size(file: Path) -> int:
    """Returns the size of a file in bytes; 0 if it no longer exists, which is reported when it is read."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _walk(folder: Path) -> list[Path]:
    """Returns the files of a folder, and the folders in it that `prepare` wrote, whose files are not inputs."""
    found = []
    for root, folders, names in os.walk(folder):
        if Path(root) != folder and (is_corpus(Path(root)) or is_work_folder(Path(root))):
            found.append(Path(root))
            folders.clear()
            continue
        if is_dataset(Path(root)):
            found += list_dataset_files(Path(root))
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root) / name for name in sorted(names) if not name.startswith(".")]
    return found


def _is_text(file: Path, text_field: str) -> bool:
    inner = inner_suffix(file)
    if not file.is_file():  # opening a pipe would wait for its other end
        return False
    if inner.startswith(".xml"):  # parts of large dumps end in .xml-p1p41242.bz2
        return begins_as(file, "mediawiki")
    if inner in LABELLED:
        return begins_as(file, "csv", text_field)
    return inner in SUFFIXES or not inner


def _describe_near(path: Path) -> str:
    if not path.parent.is_dir():
        return f" The folder {path.parent} does not exist."
    names = sorted(child.name for child in path.parent.iterdir() if not child.name.startswith("."))[:5]
    folder = "The current folder" if path.parent == Path() else path.parent
    return f" {folder} holds: {', '.join(names)}." if names else f" {folder} is empty."


def check_beginnings(found: Iterable[Path], config: PrepareConfig, urls: Mapping[str, str] | None = None) -> None:
    """Calls `check_prose` for the files that `config` names and for those that may be tables, if formats are recognised
    by name and content. `urls` has the URLs of copies."""
    if config.format != "auto":
        return
    named = set(map(Path, config.input))
    for file in found:
        if file in named or inner_suffix(file) in LABELLED:  # a glob matches files of all kinds
            check_prose(file, config.text_field, config.layout.encoding, (urls or {}).get(str(file), ""))


def check_prose(path: Path, text_field: str = "text", encoding: str = UTF8, url: str = "") -> None:
    """Raises DataError if a file begins with markup or looks like labelled data. A server may have sent an HTML page
    instead of the file at `url`."""
    try:
        with open_regular(path) as raw:
            opened, inner = unpack(path, raw)
            beginning = Stream(opened).peek()
            kind, problem = recognise(inner, beginning, text_field, encoding)
    except OSError as error:
        raise not_read(path, error) from error
    if url and kind not in ("html", "warc") and "HTML page" in explain_markup(beginning):
        what = "gave an HTML page, such as one for a login or an error, and not a file of text"
        raise DataError(f"{url} {what}. Check the URL, and delete the copy {path}.")
    if problem:
        anyway = ", or use --format text to read the markup as text" if "markup" in problem else ""
        raise DataError(f"{path} {problem}{anyway}.")


def begins_as(path: Path, kind: str, text_field: str = "text") -> bool:
    """Returns whether a file is of a kind, such as "mediawiki", by its name and first bytes."""
    try:
        with open_regular(path) as raw:
            opened, inner = unpack(path, raw)
            return recognise(inner, Stream(opened).peek(), text_field)[0] == kind
    except OSError:
        return False
