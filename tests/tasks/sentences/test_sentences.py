"""Long texts are divided into windows, which together count as one example."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lambert.core.errors import UsageError
from lambert.tasks import Columns, TaskConfig, create, learn
from lambert.tasks.reading.segments import Segments
from lambert.tasks.sentences.sentences import longest_first, tokenise
from lambert.text.tokenizers.roles import Declared, declare

Build = Callable[[list[str]], Tokenizer]
DIGITS = [str(digit) for digit in range(10)]


@pytest.fixture(scope="module")
def words(wordpiece: Build) -> Tokenizer:
    return wordpiece(["[UNK]", "[CLS]", "[SEP]", *DIGITS])


def windows_of(length: int, room: int, step: int) -> list[range]:
    """Windows as one would take them by hand: a next one while tokens are left."""
    found = [range(min(length, room))]
    while found[-1].stop < length:
        begin = found[-1].start + step
        found.append(range(begin, min(begin + room, length)))
    return found


@given(st.lists(st.integers(0, 60), min_size=1, max_size=4), st.integers(8, 20), st.integers(0, 30))
def test_windows_cover_each_text(words: Tokenizer, lengths: list[int], max_length: int, stride: int) -> None:
    config = TaskConfig(max_length=max_length, long_text="mean", stride=stride)
    texts = [" ".join(DIGITS[number % 10] for number in range(length)) for length in lengths]
    data = tokenise(words, config, texts)
    room = max_length - 2
    expected = [windows_of(length, room, min(stride or room // 2, room)) for length in lengths]
    assert data.bounds_N is not None
    assert np.diff(data.bounds_N).tolist() == [len(windows) for windows in expected]
    everything = np.arange(data.size(0))
    batch = data.collate(everything, everything)
    flat = [window for windows in expected for window in windows]
    assert batch.ids_T.tolist() == [
        token for window in flat for token in (1, *(3 + number % 10 for number in window), 2)
    ]
    assert data.examples == len(lengths)


def file(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    return path


def test_an_example_counts_once_and_has_one_prediction(words: Tokenizer, tmp_path: Path) -> None:
    path = file(tmp_path / "x.tsv", [("1 " * 12, "b"), ("2", "a"), ("3 " * 7, "b")])
    for how, best in (("mean", lambda part: part.mean(0)), ("max", lambda part: part.max(0))):
        task, data = learn(TaskConfig(max_length=8, stride=3, long_text=how), words, path)
        assert data.counts["windows"] == 3 + 1 + 2
        everything = np.arange(6)
        target = data.collate(everything, everything).targets["label"]
        assert target.labels_N.tolist() == [1, 1, 1, 0, 1, 1]
        torch.testing.assert_close(target.weights_N, torch.tensor([1 / 3, 1 / 3, 1 / 3, 1, 0.5, 0.5]))
        assert target.count == pytest.approx(3)
        logits = np.random.default_rng(0).normal(size=(6, 2))
        outputs = [{"label": torch.from_numpy(part)} for part in np.split(logits, [2])]
        odds = [np.log(chances[1] / chances[0]) for chances in task.predictions(data, outputs)]
        parts = [best(logits[low:high]) for low, high in ((0, 3), (3, 4), (4, 6))]
        assert odds == pytest.approx([part[1] - part[0] for part in parts], rel=1e-5)
        assert task.score(data, task.predictions(data, outputs))["examples"] == 3


def test_weights_of_classes_and_windows_multiply(words: Tokenizer, tmp_path: Path) -> None:
    path = file(tmp_path / "x.tsv", [("1 " * 7, "b"), ("2", "a")])
    config = TaskConfig(max_length=8, stride=3, long_text="mean", class_weights=(3.0, 5.0))
    target = learn(config, words, path)[1].collate(np.arange(3), np.arange(3)).targets["label"]
    assert target.weights_N is not None
    assert target.weights_N.tolist() == [2.5, 2.5, 3.0]


def test_values_of_windows_are_averaged(words: Tokenizer, tmp_path: Path) -> None:
    path = file(tmp_path / "x.tsv", [("1 " * 7, "4"), ("2", "1")])
    task, data = learn(TaskConfig(name="regress", max_length=8, stride=3, long_text="mean"), words, path)
    found = task.predictions(data, [{"value": torch.tensor([[1.0], [2.0], [5.0]])}])
    assert found == [1.5, 5.0]
    target = data.collate(np.arange(3), np.arange(3)).targets["value"]
    assert target.labels_N.tolist() == [4.0, 4.0, 1.0]
    assert target.count == 2


def test_pairs_have_no_windows() -> None:
    with pytest.raises(UsageError, match=r"task\.long_text = 'middle'"):
        TaskConfig(long_text="middle")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="divides single texts, not pairs"):
        TaskConfig(long_text="mean", columns=Columns(text_b="other"))


def test_the_side_that_texts_lose(wordpiece: Build) -> None:
    tokenizer, config = wordpiece(["[UNK]", "[CLS]", "[SEP]", *DIGITS]), TaskConfig(max_length=8)
    declare(tokenizer, Declared(truncation_side="left"))
    texts = [" ".join("0123456789"), "5 6", "1 " * 100_000 + "2 3 4 5 6 7"]
    of = {str(tokenizer.token_to_id(digit)): digit for digit in DIGITS}

    def kept(data: Segments) -> list[str]:
        found = zip(data.first.starts_S.tolist(), data.first.lengths_S.tolist(), strict=True)
        return ["".join(of[str(n)] for n in data.first.ids[start : start + size]) for start, size in found]

    assert kept(tokenise(tokenizer, config, texts)) == ["456789", "56", "234567"]
    vectors = create(TaskConfig(name="embed", max_length=8), tokenizer).parse([{"text": x} for x in texts], ["a"] * 3)
    assert kept(vectors) == ["456789", "56", "234567"]
    pairs = tokenise(tokenizer, config, texts[:2], texts[:2])
    assert kept(pairs) == ["89", "56"]
    assert pairs.second is not None
    assert [int(of[str(pairs.second.ids[start])]) for start in pairs.second.starts_S.tolist()] == [7, 5]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 20))
def test_pairs_are_cut_as_the_library_cuts_them(words: Tokenizer, length_A: int, length_B: int, room: int) -> None:
    library = Tokenizer.from_str(words.to_str())
    library.enable_truncation(room, strategy="longest_first")
    found = library.encode("1 " * length_A, "2 " * length_B, add_special_tokens=False).tokens
    lengths = longest_first(np.array([length_A]), np.array([length_B]), room)
    assert [found.count("1"), found.count("2")] == [int(length[0]) for length in lengths]
