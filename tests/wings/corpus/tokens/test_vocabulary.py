"""The texts from which a vocabulary is learnt."""

from pathlib import Path
from typing import Any

import pytest

from lambert.wings.corpus.tokens import vocabulary


def test_words_without_end_are_divided(tmp_path: Path, lambert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's time to learn from a word is quadratic in its length."""
    seen: list[str] = []
    train = vocabulary.train_wordpiece

    def spied(texts: Any, *arguments: Any, **named: Any) -> Any:
        seen.extend(texts)
        return train(seen, *arguments, **named)

    monkeypatch.setattr(vocabulary, "train_wordpiece", spied)
    long = "".join(chr(97 + number * number % 26) for number in range(20_500))
    (tmp_path / "a.txt").write_text(f"The river was calm. {long} ended here. " + "The boat was new. " * 50)
    done = lambert("prepare", input=tmp_path / "a.txt", out=tmp_path / "corpus", vocabulary=100, workers=1, heldout=0)
    assert done.code == 0, done.err
    words = " ".join(seen).split()
    assert max(map(len, words)) == 1000
    assert long in "".join(words)
    assert {"The", "river", "ended", "new."} <= {*words}
