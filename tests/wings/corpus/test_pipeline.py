import errno
import gzip
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_corpora import content

from lambert.core.errors import DataError, MachineError, UsageError
from lambert.core.shards import Split, SplitWriter
from lambert.text import sentences
from lambert.text.tokenizers import tokenizer as tk
from lambert.wings.corpus import pipeline
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.filters.gopher import Gopher
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.reading import readers

Make = Callable[..., PrepareConfig]
Story = Callable[[int], str]


def documents(corpus: Path, split: str) -> list[list[list[int]]]:
    """Documents as lists of sentences as lists of ids, read with plain numpy."""
    ends, numbers = np.load(corpus / split / "index.npy", mmap_mode="r").T
    shards = [np.fromfile(shard, "<u2") for shard in sorted((corpus / split).glob("*.bin"))]
    tokens = np.concatenate([np.zeros(0, "<u2"), *shards])
    found: list[list[list[int]]] = []
    for start, end, number in zip([0, *ends[:-1]], ends, numbers, strict=True):
        if number == len(found):
            found.append([])
        assert number == len(found) - 1
        found[-1].append(tokens[start:end].tolist())
    return found


def expected(corpus: Path, text: str) -> list[list[int]]:
    tokenizer = tk.load(corpus)
    return [tokenizer.encode(sentence, add_special_tokens=False).ids for sentence in sentences.split(text)]


