"""The files of labelled data: compressed or not, and folders that save_to_disk of Hugging Face's datasets wrote."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from lambert.core.contents import sha256
from lambert.core.errors import DataError
from lambert.core.parquet import NotParquet, parquet_metadata
from lambert.core.unsupported import refuse_archive
from lambert.corpus.reading.arrow import ArrowFile, NotArrow, dataset_files, dataset_splits, is_dataset
from lambert.tasks.task import Row

Classes = Mapping[str, tuple[str, ...]]
"""The names of the classes 0, 1, ... of columns."""

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_UNPACKED_BYTES, _UNPACKED_RATIO = 64 << 20, 200
"""The larger of these bytes and so many times the bytes of a compressed file may be read from it. Text has 2 to 10
times."""


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file and decompresses it. Failures of opening and reading are raised as DataError that names the file."""
    refuse(path)
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            yield io.BufferedReader(_Unpacked(file, path), 1 << 17) if path.suffix in _OPENERS else file
    except FileNotFoundError as error:
        raise DataError(f"No such file: {path}.") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is truncated or damaged ({error}). Download or copy it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def refuse(path: Path) -> None:
    """Raises DataError if the path is an archive or a folder, which are not opened as one file."""
    refuse_archive(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder: name one file of labelled data.")


class _Unpacked(io.RawIOBase):
    """A decompressed file. Raises DataError where it is so much larger than the file that it can only be meant to fill
    the memory."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        self._limit = max(_UNPACKED_BYTES, _UNPACKED_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._check()
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        found = self._file.seek(offset, whence)
        self._check()
        return found

    def tell(self) -> int:
        return self._file.tell()

    def _check(self) -> None:
        if self._file.tell() > self._limit:
            raise DataError(
                f"{self._path} has more than {self._limit:,} bytes when it is unpacked, {_UNPACKED_RATIO} times its "
                "size, which labelled data never have. If the file is correct, unpack it first."
            )


def kind(path: Path) -> str:
    """Returns the suffix of the name without that of its compression, such as ".tsv"; ".arrow" for a data set."""
    if path.is_dir() and is_dataset(path):
        return ".arrow"
    return (Path(path.stem) if path.suffix in _OPENERS else path).suffix.lower()


def brat_pairs(path: Path) -> list[tuple[Path, Path]]:
    """Returns the texts and annotations (.txt, .ann) of brat in a folder, or of one of these files; nothing for other
    paths. Raises DataError for annotations without a text."""
    if path.is_dir():
        annotations = [] if is_dataset(path) else sorted(path.rglob("*.ann"))
    else:
        found = path if path.suffix == ".ann" else path.with_suffix(".ann")
        annotations = [found] if path.suffix in (".ann", ".txt") and found.is_file() else []
    pairs = [(found.with_suffix(".txt"), found) for found in annotations]
    if alone := [found for text, found in pairs if not text.is_file()]:
        raise DataError(f"{alone[0]} has no text: brat keeps it beside it as {alone[0].with_suffix('.txt').name}.")
    return pairs


def data_files(path: Path) -> list[Path]:
    """Returns the files of labelled data: the path itself, the Arrow files of a data set, or the texts and annotations
    of brat. Raises DataError for a data set of several splits."""
    if pairs := brat_pairs(path):
        return [file for pair in pairs for file in pair]
    if not path.is_dir() or not is_dataset(path):
        return [path]
    if splits := dataset_splits(path):
        raise DataError(f"{path} has the splits {', '.join(splits)}: name one of them, such as {path / splits[-1]}.")
    return dataset_files(path)


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file; of a data set, that of the hashes of its files."""
    found = [sha256(file) for file in data_files(path)]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def training_and_dev(data: Path, dev: Path | float | None) -> tuple[Path, Path | float | None]:
    """Returns the paths of the training data and the dev data. In a folder with several splits these are `train` and
    `validation`; without `dev`, the dev data are those of the folder of `data`, if it has some. A share is returned as
    it is.

    Raises:
        DataError: A folder has no such split.
    """
    splits = dataset_splits(data)
    if splits and dev is None and "validation" in splits:
        dev = data
    return _split(data, "train", "data"), _split(dev, "validation", "dev") if isinstance(dev, Path) else dev


def _split(path: Path, name: str, setting: str) -> Path:
    splits = dataset_splits(path)
    if splits and name not in splits:
        raise DataError(
            f"{path} has no split {name!r}, but {', '.join(splits)}: name one of them, such as --{setting} "
            f"{path / splits[0]}."
        )
    return path / name if splits else path


def class_names(path: Path) -> Classes:
    """Returns the names of the classes of the columns of whole numbers that have some (`ClassLabel` of Hugging Face's
    datasets), in Parquet files and data sets."""
    suffix = kind(path)
    if suffix not in (".parquet", ".arrow"):
        return {}
    first = data_files(path)[0]
    try:
        with opened(first) as file:
            stream = cast(BinaryIO, file)
            metadata = parquet_metadata(stream) if suffix == ".parquet" else ArrowFile(stream).schema.metadata or {}
    except (NotParquet, NotArrow) as error:
        raise DataError(f"{first} {error}.") from error
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        found = {name: _classes(feature) for name, feature in features.items()}
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(f"{first}: the features in its metadata cannot be read: {error}.") from error
    return {name: names for name, names in found.items() if names}


def _classes(feature: Any) -> tuple[str, ...]:
    """Returns the names of the classes of a feature, or of the elements of a list."""
    if isinstance(feature, list):
        return _classes(feature[0]) if feature else ()
    if feature.get("_type") == "ClassLabel":
        return tuple(map(str, feature.get("names") or ()))
    inner = feature.get("feature")
    return _classes(inner) if isinstance(inner, dict) else ()


def named_classes(row: Row, names: Classes) -> Row:
    """Returns the row with the names of its classes instead of their numbers. Numbers without a name, such as -1 for
    "unlabelled", are kept."""
    return {key: _named(value, names[key]) if key in names else value for key, value in row.items()}


def _named(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_named(element, names) for element in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value
