import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_corpora import WORDS, content, small_config, stopped

from lambert.core.errors import MachineError
from lambert.core.shards import SplitWriter, with_hash
from lambert.text.tokenizers.encoding import Encoder
from lambert.wings.corpus import documents
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.reading import slices
from lambert.wings.corpus.tokens import unfinished

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.usefixtures("parts_of_one_file")

# enough is held out for the first threshold
config = partial(small_config, heldout=0.1, steps=("extract,tokens",))
stopped_after = partial(stopped, phase="writing tokens")


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(slices, "SLICE", 1500)
    monkeypatch.setattr(documents, "MARK", 2000)
    monkeypatch.setattr(documents, "BATCH", 500)
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "ab":
        rows = [f"{WORDS} {number % 90}. {number % 9}." for number in range(200)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    (folder / "c.txt").write_text(f"{WORDS}.\n\n" * 20)
    return folder


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("calls", [0, 10, pytest.param(30, marks=pytest.mark.slow)])
def test_a_corpus_that_was_stopped_continues_to_the_same_bytes(inputs: Path, calls: int, workers: int) -> None:
    prepare(config(inputs, "whole"))
    single = prepare(config(inputs, "single", steps=()))
    assert single["documents"]["dropped"]["duplicate"] > 100
    chosen = config(inputs, "out", workers=workers)
    stopped_after(chosen, calls=calls)
    assert not chosen.out.exists()
    prepare(chosen)
    assert content(chosen.out) == content(inputs.parent / "whole") == content(inputs.parent / "single")
    assert not (chosen.work_folder / "tokens" / "corpus").exists()


def test_what_was_saved_is_not_encoded_again(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(inputs, "out")
    stopped_after(chosen, calls=40)
    state = json.loads((chosen.work_folder / "tokens" / "state.json").read_text())
    saved = state["progress"]["read"]
    assert saved > 100
    texts: list[str] = []
    encode = Encoder.__call__
    monkeypatch.setattr(Encoder, "__call__", lambda self, given: texts.extend(given) or encode(self, given))
    fail = lambda *given: pytest.fail("the vocabulary was learnt again")  # noqa: E731
    monkeypatch.setattr("lambert.wings.corpus.tokens.vocabulary.learn", fail)
    manifest = prepare(chosen)
    assert len(texts) == manifest["documents"]["read"] - saved


@pytest.mark.parametrize("damage", ["cut", "gone", "changed"])
@pytest.mark.parametrize(
    "name",
    [
        "state.json",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("seen.bin", "files.bin", "learnt", "causes.json", "corpus/tokenizer.json")
        ),
    ],
)
def test_a_damaged_state_is_not_used(inputs: Path, name: str, damage: str) -> None:
    prepare(config(inputs, "whole"))
    chosen = config(inputs, "out")
    stopped_after(chosen, calls=40)
    path = chosen.work_folder / "tokens" / name
    data = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    prepare(chosen)
    assert content(chosen.out) == content(inputs.parent / "whole")


def test_a_lost_shard_is_written_again(inputs: Path) -> None:
    prepare(config(inputs, "whole"))
    chosen = config(inputs, "out")
    stopped_after(chosen, calls=40)
    (chosen.work_folder / "tokens" / "corpus" / "train" / "00000.bin").unlink()
    prepare(chosen)
    assert content(chosen.out) == content(inputs.parent / "whole")


def test_other_settings_or_inputs_begin_anew(inputs: Path) -> None:
    chosen = config(inputs, "out")
    stopped_after(chosen, calls=40)
    (inputs / "d.txt").write_text("Another file, which is one document, came later.\n")
    assert prepare(chosen)["documents"]["read"] == 402
    prepare(config(inputs, "whole", steps=()))
    assert content(chosen.out) == content(inputs.parent / "whole")


@pytest.fixture
def vocabulary(inputs: Path) -> Path:
    prepare(config(inputs, "learnt", steps=()))
    return inputs.parent / "learnt" / "vocab.txt"


@pytest.mark.parametrize("gone", [False, True])
def test_files_that_are_added_at_the_end_are_all_that_is_encoded(
    inputs: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setattr("lambert.core.shards.SplitWriter.__init__.__defaults__", (600, None))
    work = inputs.parent / "work"
    first = config(inputs, "first", tokenizer=str(vocabulary), work=work)
    read = prepare(first)["documents"]["read"]
    before = content(first.out)
    assert len([name for name in before if name.endswith(".bin")]) > 5
    (inputs / "d.txt").write_text("Another file, which is one document, came later.\n")
    (inputs / "e.jsonl").write_text("".join(json.dumps({"text": f"{number} {WORDS}"}) + "\n" for number in range(99)))
    if gone:
        first.out.rename(inputs.parent / "moved")
    texts: list[str] = []
    encode = Encoder.__call__
    monkeypatch.setattr(Encoder, "__call__", lambda self, given: texts.extend(given) or encode(self, given))
    second = config(inputs, "second", tokenizer=str(vocabulary), work=work)
    manifest = prepare(second)
    assert len(texts) == (manifest["documents"]["read"] if gone else 100) != read
    prepare(config(inputs, "whole", steps=(), tokenizer=str(vocabulary)))
    assert content(second.out) == content(inputs.parent / "whole")
    assert content(inputs.parent / "moved" if gone else first.out) == before


@pytest.mark.parametrize("steps", [("extract", "tokens"), ("extract", "encode", "tokens")])
def test_inputs_that_are_added_at_the_end_continue_a_corpus(
    inputs: Path, vocabulary: Path, steps: tuple[str, ...]
) -> None:
    work, files = inputs.parent / "work", sorted(inputs.iterdir())
    chosen = partial(config, inputs, tokenizer=str(vocabulary), work=work, steps=steps)
    for count in (1, 2, 3):
        manifest = prepare(chosen(f"out{count}", input=tuple(files[:count])))
        assert len(manifest["sources"]) == count
    single = prepare(config(inputs, "whole", steps=(), tokenizer=str(vocabulary), input=tuple(files)))
    assert content(inputs.parent / "out3") == content(inputs.parent / "whole")
    assert manifest["sources"] == single["sources"]


def test_a_command_that_is_repeated_records_what_a_kill_prevented(inputs: Path) -> None:
    chosen = config(inputs, "out")
    prepare(chosen)
    work = chosen.work_folder / "tokens"
    complete = content(work)
    causes = json.loads((work / "causes.json").read_text())
    del causes["manifest_sha256"]
    (work / "causes.json").write_text(json.dumps(with_hash({**causes, "out": ""})))
    (work / "corpus").mkdir()
    (work / "corpus" / "left").touch()
    prepare(chosen)
    assert content(work) == complete


def test_a_corpus_of_fewer_parts_is_not_continued(inputs: Path, vocabulary: Path) -> None:
    work = inputs.parent / "work"
    prepare(config(inputs, "first", tokenizer=str(vocabulary), work=work))
    (inputs / "a.jsonl").unlink()
    second = config(inputs, "second", tokenizer=str(vocabulary), work=work)
    prepare(second)
    prepare(config(inputs, "whole", steps=(), tokenizer=str(vocabulary)))
    assert content(second.out) == content(inputs.parent / "whole")


def test_a_corpus_may_be_on_another_disk(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(config(inputs, "whole"))
    chosen = config(inputs, "out")
    rename = Path.rename

    def refuse(self: Path, target: Any) -> Path:
        if Path(target) == chosen.out and not self.name.startswith(".tmp"):
            raise OSError(18, "Invalid cross-device link")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    prepare(chosen)
    assert content(chosen.out) == content(inputs.parent / "whole")


def test_a_full_disk_keeps_what_was_written(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(config(inputs, "whole"))
    chosen = config(inputs, "out")
    add, left = SplitWriter.add, 20

    def full(self: SplitWriter, *given: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise OSError(28, "No space left on device")
        add(self, *given)

    monkeypatch.setattr(SplitWriter, "add", full)
    with pytest.raises(MachineError, match=r"No space left on device\. .* the same command continues; free space"):
        prepare(chosen)
    prepare(chosen)
    assert content(chosen.out) == content(inputs.parent / "whole")


def test_shards_end_with_documents_and_do_not_depend_on_batches(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    sentences_D = draw.integers(1, 5, 60)
    lengths_n = draw.integers(1, 9, sentences_D.sum())
    documents_n = np.repeat(np.arange(60), sentences_D)
    ids_T = draw.integers(0, 99, lengths_n.sum())
    written = []
    for number, ends in enumerate([[60], [7, 8, 30, 60], [*range(1, 61)]]):
        writer = SplitWriter(tmp_path / str(number), 100, shard_bytes=64)
        begin = 0
        for end in ends:
            chosen_n = (documents_n >= begin) & (documents_n < end)
            chosen_T = np.repeat(chosen_n, lengths_n)
            writer.add(ids_T[chosen_T], lengths_n[chosen_n], documents_n[chosen_n] - begin)
            begin = end
        written.append((writer.close(), content(tmp_path / str(number))))
    assert written[0] == written[1] == written[2]
    entry = written[0][0]
    tokens_D = np.bincount(documents_n, weights=lengths_n)
    starts = np.cumsum([0, *tokens_D])
    assert len(entry["shards"]) > 5
    for end in np.cumsum([shard["tokens"] for shard in entry["shards"]]):
        assert end in starts


def test_the_folder_is_described(inputs: Path) -> None:
    chosen = config(inputs, "out")
    stopped_after(chosen, calls=40)
    found = {path.name for path in (chosen.work_folder / "tokens").iterdir()}
    assert found == {"causes.json", "corpus", "learnt", "state.json", "seen.bin", "files.bin"}, found
    for name in found:
        assert name in str(unfinished.__doc__)
