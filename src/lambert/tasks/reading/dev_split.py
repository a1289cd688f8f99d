"""Divides labelled data into training rows and dev rows, by the hash of the text of each row.

The part of a row depends only on its text, not on its place, its label, the other rows or the seed. So equal texts are
in the same part, and rows that are added later move no other row.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from lambert.core.errors import DataError, UsageError
from lambert.core.files import json_text, write_atomic, write_errors
from lambert.tasks.config import TaskConfig
from lambert.tasks.reading.files import digest
from lambert.tasks.reading.table import read_rows, value_of
from lambert.tasks.reading.templates import columns_of
from lambert.tasks.task import Row, own_class
from lambert.tasks.vectors.retrieval import is_judgements

_KEY = b"lambert dev split"
"""The key of the hash. Another key would move rows between training and dev."""
_INSTEAD = "name a file of dev data."


def is_dev(text: str, share: float) -> bool:
    """Returns whether the row with this text is a dev row. The hash is BLAKE2b (RFC 7693) with a key."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=_KEY).digest(), "big")
    return number < share * 2**64


def split_off_dev(path: Path, share: float, config: TaskConfig, folder: Path) -> tuple[Path, Path, str]:
    """Writes the rows of a labelled file to two files of JSON lines in `folder`. Returns the file of the training rows,
    the file of the dev rows, and a line with their numbers. The same call writes the same files. `config` is complete,
    so the file has been read before.

    Raises:
        UsageError: The data cannot be divided.
        DataError: One of the parts is empty.
    """
    if ":" in config.name or is_judgements(path):
        what = f"the task {config.name!r} reads its own files" if ":" in config.name else f"{path} has judgements"
        raise UsageError(f"dev = {share:g} is a share of rows, and {what}: {_INSTEAD}")
    parts: dict[str, list[str]] = {"train": [], "dev": []}
    for text, row in _read_rows(path, config):
        try:
            parts["dev" if is_dev(text, share) else "train"].append(json_text(row) + "\n")
        except TypeError as error:
            raise DataError(f"{path} has a value that JSON does not have ({error}): {_INSTEAD}") from error
    for name, rows in parts.items():
        if not rows:
            total = sum(map(len, parts.values()))
            raise DataError(f"dev = {share:g} leaves no {name} rows of the {total:,} in {path}: {_INSTEAD}")
    of = f"{digest(path)} {share:g} {config.name} {config.columns}"
    place = folder / f"dev-{share:g}-{hashlib.sha256(of.encode()).hexdigest()[:16]}"
    with write_errors(folder):
        place.mkdir(parents=True, exist_ok=True)
        written = [write_atomic(place / f"{name}.jsonl", "".join(rows)) for name, rows in parts.items()]
    counts = " and ".join(f"{len(rows):,} {name}" for name, rows in parts.items())
    return written[0], written[1], f"{path}  {counts} rows (dev = {share:g}, by the hash of each text), in {place}"


def _read_rows(path: Path, config: TaskConfig) -> Iterator[tuple[str, Row]]:
    """Yields the text of each row, which decides its part, and the row. The text of questions is their paragraph; that
    of pairs of texts the first one, so that no query is in both parts; that of rows with a group the group."""
    columns, kind = config.columns, own_class(config.name)
    if (own := kind.own_rows(path, config)) is not None:
        yield from own
        return
    texts = (columns.group,) if columns.group else kind.key_columns(path, config)
    names = [name for text in texts for name in columns_of(text)]
    for _, row in read_rows(path, columns):
        yield json_text([str(value_of(row, name)) for name in names]), row
