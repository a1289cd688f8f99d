import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambert.core.errors import DataError, UsageError
from lambert.core.shards import with_hash
from lambert.wings.corpus.config import PrepareConfig, VerifyCorpusConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.verbs.verify import run, verify


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    text = folder / "text.txt"
    words = ["the", "river", "runs", "under", "an", "old", "stone", "bridge", "near", "the", "quiet", "road", "to"]
    text.write_text("\n\n".join(f"{' '.join(words[n % 7 :])} {n}. And {words[n % 9]}." for n in range(60)))
    prepare(PrepareConfig((text,), folder / "out", documents="blank-line", heldout=0.2, vocabulary=100, min_tokens=2))
    return folder


@pytest.fixture
def corpus(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole / "out", tmp_path / "out"))


def rewrite(corpus: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = corpus / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["manifest_sha256"]
    change(manifest)
    path.write_text(json.dumps(with_hash(manifest)))


def rehash(corpus: Path, name: str) -> Callable[[dict[str, Any]], Any]:
    from lambert.core.contents import digests

    def change(manifest: dict[str, Any]) -> None:
        split = manifest["splits"]["train"]
        split["index_sha256"], split["index_blocks"] = digests(corpus / "train" / "index.npy")
        shard = split["shards"][0]
        shard["sha256"], shard["blocks"] = digests(corpus / "train" / shard["file"])

    return change


def test_a_whole_corpus_is_verified(corpus: Path) -> None:
    manifest = verify(corpus)
    assert manifest["inputs_changed"] == manifest["inputs_gone"] == []
    lines: list[str] = []
    assert run(VerifyCorpusConfig(corpus), lines.append).folder == corpus
    assert lines[0].startswith("train ")
    assert lines[-2] == "inputs   1 file, unchanged"


def test_inputs_that_changed_or_are_gone_are_named(corpus: Path, whole: Path) -> None:
    text = whole / "text.txt"
    before = text.read_bytes()
    text.write_bytes(before[:-1] + b"!")
    try:
        assert verify(corpus)["inputs_changed"] == [str(text)]
        text.rename(whole / "moved")
        lines: list[str] = []
        run(VerifyCorpusConfig(corpus), lines.append)
        assert f"inputs   1 of 1 missing: {text}" in lines
    finally:
        (whole / "moved").unlink(missing_ok=True)
        text.write_bytes(before)


def test_remote_inputs_are_not_compared(corpus: Path) -> None:
    url = "https://example.org/text.txt"
    rewrite(corpus, lambda manifest: manifest["inputs"][0].update(file=url))
    lines: list[str] = []
    run(VerifyCorpusConfig(corpus), lines.append)
    assert lines[-2] == f"inputs   1 of 1 remote, and were not compared: {url}"


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer_config.json"])
def test_a_lost_file_of_the_tokenizer_is_found(corpus: Path, name: str) -> None:
    (corpus / name).unlink()
    with pytest.raises(DataError, match=name):
        verify(corpus)


FILES = [
    "train/00000.bin",
    "train/index.npy",
    "heldout/00000.bin",
    "tokenizer.json",
    "vocab.txt",
    "tokenizer_config.json",
]


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_of_any_file_is_found(corpus: Path, name: str) -> None:
    data = bytearray((corpus / name).read_bytes())
    data[len(data) // 2] ^= 1
    (corpus / name).write_bytes(data)
    with pytest.raises(DataError, match=name.rsplit("/", maxsplit=1)[-1]):
        verify(corpus)


@pytest.mark.parametrize(
    "what", ["documents", "sentences", "tokens", "unknown_rate", "unigram_entropy", "unigram_cross_entropy"]
)
def test_a_wrong_count_is_found(corpus: Path, what: str) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["splits"]["heldout"][what] += 1

    rewrite(corpus, change)
    with pytest.raises(DataError, match=r"manifest|does not match"):
        verify(corpus)


def test_a_wrong_index_is_found_although_its_hash_is_right(corpus: Path) -> None:
    index = np.load(corpus / "train" / "index.npy")
    index[3, 1] += 7
    np.save(corpus / "train" / "index.npy", index)
    rewrite(corpus, rehash(corpus, "train"))
    with pytest.raises(DataError, match="do not increase one by one"):
        verify(corpus)
    index[3] = index[2]
    np.save(corpus / "train" / "index.npy", index)
    rewrite(corpus, rehash(corpus, "train"))
    with pytest.raises(DataError, match="do not increase"):
        verify(corpus)


def test_changed_tokens_are_found_although_their_hash_is_right(corpus: Path) -> None:
    path = corpus / "train" / "00000.bin"
    ids = np.fromfile(path, "<u2")
    ids[: len(ids) // 2] = 1
    ids.tofile(path)
    rewrite(corpus, rehash(corpus, "train"))
    with pytest.raises(DataError, match="unknown_rate"):
        verify(corpus)


def test_a_file_that_the_manifest_does_not_name_is_found(corpus: Path) -> None:
    (corpus / "train" / "00001.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"00001\.bin is not a file of this corpus"):
        verify(corpus)


def test_what_is_missing_is_named(corpus: Path) -> None:
    with pytest.raises(UsageError, match=r"requires --input and --out\. Give"):
        PrepareConfig()
    with pytest.raises(UsageError, match=r"requires --out\. Give"):
        PrepareConfig((corpus,))
