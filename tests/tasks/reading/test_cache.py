"""Features on disk: equal to those that were built, found again by what they depend on, and built anew if damaged."""

import dataclasses
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patience import HANGS
from task_cases import CASES, VOCABULARY, Case, classify, squad, tag
from tokenizers import Tokenizer

from lambert.core.errors import DataError, UsageError
from lambert.tasks import Columns, EmbedConfig, TaskConfig, learn
from lambert.tasks.reading import cache, features
from lambert.tasks.reading.cache import FeatureCache
from lambert.tasks.reading.features import Damaged, Later
from lambert.tasks.reading.segments import Segments

Build = Callable[[list[str]], Tokenizer]


@pytest.fixture(scope="module")
def words(wordpiece: Build) -> Tokenizer:
    return wordpiece(VOCABULARY)


def weighted(folder: Path) -> tuple[TaskConfig, Path]:
    settings, path = classify(folder)
    return dataclasses.replace(settings, class_weights="balanced", label_smoothing=0.1), path


def texts(folder: Path, **row: object) -> Path:
    path = folder / "x.jsonl"
    path.write_text("".join(json.dumps({"a": f"ann lives {n}", "b": f"in rome {n}", **row}) + "\n" for n in range(5)))
    return path


def ranking(folder: Path) -> tuple[TaskConfig, Path]:
    return TaskConfig(name="embed", columns=Columns(text="a", text_b="b")), texts(folder)


def scored(folder: Path) -> tuple[TaskConfig, Path]:
    columns = Columns(text="a", text_b="b", label="score")
    embed = EmbedConfig(loss="cosine", widths=(4,))
    return TaskConfig(name="embed", columns=columns, embed=embed), texts(folder, score=0.5)


