"""The prepared corpus on disk: token streams that numpy alone can read.

    corpus/
    ├── manifest.json                counts, hashes of all files, version of the format
    ├── tokenizer.json  vocab.txt
    ├── train/    00000.bin ...   little-endian uint16 (uint32 above 65,536 pieces), whole documents, bounded size
    │             index.npy       int64 [sentences, 2]: end of each sentence, in tokens; number of its document
    └── heldout/  the same files      documents held out for evaluation

    ends, documents = np.load("train/index.npy", mmap_mode="r").T
    tokens = np.concatenate([np.fromfile(shard, "<u2") for shard in sorted(Path("train").glob("*.bin"))])
    sentence_7 = tokens[ends[6]:ends[7]]

Tokens are numbered through all shards of a split. Sentences contain no special tokens.
"""

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.contents import REMEDY, HashedFile, check, digests, misfit
from lambert.core.errors import DataError
from lambert.core.files import check_regular, open_regular, parse_json, read_file
from lambert.core.unsupported import is_work_folder
from lambert.core.urls import public

FORMAT_VERSION = 1
SPLITS = ("train", "heldout")
_MANIFEST_HASH, RECORD_HASH = "manifest_sha256", "record_sha256"
_SHARD = {"file": str, "tokens": int, "bytes": int, "sha256": str, "blocks?": str}
_COUNTS = ("documents", "sentences", "tokens")
_SPLIT = {
    **dict.fromkeys(_COUNTS, int), "unigram_entropy?": float, "unigram_cross_entropy?": float,
    "shards": [_SHARD], "index_sha256": str, "index_blocks?": str,
}  # fmt: skip
_MANIFEST = {"vocabulary": int, "tokenizer_sha256": str, "splits": dict.fromkeys(SPLITS, _SPLIT)}
"""The parts of a manifest that every reader of a corpus relies on."""
_WATCH_SECONDS = 1.0  # minimum interval between two checks of the mapped files
_HEADER, _ROW = 128, 16  # bytes of the header of the index, for any number of rows, and of a row
SHARD_BYTES = 128 * 2**20  # small enough for a single request to remote storage


def token_type(vocabulary: int) -> np.dtype[Any]:
    """Returns the narrowest little-endian type that holds all ids of a vocabulary of this size."""
    return np.dtype("<u2") if vocabulary <= 2**16 else np.dtype("<u4")


