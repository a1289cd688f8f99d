"""The prepared corpus on disk: token streams that plain numpy reads.

    corpus/
    ├── manifest.json                counts, hashes, the tokenizer's hash, the format's version
    ├── tokenizer.json  vocab.txt
    ├── train/    00000.bin ...   little-endian uint16 (uint32 above 65,536 pieces), whole documents, bounded size
    │             index.npy       int64 [sentences, 2]: where each sentence ends, in tokens; its document's number
    └── heldout/  the same        documents kept apart for evaluation

    ends, documents = np.load("train/index.npy", mmap_mode="r").T
    tokens = np.concatenate([np.fromfile(shard, "<u2") for shard in sorted(Path("train").glob("*.bin"))])
    sentence_7 = tokens[ends[6]:ends[7]]

Token numbers run through all shards of a split. Sentences hold no special tokens.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.errors import DataError

FORMAT_VERSION = 1
SPLITS = ("train", "heldout")
SHARD_BYTES = 128 * 2**20  # bounded, so that one shard is one request to remote storage


def token_type(vocabulary: int) -> np.dtype[Any]:
    """The narrowest little-endian type that holds every id of a vocabulary."""
    return np.dtype("<u2") if vocabulary <= 2**16 else np.dtype("<u4")


class SplitWriter:
    """Writes one split, a document at a time, in bounded memory; `close` completes it and returns its counts."""

    def __init__(self, folder: Path, vocabulary: int, shard_bytes: int = SHARD_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.dtype, self.shard_bytes = folder, token_type(vocabulary), shard_bytes
        self.documents = self.sentences = self.tokens = 0
        self.shards: list[dict[str, Any]] = []
        self._shard: Any = None
        self._index = (folder / "index.rows").open("wb")

    def add(self, ids: npt.NDArray[Any], lengths: npt.NDArray[Any], documents: npt.NDArray[Any]) -> None:
        """Appends whole documents: their ids [T], the lengths of their sentences [n], none of them zero, and the
        document of each sentence [n], numbered from 0 within this call without gaps."""
        rows = np.empty((len(lengths), 2), dtype="<i8")
        rows[:, 0] = self.tokens + np.cumsum(lengths)
        rows[:, 1] = self.documents + documents
        self._index.write(rows.tobytes())
        if self._shard is None:
            path = self.folder / f"{len(self.shards):05d}.bin"
            self._shard, self._hash, self._bytes = path.open("wb"), hashlib.sha256(), 0
        data = ids.astype(self.dtype).tobytes()
        self._shard.write(data)
        self._hash.update(data)
        self._bytes += len(data)
        self.tokens += len(ids)
        self.sentences += len(lengths)
        self.documents += int(documents[-1]) + 1 if len(documents) else 0
        if self._bytes >= self.shard_bytes:
            self._close_shard()

    def _close_shard(self) -> None:
        self._shard.flush()
        os.fsync(self._shard.fileno())
        self._shard.close()
        tokens = self._bytes // self.dtype.itemsize
        name = Path(self._shard.name).name
        self.shards.append({"file": name, "tokens": tokens, "bytes": self._bytes, "sha256": self._hash.hexdigest()})
        self._shard = None

    def abandon(self) -> None:
        """Lets go of the open files without completing anything, for when writing failed."""
        for file in (self._shard, self._index):
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()

    def close(self) -> dict[str, Any]:
        """Completes shard and index. Returns documents, sentences, tokens and the list of shards for the manifest."""
        if self._shard is not None:
            self._close_shard()
        self._index.close()
        rows = self.folder / "index.rows"
        index = self.folder / "index.npy"
        with index.open("wb") as out, rows.open("rb") as data:
            header = {"descr": "<i8", "fortran_order": False, "shape": (self.sentences, 2)}
            np.lib.format.write_array_header_1_0(out, header)
            while chunk := data.read(1 << 22):
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        rows.unlink()
        counts = {"documents": self.documents, "sentences": self.sentences, "tokens": self.tokens}
        return {**counts, "shards": self.shards, "index_sha256": sha256(index)}


class Split:
    """One split of a prepared corpus, memory-mapped.

    `ends` [sentences] are the tokens' ends, `documents` [sentences] the document numbers.
    """

    def __init__(self, corpus: Path, name: str = "train") -> None:
        self.corpus, self.name = corpus, name
        manifest = read_manifest(corpus)
        entry = manifest["splits"][name]
        self.vocabulary: int = manifest["vocabulary"]
        self.tokenizer_sha256: str = manifest["tokenizer_sha256"]
        dtype = token_type(self.vocabulary)
        folder = corpus / name
        self._maps: list[npt.NDArray[Any]] = []
        for shard in entry["shards"]:
            path = folder / shard["file"]
            if not path.is_file() or path.stat().st_size != shard["bytes"]:
                raise DataError(f"{path} is missing or not {shard['bytes']} bytes long. Run `lambert prepare` again.")
            self._maps.append(np.memmap(path, dtype=dtype, mode="r"))
        self._starts = np.cumsum([0, *(shard["tokens"] for shard in entry["shards"])])
        try:
            index = np.load(folder / "index.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{folder / 'index.npy'} cannot be read ({error}). Run `lambert prepare` again.") from error
        if index.shape != (entry["sentences"], 2):
            raise DataError(f"{folder / 'index.npy'} does not match the manifest. Run `lambert prepare` again.")
        self.ends: npt.NDArray[np.int64] = index[:, 0]
        self.documents: npt.NDArray[np.int64] = index[:, 1]
        self.tokens = int(self._starts[-1])

    def take(self, start: int, end: int) -> npt.NDArray[Any]:
        """Token ids number `start` to `end` of the split; within a document this is a view, never a copy."""
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


def read_manifest(corpus: Path) -> dict[str, Any]:
    """The manifest of a prepared corpus. Raises DataError where there is none or it is of another format."""
    path = corpus / "manifest.json"
    if not path.is_file():
        near: Sequence[str] = sorted(str(p.parent) for p in corpus.parent.glob("*/manifest.json"))[:3]
        hint = f" Nearby: {', '.join(near)}." if near else " Make one with `lambert prepare`."
        raise DataError(f"No prepared corpus at {corpus} (no manifest.json).{hint}")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}. Run `lambert prepare` again.") from error
    found = manifest.get("format_version") if isinstance(manifest, dict) else None
    if found != FORMAT_VERSION:
        raise DataError(
            f"{path} is of format {found}, this version reads {FORMAT_VERSION}. Run `lambert prepare` again."
        )
    return manifest


def sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
