"""Writes a corpus from parts. After a kill, the same command continues it; after the end, a command with more parts
does.

WORK/tokens/
├── causes.json     hash of the settings, threshold of held-out documents, keys of the parts, and `out` when the corpus
│                   is finished
├── corpus/         the corpus as far as it is written, renamed to `out` at the end
├── learnt          SHA-256 of the tokenizer.json in it, if it was learnt
├── state.json      counts, and the lengths of the files at that time: what `Sink` needs to continue
├── seen.bin        hashes of the documents in it
└── files.bin       counts of the documents of input files
"""

import errno
import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lambert.core.contents import sha256
from lambert.core.errors import DataError
from lambert.core.files import (
    atomic_folder,
    delete_folder,
    make_folder,
    read_file,
    remove_all_leftovers,
    replace_files,
    sync,
)
from lambert.core.shards import SPLITS, check_corpus, has_hash, with_hash
from lambert.text.tokenizers import tokenizer
from lambert.wings.corpus.disk import digest, disk_errors
from lambert.wings.corpus.tokens.splits import STATE, Sink, read_state

_CAUSES, _LEARNT = "causes.json", "learnt"


class Unfinished:
    """The folder of a corpus that is being written. One process at a time may use it.

    The first parts determine the content of the corpus after them, so what an earlier call wrote is used if that call
    had the same causes and began with the same parts.
    """

    KEPT = "What was written is kept, and the same command continues"

    def __init__(self, keep: Path, causes: Sequence[Any], parts: Sequence[str]) -> None:
        """`causes` is everything that determines the corpus besides the content of its `parts`, as JSON values."""
        self.keep, self.folder, self._causes, self._parts = keep, keep / "corpus", causes, list(parts)

    def begin(self, threshold: float) -> None:
        """Creates the folder, with the usable results of an earlier call for this threshold of held-out documents.
        Raises OSError if the disk refuses a write."""
        before = self._before()
        known = {"causes": self._hash(), "threshold": threshold}
        if any(before.get(name) != value for name, value in known.items()) or not self._can_continue(before):
            self.forget()
        make_folder(self.keep)
        remove_all_leftovers(self.keep)
        make_folder(self.folder)
        described = {**known, "parts": self._parts, "out": ""}
        if self._before() != described:
            replace_files({self.keep / _CAUSES: json.dumps(with_hash(described)).encode()})

    def _hash(self) -> str:
        return digest(self._causes)

    def _before(self) -> dict[str, Any]:
        """Returns the description of the earlier call; empty if there is none or it is damaged."""
        with suppress(OSError, ValueError, RecursionError, LookupError):
            values = json.loads(read_file(self.keep / _CAUSES))
            if has_hash(values):
                return {name: values[name] for name in ("causes", "threshold", "parts", "out")}
        return {}

    def _can_continue(self, before: Mapping[str, Any]) -> bool:
        """Returns whether the existing files can be used. If the earlier call finished its corpus, its tokens are
        copied first."""
        if before["parts"] == self._parts and not before["out"]:
            return True
        try:
            state = read_state(self.keep) or {"progress": {"sources": 0}}
            done = state["progress"]["sources"]
            if not done or before["parts"][:done] != self._parts[:done]:
                return False
            if before["out"]:
                self._copy(Path(before["out"]), {entry["file"] for entry in state["splits"]["train"]["shards"]})
        except (DataError, OSError, KeyError, TypeError):
            return False
        return True

    def _copy(self, corpus: Path, complete: Collection[str]) -> None:
        """Copies the tokens of a finished corpus. Complete shards of training data become hard links if the disk allows
        it."""
        check_corpus(corpus)
        for split in SPLITS:
            make_folder(self.folder / split)
            for path in (corpus / split).iterdir():
                copy = self.folder / split / path.name
                copy.unlink(missing_ok=True)
                try:
                    if split != SPLITS[0] or path.name not in complete:
                        raise OSError
                    copy.hardlink_to(path)
                except OSError:
                    shutil.copyfile(path, copy)
        for path in corpus.glob("*token*"):
            shutil.copyfile(path, self.folder / path.name)

    def tokenizer(self) -> Any | None:
        """Returns the tokenizer that was learnt for this corpus, or None."""
        with suppress(OSError):
            if read_file(self.keep / _LEARNT).decode() == sha256(self.folder / tokenizer.JSON):
                return tokenizer.load(self.folder)
        return None

    def save(self, learnt: Any) -> None:
        """Writes a tokenizer that was learnt for this corpus."""
        tokenizer.save(learnt, self.folder)
        replace_files({self.keep / _LEARNT: sha256(self.folder / tokenizer.JSON).encode()})

    def sink(self, **settings: Any) -> Sink:
        """Returns the Sink of the corpus with these `settings`, which continues from the state that an earlier one
        saved, unless that is damaged."""
        try:
            return Sink(self.folder, keep=self.keep, **settings)
        except DataError:
            (self.keep / STATE).unlink()
            return Sink(self.folder, keep=self.keep, **settings)

    def size(self) -> int:
        """Returns the number of bytes that are written."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    @contextmanager
    def publish(self, out: Path) -> Iterator[Path]:
        """Yields the folder of the corpus, which is renamed to `out` if the block succeeds and kept if it fails. The
        state that a corpus of more parts needs to continue is kept too.

        Raises OSError if the disk of the work folder refuses a write, MachineError if that of `out` does, and
        UsageError if `out` is a folder that is not empty.
        """
        yield self.folder
        for path in (*sorted(self.folder.rglob("*")), self.folder):
            sync(path)
        with disk_errors(out, "out", self.KEPT):
            self._move(out)
        self.finish(out, self._before()["threshold"])

    def finish(self, out: Path, threshold: float) -> None:
        """Records, if necessary, that the corpus of these causes, parts and threshold is in `out`, and deletes what a
        kill has left. Raises OSError if the disk refuses a write."""
        before = self._before()
        if before != {"causes": self._hash(), "threshold": threshold, "parts": self._parts, "out": ""}:
            return
        remove_all_leftovers(self.keep)
        if self.folder.is_dir():
            delete_folder(self.folder)
        replace_files({self.keep / _CAUSES: json.dumps(with_hash({**before, "out": str(out.absolute())})).encode()})

    def _move(self, out: Path) -> None:
        try:
            make_folder(out.parent)
            self.folder.rename(out)
            sync(out.parent)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with atomic_folder(out) as copy:  # on another file system
                shutil.copytree(self.folder, copy, dirs_exist_ok=True)

    def forget(self) -> None:
        """Deletes everything."""
        if self.keep.is_dir():
            delete_folder(self.keep)