@pytest.fixture
def texts(tmp_path: Path, story: Story) -> Path:
    """A folder with twelve documents, one a file."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02d}.txt").write_text(story(number), encoding="utf-8")
    return folder


def test_every_document_comes_back_from_one_split(texts: Path, config: Make, story: Story) -> None:
    cfg = config(texts)
    manifest = prepare(cfg)
    found = {name: documents(cfg.out, name) for name in ("train", "heldout")}
    assert len(found["train"]) + len(found["heldout"]) == 12
    assert found["heldout"]
    for number in range(12):
        own = expected(cfg.out, story(number))
        assert (own in found["train"]) != (own in found["heldout"])
    for name, split in manifest["splits"].items():
        opened = Split(cfg.out, name)
        flat = [number for document in found[name] for sentence in document for number in sentence]
        assert opened.take(0, opened.tokens).tolist() == flat
        assert split["tokens"] == len(flat)
        assert split["documents"] == len(found[name])
        assert split["sentences"] == sum(map(len, found[name]))
        assert split["unknown_rate"] < (0.01 if name == "train" else 0.2)
        assert 2 < split["unigram_entropy"] <= split["unigram_cross_entropy"] + 1e-9 < 8
    assert json.loads((cfg.out / "manifest.json").read_text()) == manifest
    assert manifest["documents"] == {
        "read": 12,
        "repeated": 0,
        "kept": 12,
        "dropped": {"unreadable": 0, "empty": 0, "short": 0, "duplicate": 0},
        "unreadable": [],
        "passed_over": {},
    }
    assert [len(entry["sha256"]) for entry in manifest["inputs"]] == [64] * 12
    assert not list(cfg.out.parent.glob(".corpus*")), "nothing is left beside it"


def test_bytes_do_not_depend_on_workers_or_batches(texts: Path, config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, small = (config(texts, name=name, workers=workers) for name, workers in (("a", 1), ("b", 2), ("c", 1)))
    prepare(one)
    prepare(two)
    monkeypatch.setattr("lambert.wings.corpus.documents.BATCH", 1)
    monkeypatch.setattr("lambert.wings.corpus.workers.LEXICON_BYTES", 1)
    prepare(small)
    assert content(one.out) == content(two.out) == content(small.out)


def test_the_held_out_split_does_not_depend_on_order_or_files(
    tmp_path: Path, texts: Path, config: Make, story: Story
) -> None:
    prepare(config(texts, name="a"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": story(number)}) + "\n" for number in reversed(range(12))))
    vocabulary = str(tmp_path / "a")
    prepare(config(rows, name="b", tokenizer=vocabulary))
    for split in ("train", "heldout"):
        assert sorted(documents(tmp_path / "a", split)) == sorted(documents(tmp_path / "b", split))


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_both_splits_have_a_document_where_there_are_two(
    tmp_path: Path, config: Make, share: float, story: Story
) -> None:
    path = tmp_path / "two.txt"
    path.write_text(f"{story(1)}\n\n{story(2)}\n")
    cfg = config(path, documents="blank-line", heldout=share)
    manifest = prepare(cfg)
    assert [split["documents"] for split in manifest["splits"].values()] == [1, 1]


def test_without_a_held_out_share_all_is_training(texts: Path, config: Make) -> None:
    cfg = config(texts, heldout=0.0)
    assert [split["documents"] for split in prepare(cfg)["splits"].values()] == [12, 0]
    assert Split(cfg.out, "heldout").tokens == 0


def test_a_document_longer_than_a_piece_stays_one(
    tmp_path: Path, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "PIECE", 300)
    monkeypatch.setattr(readers, "BLOCK", 64)
    text = "\n\n".join(f"Paragraph {number} tells of the river. It ends." for number in range(60))
    for name, body in (
        ("a", "Short but long enough for one document."),
        ("b", text),
        ("c", "Another short one, that follows it."),
    ):
        (tmp_path / f"{name}.txt").write_text(body)
    cfg = config(*(tmp_path / f"{name}.txt" for name in "abc"), heldout=0.0)
    prepare(cfg)
    found = documents(cfg.out, "train")
    assert len(found) == 3
    assert found[1] == expected(cfg.out, text)


def test_short_empty_and_repeated_documents_are_dropped_and_counted(texts: Path, config: Make, story: Story) -> None:
    (texts / "13.txt").write_text("")
    (texts / "14.txt").write_text(" \n\ufeff\x01\n")
    (texts / "15.txt").write_text("Hi.")
    (texts / "16.txt").write_text(story(3).replace(". ", ".\r\n"), newline="")
    (texts / "notes.doc").write_text("x")
    manifest = prepare(config(texts))
    assert manifest["documents"]["dropped"] == {"unreadable": 0, "empty": 2, "short": 1, "duplicate": 1}
    assert manifest["documents"]["read"] == 16
    assert manifest["documents"]["kept"] == 12
    assert manifest["files_passed_over"] == {"count": 1, "first": [str(texts / "notes.doc")]}


def test_nul_bytes_bom_and_crlf_change_nothing_but_the_count(tmp_path: Path, texts: Path, config: Make) -> None:
    prepare(config(texts, name="a"))
    for path in texts.iterdir():
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b" ", b"\r\n").replace(b"a", b"a\0"))
    manifest = prepare(config(texts, name="b", tokenizer=str(tmp_path / "a")))
    assert manifest["characters_removed"] == sum(path.read_bytes().count(b"\0") for path in texts.iterdir()) > 0
    assert documents(tmp_path / "a", "train") == documents(tmp_path / "b", "train")


def test_unreadable_documents_up_to_a_share(texts: Path, config: Make) -> None:
    (texts / "05.txt").write_bytes(b"fine\nnot \xff fine")
    with pytest.raises(DataError, match=r"05.txt, line 2, is not UTF-8 text \(byte 0xff\).* 1 of 12 .* max_bad = 0.01"):
        prepare(config(texts))
    manifest = prepare(config(texts, max_bad=0.1))
    assert manifest["documents"]["kept"] == 11
    assert manifest["documents"]["dropped"]["unreadable"] == 1
    (named,) = manifest["documents"]["unreadable"]
    assert named.startswith(f"{texts / '05.txt'}, line 2, is not UTF-8 text (byte 0xff): it may be in Windows-1252")


def test_a_truncated_gzip_is_counted_and_named(tmp_path: Path, texts: Path, config: Make, story: Story) -> None:
    whole = gzip.compress("\n\n".join(story(number) for number in range(100, 3000)).encode())
    (texts / "cut.txt.gz").write_bytes(whole[: len(whole) // 2])
    manifest = prepare(config(texts, documents="blank-line"))
    (named,) = manifest["documents"]["unreadable"]
    assert "cut.txt.gz" in named
    assert "damaged or truncated" in named
    assert 1000 < manifest["documents"]["kept"] < 2000
    assert manifest["documents"]["read"] == manifest["documents"]["kept"] + 1


def test_one_line_of_five_megabytes(tmp_path: Path, texts: Path, config: Make) -> None:
    (texts / "line.txt").write_text("It rained on the old house again today. " * 130_000)
    manifest = prepare(config(texts, heldout=0.0))
    assert manifest["documents"]["kept"] == 13
    assert manifest["splits"]["train"]["sentences"] == 130_000 + 2 + 12 * 6, "two sentences are cut where pieces meet"


def test_nothing_usable(tmp_path: Path, config: Make) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(DataError, match="No files to read"):
        prepare(config(folder))
    (folder / "a.txt").write_text("")
    (folder / "b.txt").write_text("Hi.")
    with pytest.raises(
        DataError, match=r"0 usable documents in 2 files: 1 empty, 1 shorter than 8 tokens \(min_tokens\)"
    ):
        prepare(config(folder))
    assert not (tmp_path / "corpus").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]


def test_a_vocabulary_without_mask(tmp_path: Path, texts: Path, config: Make) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n")
    with pytest.raises(DataError, match=r"vocab.txt has no mask token such as \[MASK\]"):
        prepare(config(texts, tokenizer=str(path)))


def test_the_same_again_is_recognised(texts: Path, config: Make) -> None:
    cfg = config(texts)
    first = prepare(cfg)
    before = content(cfg.out)
    notes: list[tuple[int, int, str]] = []
    assert prepare(config(texts, workers=2), lambda *note: notes.append(note)) == first
    size = sum(path.stat().st_size for path in texts.iterdir())
    assert {note for _, _, note in notes} == {"hashing inputs", "already prepared"}
    assert notes[-2:] == [(size, size, "hashing inputs"), (size, size, "already prepared")]
    assert content(cfg.out) == before


def test_another_configuration_or_input_is_refused(texts: Path, config: Make, story: Story) -> None:
    cfg = config(texts)
    prepare(cfg)
    before = content(cfg.out)
    with pytest.raises(UsageError, match=r"was prepared with lowercase = True, not False: choose another --out"):
        prepare(config(texts, lowercase=False))
    with pytest.raises(UsageError, match=r"was prepared with seed = 42, not 43: choose another --out"):
        prepare(config(texts, seed=43))
    (texts / "99.txt").write_text(story(99))
    with pytest.raises(UsageError, match=r"inputs: .*99.txt is new"):
        prepare(cfg)
    (texts / "99.txt").unlink()
    (texts / "00.txt").unlink()
    with pytest.raises(UsageError, match=r"inputs: .*00.txt is gone"):
        prepare(cfg)
    with pytest.raises(UsageError, match="prepared with another tokenizer"):
        prepare(config(texts, tokenizer=str(cfg.out)))
    assert content(cfg.out) == before


def test_a_foreign_folder_is_left_alone(tmp_path: Path, texts: Path, config: Make) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="exists and is not a prepared corpus"):
        prepare(config(texts))
    assert content(tmp_path / "corpus") == {"thesis.txt": b"years of work"}


def test_an_empty_folder_is_taken_and_out_may_lie_in_the_input(texts: Path, config: Make) -> None:
    cfg = config(texts, name="texts/corpus")
    cfg.out.mkdir()
    first = prepare(cfg)
    assert prepare(cfg) == first


def test_progress_ends_at_the_total(texts: Path, config: Make) -> None:
    notes: list[tuple[int, int, str]] = []
    prepare(config(texts), lambda *note: notes.append(note))
    size = sum(path.stat().st_size for path in texts.iterdir())
    assert [note for _, _, note in notes if note == "learning the vocabulary"]
    assert notes[-1] == (size, size, "writing tokens")
    assert all(0 <= done <= total == size for done, total, _ in notes)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: SplitWriter, *rest: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(SplitWriter, "add", add)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_nothing(tmp_path: Path, texts: Path, config: Make) -> None:
    with pytest.raises(MachineError, match=r"No space left on device\. Nothing was kept; free space"):
        prepare(config(texts))
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_too_little_space_is_noticed_before(texts: Path, config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 10, "total": 20})()
    monkeypatch.setattr(pipeline.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(MachineError, match=r"free and .* may need"):
        prepare(config(texts))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_file_system_without_a_disk_is_named(texts: Path, config: Make) -> None:
    with pytest.raises(MachineError, match=r"/proc/x cannot be written: /proc is not on a disk"):
        prepare(config(texts, name="/proc/x"))


def test_the_input_folder_is_not_the_output(texts: Path, config: Make) -> None:
    with pytest.raises(UsageError, match="--out is the input folder: choose another --out"):
        prepare(config(texts, name=texts.name))


def test_an_interrupt_leaves_nothing(
    tmp_path: Path, texts: Path, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*rest: Any) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(pipeline, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(config(texts))
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_what_a_killed_run_left_is_swept(tmp_path: Path, texts: Path, config: Make) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    out = config(texts).out.name
    left = tmp_path / f".tmp-new-{process.pid}@{platform.node()}@{out}"
    alive = tmp_path / f".tmp-new-{os.getppid()}@{platform.node()}@{out}"
    for folder in (left, alive):
        folder.mkdir()
        (folder / "half").write_text("x")
    prepare(config(texts))
    assert not left.exists()
    assert alive.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heldout": 1.0}, "heldout = 1.0"),
        ({"documents": "paragraph"}, "documents = 'paragraph' is unknown"),
        ({"format": "json"}, "format = 'json' is unknown. Did you mean 'jsonl'"),
        ({"lines": "wraped"}, "Did you mean 'wrapped'"),
        ({"language": "English"}, "language = 'English'"),
        ({"min_tokens": 0}, "min_tokens = 0 must be at least 1"),
        ({"input": (Path("x"), "")}, "input has an empty entry"),
        ({"metadata": ("url",)}, "metadata is stored only between steps"),
        ({"work": Path("w")}, "work = w holds the results of steps"),
        ({"checksums": "sums"}, "checksums applies to remote inputs"),
        ({"steps": ("extract,clean",), "clean": ("prose", "prose")}, "clean names prose twice"),
        ({"gopher": Gopher(min_words=9)}, "gopher is set, and .* add gopher to clean"),
        ({"tokenizer": "t", "tokenizer_kind": "bpe"}, "tokenizer_kind = bpe has no effect with a given tokenizer"),
        ({"tokenizer": "t", "min_frequency": 3}, "min_frequency = 3 has no effect with a given tokenizer"),
        ({"tokenizer_kind": "bpe", "strip_accents": True}, "strip_accents = True has no effect where .* is bpe"),
        ({"tokenizer_kind": "unigram", "min_frequency": 3}, "min_frequency = 3 has no effect .* is unigram"),
        ({"min_language_score": 0.5}, "min_language_score is set, .* add language to clean"),
    ],
)
def test_wrong_settings_are_named(config: Make, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PrepareConfig(**{"input": (Path("x"),), "out": Path("out"), **settings})
    with pytest.raises(UsageError, match=r"gopher.min_words = 100 is more than gopher.max_words = 50"):
        Gopher(min_words=100, max_words=50)
    with pytest.raises(UsageError, match="requires --input"):
        config()