def plain(value: Any) -> Any:
    """A value as comparable parts, with the type of each."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray | torch.Tensor):
        array = np.asarray(value)
        return kind, array.dtype.str, array.shape, array.tobytes()
    if isinstance(value, Later):
        return kind, plain(value.value)
    if isinstance(value, Segments):
        return kind, {name: plain(part) for name, part in vars(value).items()}
    if dataclasses.is_dataclass(value):
        return kind, [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        return kind, [(plain(key), plain(part)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return kind, [plain(part) for part in value]
    return kind, value


def cached(folder: Path | None, words: Tokenizer, software: str = "1") -> FeatureCache:
    return FeatureCache(folder, words, software)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.features"))


@pytest.mark.parametrize("case", [*CASES, weighted, ranking, scored])
def test_features_are_equal_bit_by_bit(case: Case, words: Tokenizer, tmp_path: Path) -> None:
    settings, path = case(tmp_path)
    settings = settings.resolve_length()
    task, train = learn(settings, words, path)
    dev = task.read(path)
    for notes in (0, 2):  # built, and read
        found = cached(tmp_path / "cache", words)
        other, data = found.learn(settings, path)
        assert other.config == task.config
        assert plain(data) == plain(train)
        assert plain(found.read(other, path)) == plain(dev)
        assert len(found.notes) == notes
    everything = np.arange(train.size(0))
    batch, again = (source.collate(np.zeros_like(everything), everything) for source in (train, data))
    assert plain(batch.ids_T) == plain(again.ids_T)
    assert plain(batch.targets[task.head].labels_N) == plain(again.targets[task.head].labels_N)
    assert len(files(tmp_path / "cache")) == 2


@pytest.mark.parametrize("change", ["bytes", "path", "setting", "tokenizer", "software"])
def test_whatever_features_depend_on_finds_another_file(
    change: str, words: Tokenizer, wordpiece: Build, tmp_path: Path
) -> None:
    settings, path = squad(tmp_path)
    cached(tmp_path / "cache", words).learn(settings.resolve_length(), path)
    tokenizer, software = words, "1"
    if change == "bytes":
        path.write_text(path.read_text().replace("works", "lives"))
    elif change == "path":
        path = path.rename(tmp_path / "y.json")
    elif change == "setting":
        settings = dataclasses.replace(settings, max_length=100)
    elif change == "tokenizer":
        tokenizer = wordpiece([*VOCABULARY, "a"])
    else:
        software = "2"
    found = cached(tmp_path / "cache", tokenizer, software)
    _, data = found.learn(settings.resolve_length(), path)
    assert found.notes == []
    assert len(files(tmp_path / "cache")) == 2
    assert plain(data) == plain(learn(settings.resolve_length(), tokenizer, path)[1])


def test_judgements_depend_on_their_texts(words: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "qrels" / "dev.tsv"
    path.parent.mkdir()
    path.write_text("query-id\tcorpus-id\tscore\n1\t1\t1\n")
    for name in ("corpus", "queries"):
        (tmp_path / f"{name}.jsonl").write_text('{"_id": "1", "text": "ann"}\n{"_id": "2", "text": "bob"}\n')
    settings, pairs = ranking(tmp_path)
    task, _ = learn(settings, words, pairs)
    found = cached(tmp_path / "cache", words)
    first = found.read(task, path)
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "eve lives"}\n')
    second = found.read(task, path)
    assert plain(first) != plain(second)
    assert plain(second) == plain(task.read(path))
    assert plain(found.read(task, path)) == plain(second)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-70],
    "a byte": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "another file": lambda data: b"text\nand more\n",
    "another format": lambda data: data.replace(b'"lambert_features": 1', b'"lambert_features": 9'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_built_anew_with_one_warning(damage: str, words: Tokenizer, tmp_path: Path) -> None:
    settings, path = tag(tmp_path)
    _, expected = cached(tmp_path / "cache", words).learn(settings.resolve_length(), path)
    (file,) = files(tmp_path / "cache")
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    found = cached(tmp_path / "cache", words)
    assert plain(found.learn(settings.resolve_length(), path)[1]) == plain(expected)
    (note,) = found.notes
    assert note.startswith(f"warning: {file} was damaged")
    again = cached(tmp_path / "cache", words)
    again.learn(settings.resolve_length(), path)
    assert again.notes == [f"{path}  features are read from {tmp_path / 'cache'}"]


@pytest.mark.parametrize("name", ["lambert.core.errors:DataError", "builtins:exec", "lambert.tasks.squad.squad:Squad"])
def test_a_file_makes_objects_of_labelled_data_only(name: str, words: Tokenizer, tmp_path: Path) -> None:
    features.write(tmp_path / "x", {"dict": "a"})
    with pytest.raises(Damaged, match="not a class of labelled data"):
        features._Reader([]).value({"object": name, "values": {}})
    with pytest.raises(TypeError, match="cannot be stored"):
        features.write(tmp_path / "y", [DataError("x")])
    assert features.read(tmp_path / "x") == {"dict": "a"}
    assert not (tmp_path / "y").exists()


def _learn(words: str, folder: Path, path: Path, barrier: Any, results: Any) -> None:
    found = FeatureCache(folder, Tokenizer.from_str(words), "1")
    barrier.wait()
    data = found.learn(TaskConfig(name="squad").resolve_length(), path)[1]
    results.put((found.notes, int(data.lengths_S.sum())))


def test_of_processes_that_start_together_one_builds(words: Tokenizer, tmp_path: Path) -> None:
    _, path = squad(tmp_path)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    arguments = (words.to_str(), tmp_path / "cache", path, barrier, results)
    processes = [context.Process(target=_learn, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    found = [results.get(timeout=HANGS) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(len(notes) for notes, _ in found) == [0, 1, 1, 1]
    assert len({tokens for _, tokens in found}) == 1
    (file,) = files(tmp_path / "cache")
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {file.name, file.with_suffix(".lock").name}


def _learn_together(words: str, folder: Path, path: Path, barrier: Any, results: Any) -> None:
    """Builds the features only if another process builds some at the same time."""

    def build(*arguments: Any) -> Any:
        barrier.wait(timeout=HANGS)
        return learn(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache.tasks, "learn", build)
        FeatureCache(folder, Tokenizer.from_str(words), "1").learn(classify(path)[0].resolve_length(), path / "x.jsonl")
    results.put(path.name)


def test_different_files_are_built_at_the_same_time(words: Tokenizer, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    processes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        classify(tmp_path / name)
        arguments = (words.to_str(), tmp_path / "cache", tmp_path / name, barrier, results)
        processes.append(context.Process(target=_learn_together, args=arguments))
        processes[-1].start()
    assert sorted(results.get(timeout=HANGS) for _ in processes) == ["a", "b"]
    for process in processes:
        process.join()
    assert len(files(tmp_path / "cache")) == 2


def test_the_files_that_were_not_used_for_longest_are_deleted(
    words: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, path = classify(tmp_path)
    folder = tmp_path / "cache"
    kept = []
    for number in (10, 20, 30):
        cached(folder, words).learn(dataclasses.replace(settings, max_length=number), path)
        (new,) = {*files(folder)} - {*kept}
        kept.append(new)
    for time, file in enumerate(kept):
        os.utime(file, (time, time))
    cached(folder, words).learn(dataclasses.replace(settings, max_length=10), path)  # the first is used again
    monkeypatch.setattr(cache, "_MOST_BYTES", 3 * kept[0].stat().st_size)
    cached(folder, words).learn(dataclasses.replace(settings, max_length=40), path)
    assert kept[1] not in files(folder)
    assert len(files(folder)) == 3


def test_a_folder_that_cannot_be_used(words: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, path = classify(tmp_path)
    with pytest.raises(UsageError, match=r"cannot be written: .*Choose another cache"):
        cached(path, words)

    def full(path: Path, value: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(features, "write", full)
    found = cached(tmp_path / "cache", words)
    assert plain(found.learn(settings.resolve_length(), path)[1]) == plain(
        learn(settings.resolve_length(), words, path)[1]
    )
    assert found.notes == [
        f"warning: the features of {path} are not kept: No space left on device ({tmp_path / 'cache'})."
    ]


def test_data_of_a_task_from_outside_are_not_kept(words: Tokenizer, tmp_path: Path) -> None:
    settings, path = classify(tmp_path)
    config = dataclasses.replace(settings, name="lambert.tasks.sentences.classify:Classify").resolve_length()
    found = cached(tmp_path / "cache", words)
    task, data = found.learn(config, path)
    assert plain(found.read(task, path).truth_N) == plain(data.truth_N)
    assert (files(tmp_path / "cache"), found.notes) == ([], [])
