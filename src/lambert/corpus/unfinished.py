"""A corpus that is being written from parts. After a kill, the same command continues it.

WORK/tokens/
├── causes.json     hash of everything that determines the corpus
├── corpus/         the corpus as far as it is written, renamed to `out` at the end
├── learnt          SHA-256 of the tokenizer.json in it, if it was learnt
├── state.json      counts, and the lengths of the files at that time: what `Sink` needs to continue
└── seen.bin        hashes of the documents in it
"""

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lambert.core.contents import sha256
from lambert.core.errors import DataError
from lambert.core.files import atomic_folder, delete_folder, make_folder, remove_all_leftovers, replace_files, sync
from lambert.corpus import tokenizer
from lambert.corpus.splits import STATE, Sink

_CAUSES, _LEARNT = "causes.json", "learnt"


class Unfinished:
    """The folder of a corpus that is being written. One process at a time may use it."""

    def __init__(self, keep: Path, causes: Sequence[Any]) -> None:
        """`causes` is everything that determines the corpus, as JSON values."""
        self.keep, self.folder, self._causes = keep, keep / "corpus", causes

    def begin(self, threshold: float) -> None:
        """Creates the folder, or keeps it if what it holds has the same causes and this threshold of held-out
        documents. Raises OSError if the disk refuses a write."""
        values = json.dumps([*self._causes, threshold], sort_keys=True)
        described = hashlib.sha256(values.encode()).hexdigest().encode()
        path = self.keep / _CAUSES
        if not path.is_file() or path.read_bytes() != described:
            self.forget()
            make_folder(self.folder)
            replace_files({path: described})
        remove_all_leftovers(self.keep)
        make_folder(self.folder)

    def tokenizer(self) -> Any | None:
        """Returns the tokenizer that was learnt for this corpus, or None."""
        with suppress(OSError):
            if (self.keep / _LEARNT).read_text() == sha256(self.folder / tokenizer.JSON):
                return tokenizer.load(self.folder)
        return None

    def save(self, learnt: Any) -> None:
        """Writes a tokenizer that was learnt for this corpus."""
        tokenizer.save(learnt, self.folder)
        replace_files({self.keep / _LEARNT: sha256(self.folder / tokenizer.JSON).encode()})

    def sink(self, vocabulary: int, seed: int, threshold: float, min_tokens: int) -> Sink:
        """Returns the Sink of the corpus, which continues from what an earlier one saved, if that is not damaged."""
        try:
            return Sink(self.folder, vocabulary, seed, threshold, min_tokens, self.keep)
        except DataError:
            (self.keep / STATE).unlink()
            return Sink(self.folder, vocabulary, seed, threshold, min_tokens, self.keep)

    def size(self) -> int:
        """Returns the number of bytes that are written."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    @contextmanager
    def published(self, out: Path) -> Iterator[Path]:
        """Yields the folder of the corpus, which is renamed to `out` if the block succeeds, and kept if it fails.
        Raises OSError if the disk refuses a write, or if `out` is a folder that is not empty."""
        yield self.folder
        for path in (*sorted(self.folder.rglob("*")), self.folder):
            sync(path)
        try:
            make_folder(out.parent)
            self.folder.rename(out)
            sync(out.parent)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with atomic_folder(out) as copy:  # on another file system
                shutil.copytree(self.folder, copy, dirs_exist_ok=True)
        self.forget()

    def forget(self) -> None:
        """Deletes everything."""
        if self.keep.is_dir():
            delete_folder(self.keep)
