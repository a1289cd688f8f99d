"""Small prepared corpora, written in the format that `lambert prepare` writes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from lambert.core.shards import Split, SplitWriter
from lambert.core.specials import Specials, Template

Documents = Sequence[Sequence[Sequence[int]]]
WriteCorpus = Callable[..., Split]

VOCABULARY = 1000


@pytest.fixture(scope="session")
def specials() -> Specials:
    """The five special pieces first, then words, pieces that continue a word from 700 on, and pieces after which one
    begins from 690 to 709."""
    ids = np.arange(VOCABULARY)
    return Specials(Template(2, 3), 1, 4, VOCABULARY, ids >= 700, (ids >= 690) & (ids < 710))


@pytest.fixture(scope="session")
def write_corpus(tmp_path_factory: pytest.TempPathFactory) -> WriteCorpus:
    """Writes documents, each a list of sentences of ids, and opens the split."""

    def write(documents: Documents, vocabulary: int = VOCABULARY, shard_bytes: int = 2**20) -> Split:
        folder: Path = tmp_path_factory.mktemp("corpus")
        writer = SplitWriter(folder / "train", vocabulary, shard_bytes)
        for document in documents:
            ids = np.concatenate([np.asarray(sentence) for sentence in document])
            lengths = np.array([len(sentence) for sentence in document])
            writer.add(ids, lengths, np.zeros(len(document), dtype=np.int64))
        manifest = {"format_version": 1, "vocabulary": vocabulary, "tokenizer_sha256": "none"}
        splits = {"train": writer.close(), "heldout": SplitWriter(folder / "heldout", vocabulary).close()}
        (folder / "manifest.json").write_text(json.dumps({**manifest, "splits": splits}))
        return Split(folder)

    return write


@pytest.fixture(scope="session")
def random_corpus(write_corpus: WriteCorpus) -> WriteCorpus:
    """Writes documents of 1 to `sentences` sentences of 1 to `tokens` random words, never special ones."""

    def write(documents: int, sentences: int = 20, tokens: int = 25, seed: int = 0) -> Split:
        rng = np.random.default_rng(seed)
        return write_corpus(
            [
                [
                    rng.integers(5, VOCABULARY, rng.integers(1, tokens + 1)).tolist()
                    for _ in range(rng.integers(1, sentences + 1))
                ]
                for _ in range(documents)
            ],
            shard_bytes=20_000,
        )

    return write


@pytest.fixture(scope="session")
def corpus(random_corpus: WriteCorpus) -> Split:
    """300 documents in several shards."""
    return random_corpus(300)
