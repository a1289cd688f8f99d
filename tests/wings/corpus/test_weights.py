import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_corpora import stopped

from lambert.core.errors import UsageError
from lambert.core.shards import Split
from lambert.wings.corpus import documents
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.reading.files import estimate_text

pytest.importorskip("pyarrow")


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    for name in "abc":
        rows = [{"text": f"the {name} river runs {number} under an old stone bridge."} for number in range(400)]
        rows.append({"text": "the same old document is in every one of the files."})
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] the a b c river runs under an old stone bridge . same document is in every"
    digits = [piece for digit in range(10) for piece in (str(digit), f"##{digit}")]
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces.split(), "one", "of", "files", *digits]) + "\n")
    return tmp_path


def config(inputs: Path, out: str, **settings: Any) -> PrepareConfig:
    fixed: dict[str, Any] = {"workers": 1, "min_tokens": 2, "heldout": 0.1, "tokenizer": str(inputs / "vocab.txt")}
    return PrepareConfig(tuple(inputs / f"{n}.jsonl" for n in "abc"), inputs / out, **fixed | settings)


def documents_of(corpus: Path, name: str = "train") -> list[tuple[int, ...]]:
    split = Split(corpus, name)
    ends = split.ends[np.flatnonzero(np.diff(split.documents, append=-1))].tolist()
    return [tuple(split.take(start, end).tolist()) for start, end in zip([0, *ends], ends, strict=False)]


def test_inputs_are_used_as_often_as_their_weights_say(inputs: Path) -> None:
    once = prepare(config(inputs, "once"))
    assert [entry["weight"] for entry in once["sources"]] == [1.0, 1.0, 1.0]
    assert [entry["documents"] for entry in once["sources"]] == [401, 400, 400]
    manifest = prepare(config(inputs, "mixed", weights=(1.0, 0.25, 2.5)))
    plain, mixed = documents_of(inputs / "once"), documents_of(inputs / "mixed")
    heldout = documents_of(inputs / "mixed", "heldout")
    counts = {text: mixed.count(text) for text in plain}
    per_input = [[counts[text] for text in plain if text[1] == letter] for letter in (6, 7, 8)]  # ids of a, b, c
    assert set(per_input[0]) == {1}
    assert set(per_input[1]) == {0, 1}
    assert 0.15 < np.mean(per_input[1]) < 0.35
    assert set(per_input[2]) == {2, 3}
    assert 2.4 < np.mean(per_input[2]) < 2.6
    assert set(mixed) <= set(plain)
    assert len(heldout) == len(set(heldout))
    assert set(heldout) <= set(documents_of(inputs / "once", "heldout"))
    assert manifest["documents"]["repeated"] == len(mixed) - len(set(mixed))
    assert manifest["documents"]["dropped"]["weight"] == 400 - manifest["sources"][1]["documents"]
    assert sum(entry["documents"] for entry in manifest["sources"]) == len(mixed) + len(heldout)
    assert sum(entry["tokens"] for entry in manifest["sources"]) == sum(map(len, mixed + heldout))


def test_a_smaller_share_is_part_of_a_larger_one(inputs: Path) -> None:
    for name, share in (("few", 0.2), ("more", 0.6)):
        prepare(config(inputs, name, weights=(1.0, share, share)))
    assert set(documents_of(inputs / "few")) < set(documents_of(inputs / "more"))


@pytest.mark.parametrize("workers", [1, 2])
def test_steps_give_the_bytes_of_one_pass_and_continue(
    inputs: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(documents, "MARK", 3000)
    weights = (1.0, 0.5, 2.0)
    prepare(config(inputs, "single", weights=weights))
    stepped = config(inputs, "stepped", weights=weights, steps=("extract", "tokens"), workers=workers)
    stopped(stepped, "writing tokens", 3)
    assert (stepped.work_folder / "tokens" / "state.json").exists()
    prepare(stepped)
    files = [{p.name: p.read_bytes() for p in sorted((inputs / n).rglob("*.*"))} for n in ("single", "stepped")]
    assert files[0] == files[1]


def test_a_long_document_is_repeated_as_a_whole(inputs: Path) -> None:
    long = "the a river runs under an old stone bridge. " * (5 << 16)
    (inputs / "a.jsonl").unlink()
    (inputs / "a.txt").write_text(long)
    chosen = PrepareConfig(
        (inputs / "a.txt", inputs / "b.jsonl"), inputs / "out", weights=(2.0, 1.0), workers=1, heldout=0.0,
        tokenizer=str(inputs / "vocab.txt"),
    )  # fmt: skip
    manifest = prepare(chosen)
    found = documents_of(inputs / "out")
    assert found[0] == found[-1]
    assert len(found) == 1 + 401 + 1 == manifest["documents"]["kept"]
    assert manifest["documents"]["read"] == 402


def test_a_corpus_of_other_weights_is_another_corpus(inputs: Path) -> None:
    prepare(config(inputs, "mixed", weights=(1.0, 0.25, 2.5)))
    prepare(config(inputs, "plain"))
    for out, weights in (("mixed", ()), ("mixed", (1.0, 0.5, 2.5)), ("plain", (1.0, 0.25, 2.5))):
        with pytest.raises(UsageError, match="was prepared with weights"):
            prepare(config(inputs, out, weights=weights))


def test_the_expected_size_of_the_text_follows_from_the_weights(inputs: Path) -> None:
    chosen = {inputs / f"{name}.jsonl": number for number, name in enumerate("abc")}
    (size,) = {path.stat().st_size for path in chosen}
    assert estimate_text(chosen) == 3 * size
    assert estimate_text(chosen, (1.0, 0.25, 2.5)) == int(3.75 * size)


def test_wrong_weights_are_refused(inputs: Path) -> None:
    with pytest.raises(UsageError, match="2 numbers for 3 inputs"):
        config(inputs, "out", weights=(1.0, 2.0))
    with pytest.raises(UsageError, match="each must be above 0 and at most 100"):
        config(inputs, "out", weights=(1.0, 0.0, 1.0))