class SplitWriter:
    """Writes one split document by document, in bounded memory. `close` completes the split and returns its counts.

    A shard ends with the document, or with the part of a document, that makes it `shard_bytes` or more. So the files do
    not depend on how many documents are added at once.
    """

    def __init__(
        self, folder: Path, vocabulary: int, shard_bytes: int = SHARD_BYTES, state: Mapping[str, Any] | None = None
    ) -> None:
        """With a `state` that `save` returned, truncates the files to their length at that time and continues. Raises
        DataError if they are shorter."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.dtype, self.shard_bytes = folder, token_type(vocabulary), shard_bytes
        state = state or {**dict.fromkeys(_COUNTS, 0), "shards": [], "bytes": 0}
        self.documents, self.sentences, self.tokens = (state[name] for name in _COUNTS)
        self.shards: list[dict[str, Any]] = list(state["shards"])
        self._bytes = int(state["bytes"])
        known = {entry["file"]: entry["bytes"] for entry in self.shards}
        for path in folder.glob("*.bin"):
            if path.name not in known and (path != self._path() or not self._bytes):
                path.unlink()
        for name, size in known.items():
            _check_length(folder / name, size)
        self._shard: Any = _reopen(self._path(), self._bytes) if self._bytes else None
        index = folder / "index.npy"
        self._index: Any = _reopen(index, _HEADER + self.sentences * _ROW) if self.sentences else index.open("w+b")
        if not self.sentences:
            self._index.write(bytes(_HEADER))

    def add(self, ids: npt.NDArray[Any], lengths: npt.NDArray[Any], documents: npt.NDArray[Any]) -> None:
        """Appends whole documents, or a part of one.

        Args:
            ids: Token ids of all documents [T].
            lengths: Number of tokens of each sentence [n], all positive.
            documents: Number of the document of each sentence [n], consecutive from 0 within this call; -1: that of the
                last sentence before this call.
        """
        ends = np.cumsum(lengths)
        rows = np.empty((len(lengths), 2), dtype="<i8")
        rows[:, 0] = self.tokens + ends
        rows[:, 1] = self.documents + documents
        self._index.write(rows.tobytes())
        data = ids.astype(self.dtype)
        ends = ends[np.flatnonzero(np.diff(documents, append=-2))]
        start = 0
        while start < len(data):
            if self._shard is None:
                self._shard, self._bytes = self._path().open("wb"), 0
            missing = -(-(self.shard_bytes - self._bytes) // self.dtype.itemsize)
            end = int(ends[min(int(np.searchsorted(ends, start + missing)), len(ends) - 1)])
            self._shard.write(data[start:end].tobytes())
            self._bytes += (end - start) * self.dtype.itemsize
            start = end
            if self._bytes >= self.shard_bytes:
                self._close_shard()
        self.tokens += len(ids)
        self.sentences += len(lengths)
        self.documents += int(documents[-1]) + 1 if len(documents) else 0

    def _path(self) -> Path:
        return self.folder / f"{len(self.shards):05d}.bin"

    def _close_shard(self) -> None:
        _flush(self._shard)
        self._shard.close()
        tokens = self._bytes // self.dtype.itemsize
        path = self._path()
        whole, blocks = digests(path)
        entry = {"file": path.name, "tokens": tokens, "bytes": self._bytes, "sha256": whole, "blocks": blocks}
        self.shards.append(entry)
        self._shard, self._bytes = None, 0

    def save(self) -> dict[str, Any]:
        """Flushes all data to disk and returns the state from which another object continues."""
        for file in (self._shard, self._index):
            if file is not None:
                _flush(file)
        return {**self._counts(), "shards": list(self.shards), "bytes": self._bytes}

    def _counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _COUNTS}

    def abandon(self) -> None:
        """Closes the files after a failed write, without completing the split."""
        for file in (self._shard, self._index):
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()

    def close(self) -> dict[str, Any]:
        """Completes the last shard and the index. Returns the split's entry in the manifest."""
        if self._shard is not None:
            self._close_shard()
        self._index.seek(0)
        header = {"descr": "<i8", "fortran_order": False, "shape": (self.sentences, 2)}
        np.lib.format.write_array_header_1_0(self._index, header)
        assert self._index.tell() == _HEADER
        _flush(self._index)
        self._index.close()
        whole, blocks = digests(self.folder / "index.npy")
        return {**self._counts(), "shards": self.shards, "index_sha256": whole, "index_blocks": blocks}


def _reopen(path: Path, size: int) -> Any:
    """Opens a file for appending after its first `size` bytes. Raises DataError if it is shorter."""
    _check_length(path, size)
    file = open_regular(path, "r+b")
    file.truncate(size)
    file.seek(size)
    return file


def _check_length(path: Path, size: int) -> None:
    if not path.is_file() or path.stat().st_size < size:
        raise DataError(f"{path} has fewer than {size} bytes.")


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


