"""Corpora with tokenizers of each kind, made when they are first asked for."""

from pathlib import Path

import pytest
from gemma import gemma
from renamed import RENAMED

import lambert
from lambert.text.tokenizers import tokenizer as tokenizers

PIECES = {"bpe": 300, "unigram": 120, "wordpiece": 160}


class Corpora(dict[str, Path]):
    """The documents of the fixture `texts` prepared with a tokenizer of each kind."""

    def __init__(self, texts: Path, folder: Path) -> None:
        self.texts, self.folder = texts, folder

    def __missing__(self, kind: str) -> Path:
        learnt = {"tokenizer_kind": kind, "vocabulary": PIECES.get(kind)}
        if kind in RENAMED:
            of, source = RENAMED[kind]
            learnt = {"tokenizer": str(of(self[source], self.folder / f"{kind}-tokenizer"))}
        elif kind == "gemma":
            tokenizer = gemma(self.texts.read_text(encoding="utf-8").splitlines(), 500)
            tokenizers.save(tokenizer, self.folder / "gemma-tokenizer")
            learnt = {"tokenizer": str(self.folder / "gemma-tokenizer")}
        out = self.folder / kind
        lambert.prepare(input=(self.texts,), out=out, documents="line", heldout=0.2, workers=1, **learnt)
        self[kind] = out
        return out


@pytest.fixture(scope="session")
def corpora(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    """`corpora[kind]`: kinds are those of PIECES and RENAMED, and gemma."""
    return Corpora(texts, tmp_path_factory.mktemp("corpora"))
