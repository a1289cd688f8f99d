"""Does it learn? Text from a Markov chain, whose structure a unigram model cannot know."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORDS = [a + b for a in "bdfgklmnpt" for b in ("a", "e", "o")]
SUCCESSORS = 3  # of each word: knowing a neighbour leaves ln 3 = 1.1 nats, knowing both less, knowing none ln 30 = 3.4


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory, lambert: Callable[..., Any]) -> Path:
    """A prepared corpus of 400 documents of a first-order chain."""
    draw = random.Random(1)
    following = {word: draw.sample(WORDS, SUCCESSORS) for word in WORDS}
    documents = []
    for _ in range(400):
        word, sentences = draw.choice(WORDS), []
        for _ in range(10):
            sentence = []
            for _ in range(12):
                word = draw.choice(following[word])
                sentence.append(word)
            sentences.append(" ".join(sentence) + " .")
        documents.append(" ".join(sentences))
    folder = tmp_path_factory.mktemp("chain")
    (folder / "chain.txt").write_text("\n".join(documents), encoding="utf-8")
    out = folder / "corpus"
    done = lambert(
        "prepare", input=folder / "chain.txt", out=out, documents="line", vocabulary=80, heldout=0.1, workers=1
    )
    assert done.code == 0, done.err
    return out


@pytest.mark.parametrize(
    ("name", "lr"),
    [
        ("lamb", 1e-2),
        pytest.param("adamw", 4e-3, marks=pytest.mark.slow),
        pytest.param("radam", 1.2e-2, marks=pytest.mark.slow),
    ],
)
def test_every_optimizer_beats_the_unigrams(
    chain: Path, tmp_path: Path, lambert: Callable[..., Any], name: str, lr: float
) -> None:
    unigrams = json.loads((chain / "manifest.json").read_text())["splits"]["heldout"]["unigram_cross_entropy"]
    assert abs(unigrams - math.log(len(WORDS))) < 0.6
    done = lambert(
        "pretrain", corpus=chain, out=tmp_path / "run", model__layers=1, model__hidden=64, model__heads=2,
        model__intermediate=128, model__positions=32, model__dropout=0, model__attention_dropout=0,
        model__init_range=0.12, packing__mode="full", packing__sequence_length=24, optim__name=name, optim__lr=lr,
        optim__eps=1e-9, optim__warmup_ratio=0.1, train__batch_size=32, train__steps=300, log__console="false",
        train__evaluate_sequences=200,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "run/scores.json").read_text())["mlm"] < unigrams - 0.5