class Split:
    """One split of a prepared corpus, memory-mapped.

    Attributes:
        ends: Number of the token after the last one of each sentence [sentences].
        documents: Number of the document of each sentence [sentences].

    Raises:
        DataError: A file of the split is missing, or does not match the manifest.
    """

    def __init__(self, corpus: Path, name: str = "train") -> None:
        self.corpus, self.name = corpus, name
        manifest = read_manifest(corpus)
        entry = manifest["splits"][name]
        self.vocabulary: int = manifest["vocabulary"]
        self.tokenizer_sha256: str = manifest["tokenizer_sha256"]
        dtype = token_type(self.vocabulary)
        self._files = _files(corpus, name, entry)
        self._stamps = [file.stamp() for file in self._files]
        self._checked = time.monotonic()
        *shards, index_file = self._files
        self._maps: list[npt.NDArray[Any]] = []
        for file, shard in zip(shards, entry["shards"], strict=True):
            size = shard["bytes"]
            if not file.path.is_file() or file.path.stat().st_size != size:
                raise DataError(f"{file.path} is missing or not {size} bytes long. {REMEDY}")
            self._maps.append(np.memmap(check_regular(file.path), dtype=dtype, mode="r"))
        self._starts = np.cumsum([0, *(shard["tokens"] for shard in entry["shards"])])
        try:
            index = np.load(check_regular(index_file.path), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{index_file.path} cannot be read ({error}). {REMEDY}") from error
        if index.shape != (entry["sentences"], 2) or index.dtype != "<i8" or np.isfortran(index):
            raise DataError(f"{index_file.path} does not match the manifest. {REMEDY}")
        self.ends: npt.NDArray[np.int64] = index[:, 0]
        self.documents: npt.NDArray[np.int64] = index[:, 1]
        self.tokens = int(self._starts[-1])

    def take(self, start: int, end: int) -> npt.NDArray[Any]:
        """Returns the token ids from `start` to `end` - 1: a view, or a copy if they span several shards."""
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        offset = int(self._starts[shard])
        if end <= self._starts[shard + 1]:
            return self._maps[shard][start - offset : end - offset]
        parts, at = [], start
        while at < end:
            shard = int(np.searchsorted(self._starts, at, side="right")) - 1
            upto = min(end, int(self._starts[shard + 1]))
            parts.append(self._maps[shard][at - int(self._starts[shard]) : upto - int(self._starts[shard])])
            at = upto
        return np.concatenate(parts)

    def check_ids(self, start: int, end: int) -> None:
        """Raises DataError, which names the position, if a token from `start` to `end` - 1 is not in the vocabulary."""
        for shard in range(len(self._maps)):
            first = int(self._starts[shard])
            ids = self._maps[shard][max(start - first, 0) : max(end - first, 0)]
            if len(ids) and ids.max() >= self.vocabulary:
                at = int(np.argmax(ids >= self.vocabulary))
                raise DataError(
                    f"{self._files[shard].path} is damaged: token {max(start - first, 0) + at:,} of it has the id "
                    f"{ids[at]}, beyond the vocabulary of {self.vocabulary} pieces. {REMEDY}"
                )

    def watch(self) -> None:
        """Raises DataError if the content of a mapped file has changed since it was opened. Checks at most once a
        second. The mapping of a removed or replaced file keeps its content, so that is not an error."""
        if time.monotonic() - self._checked < _WATCH_SECONDS:
            return
        for number, file in enumerate(self._files):
            before, now = self._stamps[number], file.stamp()
            if before and now and now[0] == before[0] and now != before:
                file.check()
                self._stamps[number] = now
        self._checked = time.monotonic()


def _files(corpus: Path, name: str, entry: Mapping[str, Any]) -> list[HashedFile]:
    """Returns the shards of a split, then its index."""
    folder = corpus / name
    shards = [HashedFile(folder / shard["file"], shard["sha256"], shard.get("blocks", "")) for shard in entry["shards"]]
    return [*shards, HashedFile(folder / "index.npy", entry["index_sha256"], entry.get("index_blocks", ""))]


def check_corpus(corpus: Path, *, whole: bool = False) -> None:
    """Compares the files of a corpus with its manifest: all content with `whole` or of a small corpus, else a random
    sample. Raises DataError for a file that is missing or has changed."""
    manifest = read_manifest(corpus)
    splits = manifest["splits"]
    for name in splits:
        Split(corpus, name)
    check([file for name, entry in splits.items() for file in _files(corpus, name, entry)], whole=whole)
    tokenizer = corpus / "tokenizer.json"
    if not tokenizer.is_file():
        raise DataError(f"{tokenizer} is missing. {REMEDY}")
    HashedFile(tokenizer, manifest["tokenizer_sha256"]).check()


def content_hash(manifest: Mapping[str, Any]) -> str:
    """Returns a hash of the tokens and sentences of a corpus, independent of its path and its inputs."""
    splits = manifest["splits"].items()
    hashes = {name: [[shard["sha256"] for shard in entry["shards"]], entry["index_sha256"]] for name, entry in splits}
    return _digest(hashes)


def with_hash(values: Mapping[str, Any], key: str = _MANIFEST_HASH) -> dict[str, Any]:
    """Returns JSON values with a hash of themselves added as `key`."""
    return {**values, key: _digest(values)}


def has_hash(values: Any, key: str = _MANIFEST_HASH) -> bool:
    """Returns whether parsed JSON is what `with_hash` returned."""
    rest = {name: value for name, value in values.items() if name != key} if isinstance(values, dict) else {}
    return isinstance(values, dict) and values.get(key) == _digest(rest)


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def is_corpus(folder: Path) -> bool:
    """Returns whether a folder is a corpus that `lambert prepare` wrote."""
    return (folder / "manifest.json").is_file() and (folder / "tokenizer.json").is_file()


def read_manifest(corpus: Path) -> dict[str, Any]:
    """Returns the manifest of a prepared corpus. Raises DataError if it is missing, damaged or of another format."""
    path = corpus / "manifest.json"
    if not path.is_file():
        if remote := re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]+):/([^/].*)", str(corpus)):  # a Path has one slash here
            url = public(f"{remote[1]}://{remote[2]}")
            raise DataError(f"{url} is remote. Fetch it: `lambert corpus fetch --from {url} --out {Path(url).name}`.")
        if is_work_folder(corpus):
            raise DataError(f"{corpus} is a work folder of `lambert prepare`: name the corpus that was made with it.")
        near: Sequence[str] = sorted(str(p.parent) for p in corpus.parent.glob("*/manifest.json"))[:3]
        hint = f" Nearby: {', '.join(near)}." if near else " Create one with `lambert prepare`."
        if corpus.is_dir() and any(corpus.iterdir()):
            out = "prepared" if corpus.name == "corpus" else "corpus"
            hint = f" Run `lambert prepare --input {corpus} --out {out}` first."
        if (corpus.parent / path.name).is_file():
            hint = f" It is in one: name {corpus.parent}."
        raise DataError(f"No prepared corpus at {corpus} (no manifest.json).{hint}")
    try:
        manifest: dict[str, Any] = parse_json(read_file(path), surrogates=True)
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}. {REMEDY}") from error
    found = manifest.get("format_version") if isinstance(manifest, dict) else None
    if found != FORMAT_VERSION:
        raise DataError(f"{path} is of format {found}, this version reads {FORMAT_VERSION}. {REMEDY}")
    if _MANIFEST_HASH in manifest and not has_hash(manifest):
        raise DataError(
            f"{path} was changed since `lambert prepare` wrote it: its {_MANIFEST_HASH} does not match. {REMEDY}"
        )
    check_shape(path, manifest, _MANIFEST)
    width = token_type(manifest["vocabulary"]).itemsize
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            if Path(shard["file"]).name != shard["file"] or shard["bytes"] != shard["tokens"] * width:
                raise DataError(f"{path}: {shard['file']!r} is not a shard of {shard['tokens']} tokens. {REMEDY}")
        if sum(shard["tokens"] for shard in split["shards"]) != split["tokens"]:
            raise DataError(f"{path}: its shards do not have {split['tokens']} tokens in total. {REMEDY}")
    return manifest


def check_shape(path: Path | str, manifest: Mapping[str, Any], shape: Mapping[str, Any]) -> None:
    """Raises DataError with the first place where a manifest does not have the shape (`misfit`)."""
    if place := misfit(manifest, shape):
        raise DataError(f"{path}: {place} is missing or not what `lambert prepare` writes. {REMEDY}")
