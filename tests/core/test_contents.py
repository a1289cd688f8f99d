"""Content against the hashes that were taken of it, and what is told when it is another."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from lambert.core import contents, shards
from lambert.core.contents import BLOCK_BYTES, HashedFile, check, check_sums, digests, sha256, write_sums
from lambert.core.errors import DataError
from lambert.core.shards import Split, SplitWriter, check_corpus, content_hash, read_manifest, with_hash


def prepared(folder: Path, tokens: int = 3 * BLOCK_BYTES, seed: int = 0) -> Path:
    """A corpus of random sentences of ten tokens, a hundred in a document, in shards of a MiB and a half or so."""
    writer = SplitWriter(folder / "train", 1000, shard_bytes=3 * BLOCK_BYTES // 2)
    draw = np.random.default_rng(seed)
    for _ in range(tokens // 100_000):
        writer.add(draw.integers(0, 1000, 100_000), np.full(10_000, 10), np.arange(10_000) // 100)
    (folder / "tokenizer.json").write_text("{}")
    values: dict[str, object] = {"format_version": 1, "vocabulary": 1000}
    values["tokenizer_sha256"] = sha256(folder / "tokenizer.json")
    values["splits"] = {"train": writer.close(), "heldout": SplitWriter(folder / "heldout", 1000).close()}
    (folder / "manifest.json").write_text(json.dumps(with_hash(values)))
    return folder


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("name", ["00000.bin", "00001.bin", "index.npy"])
@pytest.mark.parametrize("block", [0, 1])
def test_a_sample_finds_a_flipped_byte_in_its_blocks(
    name: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = prepared(tmp_path / "corpus")
    check_corpus(corpus)
    path, at = corpus / "train" / name, block * BLOCK_BYTES + 777
    flip(path, at)
    with pytest.raises(DataError, match=f"{path} was changed since .*: its SHA-256 is not that of the manifest"):
        check_corpus(corpus)
    monkeypatch.setattr(contents, "SAMPLE_BLOCKS", 7)  # of more blocks
    caught = ""
    for moment in range(20):  # each moment draws other blocks
        monkeypatch.setattr(contents.time, "time_ns", lambda moment=moment: moment)
        try:
            check_corpus(corpus)
        except DataError as error:
            caught = str(error)
    low, high = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES
    assert caught.startswith(f"{path} was changed since `lambert prepare` wrote it: bytes {low:,} to {high:,} do not")
    with pytest.raises(DataError, match="its SHA-256"):
        check_corpus(corpus, whole=True)


def test_every_block_is_in_a_sample_sometimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, read = [], set()
    for number, blocks in enumerate((3, 0, 5)):
        path = tmp_path / str(number)
        path.write_bytes(os.urandom(blocks * BLOCK_BYTES + 10 * (blocks > 0)))
        files.append(HashedFile(path, *digests(path)))
    monkeypatch.setattr(contents, "SAMPLE_BLOCKS", 2)
    monkeypatch.setattr(
        HashedFile, "check_blocks", lambda file, numbers: read.update((file.path.name, n) for n in numbers)
    )
    for _ in range(100):
        before = len(read)
        check(files, whole=False)
        assert len(read) - before <= 2
    assert read == {("0", n) for n in range(4)} | {("2", n) for n in range(6)}


def test_a_manifest_without_hashes_of_blocks_or_itself_is_read(tmp_path: Path) -> None:
    corpus = prepared(tmp_path / "corpus")
    manifest = read_manifest(corpus)
    before = content_hash(manifest)
    del manifest["manifest_sha256"], manifest["splits"]["train"]["index_blocks"]
    for shard in manifest["splits"]["train"]["shards"]:
        del shard["blocks"]
    (corpus / "manifest.json").write_text(json.dumps(manifest))
    check_corpus(corpus)
    assert content_hash(read_manifest(corpus)) == before
    flip(corpus / "train" / "00000.bin", 5)
    with pytest.raises(DataError, match=r"00000.bin was changed"):
        check_corpus(corpus)


def test_a_changed_manifest_says_so(tmp_path: Path) -> None:
    corpus = prepared(tmp_path / "corpus")
    path = corpus / "manifest.json"
    path.write_text(path.read_text().replace('"vocabulary": 1000', '"vocabulary": 1001'))
    with pytest.raises(DataError, match=f"{path} was changed since .* its manifest_sha256 does not match"):
        read_manifest(corpus)


def test_what_is_written_under_a_mapped_split_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_WATCH_SECONDS", 0.0)
    split = Split(prepared(tmp_path / "corpus"))
    path = split.corpus / "train" / "00001.bin"
    os.utime(path)  # the same content
    split.watch()
    aside = path.with_name("aside")
    aside.write_bytes(b"\0" * path.stat().st_size)
    tokens = split.take(0, split.tokens)
    path.rename(path.with_name("before"))
    aside.rename(path)  # the old file stays mapped
    split.watch()
    assert (split.take(0, split.tokens) == tokens).all()
    flip(split.corpus / "train" / "00000.bin", 99)
    with pytest.raises(DataError, match=r"00000\.bin was changed since"):
        split.watch()


def test_ids_beyond_the_vocabulary_are_named_with_their_place(tmp_path: Path) -> None:
    split = Split(prepared(tmp_path / "corpus"))
    first = len(split._maps[0])
    path = split.corpus / "train" / "00001.bin"
    with path.open("r+b") as file:
        file.seek(2 * 4321)
        file.write(b"\xe8\x03")
    split.check_ids(0, first + 4321)
    split.check_ids(first + 4322, split.tokens)
    for low, high in ((0, split.tokens), (first + 4321, first + 4322), (first - 10, first + 5000)):
        with pytest.raises(DataError, match=rf"{path} is damaged: token 4,321 of it has the id 1000, beyond"):
            split.check_ids(low, high)


def test_a_model_folder_and_its_sums(tmp_path: Path) -> None:
    check_sums(tmp_path)  # none
    names = ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "README.md")
    for name in names:
        (tmp_path / name).write_text(name)
    write_sums(tmp_path)
    lines = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == list(names[:-1])
    (tmp_path / "README.md").unlink()
    check_sums(tmp_path)
    for name in names[:-1]:
        path = tmp_path / name
        flip(path, 3)
        with pytest.raises(DataError, match=re.escape(f"{path} was changed since it was written: its SHA-256")):
            check_sums(tmp_path)
        flip(path, 3)
        path.rename(tmp_path / "away")
        with pytest.raises(DataError, match=re.escape(f"{path} is missing")):
            check_sums(tmp_path)
        (tmp_path / "away").rename(path)
    check_sums(tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("vocabulary", None), ("vocabulary", -1), ("vocabulary", True), ("vocabulary", 10**300), ("splits", []),
        ("tokenizer_sha256", 3), ("splits.train", None), ("splits.heldout.documents", "8"),
        ("splits.train.shards", {}), ("splits.train.shards.0", 1), ("splits.train.shards.1.blocks", 0),
        ("splits.train.unigram_entropy", "high"),
    ],
)  # fmt: skip
def test_a_manifest_of_another_shape_says_where(place: str, value: object, tmp_path: Path) -> None:
    path = prepared(tmp_path / "corpus") / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["manifest_sha256"]
    *above, last = place.split(".")
    found = manifest
    for name in above:
        found = found[int(name) if isinstance(found, list) else name]
    found[int(last) if isinstance(found, list) else last] = value
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=rf"^{path}: {place} is missing or not what `lambert prepare` writes\. Restore"):
        read_manifest(path.parent)


@pytest.mark.parametrize("change", [{"file": "../train/00000.bin"}, {"file": "."}, {"tokens": 1}, {"bytes": 3}])
def test_a_manifest_whose_shards_do_not_add_up_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    path = prepared(tmp_path / "corpus") / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["train"]["shards"][0] |= change
    del manifest["manifest_sha256"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=f"^{path}: .* is not a shard of"):
        read_manifest(path.parent)
