"""The shards of a corpus: a format on disk that plain numpy reads."""

import json
from pathlib import Path

import numpy as np
import pytest

from lambert.core.errors import DataError
from lambert.core.shards import SPLITS, Split, SplitWriter, content_hash, read_manifest, token_type, with_hash

DOCUMENTS = [[[7, 8, 9], [10]], [[11, 12]], [[13], [14, 15], [16, 17, 18, 19]]]
"""Sentences of ids by document."""


def write(folder: Path, vocabulary: int = 1000, shard_bytes: int = 10) -> Path:
    """Writes DOCUMENTS as both splits: the first two in one call, and a new shard whenever one has `shard_bytes`."""
    splits = {}
    for name in SPLITS:
        writer = SplitWriter(folder / name, vocabulary, shard_bytes)
        for call in (DOCUMENTS[:2], DOCUMENTS[2:]):
            sentences = [(number, ids) for number, document in enumerate(call) for ids in document]
            ids = np.array([piece for _, ids in sentences for piece in ids])
            lengths = np.array([len(ids) for _, ids in sentences])
            writer.add(ids, lengths, np.array([number for number, _ in sentences]))
        splits[name] = writer.close()
    manifest = {"format_version": 1, "vocabulary": vocabulary, "tokenizer_sha256": "none", "splits": splits}
    (folder / "manifest.json").write_text(json.dumps(with_hash(manifest)))
    return folder


def test_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    corpus = write(tmp_path)
    assert {path.name for path in (corpus / "train").iterdir()} == {"00000.bin", "00001.bin", "index.npy"}
    assert (corpus / "train" / "00000.bin").read_bytes() == bytes([7, 0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0])
    assert (corpus / "train" / "00001.bin").read_bytes() == bytes(byte for id in range(13, 20) for byte in (id, 0))
    index = (corpus / "train" / "index.npy").read_bytes()
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (6, 2), }"
    assert index[:10] == b"\x93NUMPY\x01\x00" + (len(index) - 10 - 96).to_bytes(2, "little")
    assert index[10 : 10 + len(header)] == header
    rows = [(3, 0), (4, 0), (6, 1), (7, 2), (9, 2), (13, 2)]
    assert index[-96:] == b"".join(number.to_bytes(8, "little") for row in rows for number in row)


def test_numpy_reads_it_as_the_module_says(tmp_path: Path) -> None:
    train = write(tmp_path) / "train"
    ends, documents = np.load(train / "index.npy", mmap_mode="r").T
    tokens = np.concatenate([np.fromfile(shard, "<u2") for shard in sorted(train.glob("*.bin"))])
    sentences = [ids for document in DOCUMENTS for ids in document]
    assert [part.tolist() for part in np.split(tokens, ends[:-1])] == sentences
    assert documents.tolist() == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize(("vocabulary", "width"), [(2**16, 2), (2**16 + 1, 4)])
def test_ids_take_two_bytes_while_they_fit(vocabulary: int, width: int, tmp_path: Path) -> None:
    assert token_type(vocabulary) == np.dtype(f"<u{width}")
    split = Split(write(tmp_path, vocabulary, 2**20))
    assert (tmp_path / "train" / "00000.bin").stat().st_size == 13 * width
    assert split.take(0, 13).tolist() == list(range(7, 20))


def test_tokens_are_numbered_through_all_shards(tmp_path: Path) -> None:
    split = Split(write(tmp_path))
    assert split.tokens == 13
    for start in range(13):
        for end in range(start + 1, 14):
            assert split.take(start, end).tolist() == list(range(7 + start, 7 + end))
    assert split.take(6, 13).base is not None  # a view of the mapped file


def test_an_id_beyond_the_vocabulary_is_located(tmp_path: Path) -> None:
    split = Split(write(tmp_path, vocabulary=18))
    split.check_ids(0, 11)
    with pytest.raises(DataError, match=r"00001\.bin is damaged: token 5 of it has the id 18"):
        split.check_ids(0, 13)


def test_a_corpus_is_known_by_its_tokens_alone(tmp_path: Path) -> None:
    one, other = (read_manifest(write(tmp_path / name)) for name in ("one", "other"))
    assert content_hash(one) == content_hash(other)
    assert content_hash(one) != content_hash(read_manifest(write(tmp_path / "cut", shard_bytes=2**20)))


def test_a_manifest_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path) / "manifest.json"
    path.write_text(path.read_text().replace('"vocabulary": 1000', '"vocabulary": 1001'))
    with pytest.raises(DataError, match="was changed since"):
        read_manifest(tmp_path)
