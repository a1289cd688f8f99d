"""The files of labelled data: compressed or not, and folders that save_to_disk of Hugging Face's datasets wrote."""

import hashlib
from pathlib import Path

from lambert.core.contents import sha256
from lambert.core.errors import DataError
from lambert.text.arrow import ArrowFile, ParquetFile, is_dataset, list_splits
from lambert.text.classes import Classes, decode_classes
from lambert.text.rows import kind, list_data_files, open_unpacked


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


def list_labelled_files(path: Path) -> list[Path]:
    """Returns the files of labelled data: the texts and annotations of brat, or those of `rows.list_data_files`."""
    return [file for pair in brat_pairs(path) for file in pair] or list_data_files(path)


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file; of a data set, that of the hashes of its files."""
    found = [sha256(file) for file in list_labelled_files(path)]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def find_splits(data: Path, dev: Path | float | None) -> tuple[Path, Path | float | None]:
    """Returns the paths of training and dev data: in a folder with several splits `train` and `validation`. Without
    `dev`, the dev data are the validation split of `data`, if it has one. A share is returned unchanged.

    Raises:
        DataError: A folder has no such split.
    """
    splits = list_splits(data)
    if splits and dev is None and "validation" in splits:
        dev = data
    return _find_split(data, "train", "data"), _find_split(dev, "validation", "dev") if isinstance(dev, Path) else dev


def _find_split(path: Path, name: str, setting: str) -> Path:
    splits = list_splits(path)
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
    first = list_data_files(path)[0]
    with open_unpacked(first) as (_, stream):
        metadata = (ParquetFile if suffix == ".parquet" else ArrowFile)(stream).schema.metadata or {}
    try:
        return decode_classes(metadata)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(f"{first}: the features in its metadata cannot be read: {error}.") from error
