"""Recognises files and folders that are not text to learn from: labelled data and corpora."""

import re
from codecs import BOM_UTF8
from pathlib import Path

from lambert.core.errors import DataError
from lambert.core.shards import is_corpus
from lambert.core.unsupported import CONLL
from lambert.text.tables import read_cells

LABELLED = {
    **dict.fromkeys(CONLL, "CoNLL, one word and its tag a line"),
    ".csv": "a table (CSV)",
    ".tsv": "a table (TSV)",
}
_SEPARATORS = {",": ".csv", "\t": ".tsv", ";": ".csv", "|": ".csv"}
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")
_TABLE_BYTES = 1 << 16
"""Bytes at the beginning of a file in which all rows of a table must have the same number of cells."""
_TABLE_ROWS = 4
"""Complete rows below the column names that a table must have."""


def recognise_labelled(suffix: str, beginning: bytes = b"") -> str:
    """Returns, as the end of a sentence, which kind of labelled data a file with this suffix and beginning looks like
    and what to do with it; "" for other files."""
    what = LABELLED[".conll"] if beginning.startswith(b"-DOCSTART-") else LABELLED.get(suffix) or _table(beginning)
    return what and (
        f"looks like {what}, and its labels and separators would be learnt as text. Write only the text to a .txt "
        'file, or to .jsonl as {"text": "..."} per line, or use --format text if the file is meant as text'
    )


def _table(beginning: bytes) -> str:
    """Returns the kind of table that begins like this, or "".

    The first line of a table has different column names, each a single word. Prose has spaces after its separators, and
    its lines do not all have the same number of them.
    """
    text = beginning[:_TABLE_BYTES].removeprefix(BOM_UTF8).decode("utf-8", "replace")
    header = text.partition("\n")[0].rstrip("\r")
    for separator, suffix in _SEPARATORS.items():
        names = [cell.strip('"' if separator == "," else ' "') for cell in header.split(separator)]
        if len(set(names)) == len(names) > 1 and all(map(_COLUMN_NAME.fullmatch, names)):
            *rows, _ = read_cells(beginning[:_TABLE_BYTES], suffix)  # the beginning may end within the last row
            equal = all(len(cells) == len(names) for _, cells, problem in rows if not problem)
            return LABELLED[suffix] if equal and len(rows) > _TABLE_ROWS else ""
    return ""


def refuse_corpus(path: Path) -> None:
    """Raises DataError if the path is a corpus that `lambert prepare` wrote."""
    if is_corpus(path):
        raise DataError(f"{path} is a corpus that `lambert prepare` wrote: name the text that it was made from.")
