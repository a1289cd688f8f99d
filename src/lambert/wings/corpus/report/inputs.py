"""Tables about the input files of a corpus: kept and dropped documents, and statistics of their first tokens."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lambert.core.errors import LambertError
from lambert.core.urls import is_remote
from lambert.text.encodings import look_up_encoding
from lambert.text.tokenizers import roles
from lambert.text.tokenizers.encoding import Encoder
from lambert.verbs.report.cells import table
from lambert.wings.corpus.reading.readers import Layout, read

FILES = 24
"""Maximum number of input files that are read."""
MOST = 50
"""Number of input files whose counts are shown, each in a row."""
CHARACTERS = 1 << 17
"""Minimum number of characters that are read of a file, if it has as many."""


_LABELS = {"short": "short", "duplicate": "exact duplicate", "weight": "left out by weight", "repeated": "repeats"}


def make_files_table(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a table of the kept and dropped documents of each input file, the first `MOST` ones and the others
    together. It is empty if the corpus was made by a version that did not count them."""
    entries = [entry for entry in manifest["inputs"] if isinstance(entry.get("documents"), Mapping)]
    kinds = [*dict.fromkeys(kind for entry in entries for kind in entry["documents"] if kind not in ("read", "kept"))]
    names = ["read", *(kind for kind in kinds if kind != "repeated"), *(("repeated",) if "repeated" in kinds else ())]

    def row(label: str, some: Sequence[Mapping[str, Any]]) -> list[str]:
        counts = [sum(entry["documents"].get(name, 0) for entry in some) for name in (*names, "kept")]
        return [label, *(f"{count:,}" for count in (*counts, sum(entry["tokens"] for entry in some)))]

    rows = [row(entry["file"], [entry]) for entry in entries[:MOST]]
    if len(entries) > MOST:
        rows.append(row(f"{len(entries) - MOST:,} more files", entries[MOST:]))
    if len(entries) > 1:
        rows.append(row("all", entries))
    titles = [_LABELS.get(name, name).capitalize() for name in (*names, "kept", "tokens")]
    return table("Documents of each input file", ["Input", *titles], rows)


def make_inputs_table(manifest: Mapping[str, Any], learnt: Any) -> dict[str, Any]:
    """Returns a table of the documents at the beginning of each input file, before any filter, for at most `FILES`
    files at equal distances in their list."""
    entries, settings = manifest["inputs"], manifest["settings"]
    chosen = [entries[len(entries) * n // min(FILES, len(entries))] for n in range(min(FILES, len(entries)))]
    encode = Encoder(learnt.to_str(), settings.get("language", "en"), settings.get("lines", "auto"), 16 << 20)
    unknown = roles.specials(learnt).unk
    rows = [_make_row(entry, settings, encode, unknown) for entry in chosen]
    columns = ["Input", "MB", "Documents", "Characters", "Tokens", "Characters of a token", "Unknown"]
    return table("Inputs", columns, rows)


def _make_row(entry: Mapping[str, Any], settings: Mapping[str, Any], encode: Encoder, unknown: int) -> list[str]:
    if is_remote(entry["file"]):
        return [f"{entry['file']} (is remote)", f"{entry['bytes'] / 1e6:,.1f}", *[""] * 5]
    path = Path(entry["file"])
    head = [str(path), f"{entry['bytes'] / 1e6:,.1f}"]
    try:
        if path.stat().st_size != entry["bytes"]:
            return [f"{path} (has changed)", head[1], *[""] * 5]
        texts = list(_read_beginning(path, settings))
    except OSError:
        return [f"{path} (is gone)", head[1], *[""] * 5]
    except LambertError as error:
        return [f"{path} ({error})", head[1], *[""] * 5]
    encoded = encode(texts)
    tokens, characters = len(encoded.ids_T), sum(map(len, texts))
    rate = np.count_nonzero(encoded.ids_T == unknown) / max(tokens, 1)
    return [
        *head, f"{len(texts):,}", f"{characters:,}", f"{tokens:,}", f"{characters / max(tokens, 1):.2f}", f"{rate:.3%}"
    ]  # fmt: skip


def _read_beginning(path: Path, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yields the first documents of a file, the last of them cut."""
    kind = settings.get("format", "auto")
    if ":" in kind:
        return  # a page must not run code that a manifest names
    encoding = look_up_encoding(settings.get("encoding", "utf-8"))
    layout = Layout(settings.get("documents", "file"), settings.get("text_field", "text"), encoding=encoding)
    left = CHARACTERS
    for piece in read(path, layout, kind):
        if piece.text:
            yield piece.text[:left]
            left -= len(piece.text)
        if left <= 0:
            return
