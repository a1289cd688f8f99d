"""Small files that share a part: which ones, and that nothing but the number of parts differs."""

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from small_corpora import stopped

from lambert.core.errors import DataError, UsageError
from lambert.text.tokenizers.encoding import Encoder
from lambert.wings.corpus import documents, units
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.reading import readers
from lambert.wings.corpus.reading.slices import WHOLE

parquet = pytest.importorskip("pyarrow.parquet")

WORDS = "the river runs under an old stone bridge near the quiet road to town"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files below 3,000 bytes share parts of 4,000 on average."""
    monkeypatch.setattr(units, "SMALL", 3000)
    monkeypatch.setattr(units, "GROUP", 4000)
    monkeypatch.setattr(units, "OPENING", 100)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """60 files of 70 to 700 bytes, one of which cannot be read and one of which has no documents, and a large one."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(60):
        lines = [f"{WORDS} {number}, {line}." for line in range(1 + number % 9)]
        (folder / f"{number:02d}.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "07.txt").write_bytes(b"caf\xe9")
    (folder / "08.jsonl").write_text("")
    (folder / "30.jsonl").write_text("".join(json.dumps({"text": f"{WORDS} {n} {n}."}) + "\n" for n in range(60)))
    return folder


def config(inputs: Path, out: str, **settings: Any) -> PrepareConfig:
    fixed: dict[str, Any] = {"vocabulary": 120, "max_bad": 0.5, "workers": 1, "min_tokens": 2, "heldout": 0.2}
    return PrepareConfig(input=(inputs,), out=inputs.parent / out, **fixed | settings)


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.name != "causes.json"}


def made(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.parquet")}


def grouped(sizes: Sequence[int], shares: Sequence[float] = (), names: Sequence[str] = ()) -> list[list[str]]:
    names = names or [f"{number}.txt" for number in range(len(sizes))]
    inputs = [
        {"file": name, "bytes": size, "sha256": f"{name}-{size}"} for name, size in zip(names, sizes, strict=True)
    ]
    found = units.make_units(inputs, [None] * len(sizes), [[WHOLE]] * len(sizes), shares or [1.0] * len(sizes))
    return [[extent.source for extent in unit.extents] for unit in found]


def test_groups_keep_the_order_and_are_bounded() -> None:
    draw = random.Random(0)
    sizes = [draw.choice([0, 5, 300, 2999, 3000, 50_000]) for _ in range(2000)]
    found = grouped(sizes)
    assert [name for names in found for name in names] == [f"{number}.txt" for number in range(2000)]
    for names in found:
        own = [sizes[int(name.removesuffix(".txt"))] for name in names]
        assert len(own) == 1 or max(own) < 3000
        assert sum(own) + 100 * len(own) < 2 * 4000 + 3100 or len(own) == 1
    several = [len(names) for names in grouped([1000] * 2000)]
    assert 3 < sum(several) / len(several) < 5


def test_a_file_that_is_added_or_removed_affects_few_groups() -> None:
    draw = random.Random(1)
    sizes = [draw.randrange(2999) for _ in range(500)]
    names = [f"{number}.txt" for number in range(500)]
    before = grouped(sizes)
    assert len(before) > 100
    after = grouped([*sizes, 77], names=[*names, "new.txt"])
    assert before[:-1] == after[: len(before) - 1]  # only the last may change
    changed = []
    for at in range(0, 500, 7):
        other = grouped([*sizes[:at], 77, *sizes[at:]], names=[*names[:at], "new.txt", *names[at:]])
        fewer = grouped([*sizes[:at], *sizes[at + 1 :]], names=[*names[:at], *names[at + 1 :]])
        changed += [sum(group not in before for group in found) for found in (other, fewer)]
    assert max(changed) < 15
    assert sum(changed) / len(changed) < 3


def test_files_of_two_weights_share_no_part() -> None:
    assert grouped([0, 0, 0, 0], [0, 0, 1, 1]) == [["0.txt", "1.txt"], ["2.txt", "3.txt"]]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_corpus_is_that_of_the_single_pass(inputs: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    single = prepare(config(inputs, "single"))
    stepped = config(inputs, "stepped", steps=("extract,tokens",), workers=workers)
    prepare(stepped)
    assert content(inputs.parent / "single") == content(stepped.out)
    (unreadable,) = single["documents"]["unreadable"]
    assert unreadable.startswith(f"{inputs}/07.txt, line 1, is not UTF-8 text (byte 0xe9): it may be in")
    assert 3 < len(made(stepped.work_folder / "extract")) < 25
    monkeypatch.setattr(units, "SMALL", 0)
    apart = config(inputs, "apart", steps=("extract,tokens",))
    prepare(apart)
    assert len(made(apart.work_folder / "extract")) == 62
    assert content(apart.out) == content(stepped.out)


@pytest.mark.slow
def test_parts_do_not_depend_on_the_number_of_workers(inputs: Path) -> None:
    for count in (1, 3):
        prepare(config(inputs, f"out{count}", steps=("extract,clean",), clean=("normalise",), workers=count))
    assert content(inputs.parent / "out1.work") == content(inputs.parent / "out3.work")


def test_each_document_keeps_its_file_and_place(inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract,clean",), clean=("normalise",))
    steps = prepare(chosen)["steps"]
    for step in ("extract", "clean"):
        found: dict[str, list[dict[str, Any]]] = {}
        counts: dict[str, tuple[int, int]] = {}
        for path in (chosen.work_folder / step).glob("*.parquet"):
            for row in parquet.read_table(path).to_pylist():
                found.setdefault(row["source"], []).append(row)
            for entry in json.loads(path.with_suffix(".json").read_text())["files"]:
                counts[entry["source"]] = entry["documents"], entry["unreadable"]
        assert set(counts) == set(map(str, inputs.iterdir()))
        assert counts == {
            name: (len(found.get(name, [])), sum(bool(row["error"]) for row in found.get(name, []))) for name in counts
        }
        assert counts[str(inputs / "07.txt")] == (1, 1)
        assert counts[str(inputs / "08.jsonl")] == (0, 0)
        for name, rows in found.items():
            if name.endswith(".txt") and "07" not in name:
                assert [row["text"] for row in rows] == [Path(name).read_text()]
    for sample in steps["clean"]["samples"]["kept"]:
        assert sample["text"][:100] in Path(sample["source"]).read_text()


def test_a_document_of_several_pieces_among_small_files(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = 1 << 15
    monkeypatch.setattr(readers, "PIECE", piece)
    monkeypatch.setattr(units, "SMALL", piece * 3)
    monkeypatch.setattr(units, "GROUP", piece * 8)
    (inputs / "31.txt").write_text(f"{WORDS}.\n\n" * (2 * piece // len(WORDS)))
    chosen = config(inputs, "out", steps=("extract,tokens",))
    prepare(chosen)
    prepare(config(inputs, "single"))
    assert content(chosen.out) == content(inputs.parent / "single")
    assert len(made(chosen.work_folder / "extract")) < 10


def test_only_the_groups_of_new_or_changed_files_are_made_again(inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract,clean",), clean=("normalise",))
    prepare(chosen)
    before = {step: made(chosen.work_folder / step) for step in ("extract", "clean")}
    for name, text in (("zz.txt", WORDS), ("00a.txt", WORDS), ("45.txt", f"{WORDS}, and back.")):
        (inputs / name).write_text(text)
        prepare(chosen)
        for step, parts in before.items():
            after = made(chosen.work_folder / step)
            assert 1 <= len(after - parts) <= 3, (name, step)
            before[step] = after


@pytest.mark.parametrize("encode", ["", "encode,"])
def test_files_that_are_added_at_the_end_continue_the_corpus(
    inputs: Path, monkeypatch: pytest.MonkeyPatch, encode: str
) -> None:
    prepare(config(inputs, "learnt"))
    given: dict[str, Any] = {"tokenizer": str(inputs.parent / "learnt"), "work": inputs.parent / "work"}
    prepare(config(inputs, "first", steps=(f"extract,{encode}tokens",), **given))
    for number in range(3):
        (inputs / f"z{number}.txt").write_text(f"{WORDS}, and back {number} times.")
    seen: list[str] = []
    call = Encoder.__call__
    monkeypatch.setattr(Encoder, "__call__", lambda self, texts: seen.extend(texts) or call(self, texts))
    second = config(inputs, "second", steps=(f"extract,{encode}tokens",), **given)
    prepare(second)
    assert 3 <= len(seen) < 30  # those of the last group
    prepare(config(inputs, "whole", tokenizer=given["tokenizer"]))
    assert content(second.out) == content(inputs.parent / "whole")


def test_a_corpus_that_was_stopped_continues(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MARK", 1000)
    monkeypatch.setattr(documents, "BATCH", 300)
    prepare(config(inputs, "whole", steps=("extract,tokens",)))
    chosen = config(inputs, "out", steps=("extract,tokens",))
    for calls in (3, 20):
        stopped(chosen, "writing tokens", calls)
    prepare(chosen)
    assert content(chosen.out) == content(inputs.parent / "whole")


@pytest.mark.parametrize(("steps", "weights"), [((), ()), (("extract,tokens",), ()), (("extract,tokens",), (0.4, 2.5))])
def test_documents_are_counted_by_file(inputs: Path, steps: tuple[str, ...], weights: tuple[float, ...]) -> None:
    (inputs / "01.txt").write_text(".")
    (inputs / "09.txt").write_text((inputs / "00.txt").read_text())
    (inputs / "10.txt").write_text(" ")
    (inputs.parent / "other.txt").write_text(f"{WORDS} again. " * 9)
    given = dataclasses.replace(config(inputs, "out"), steps=steps)
    manifest = prepare(dataclasses.replace(given, input=(inputs, inputs.parent / "other.txt"), weights=weights))
    found = {Path(entry["file"]).name: entry["documents"] for entry in manifest["inputs"]}
    assert found["07.txt"] == {"read": 1, "unreadable": 1, "kept": 0}
    assert found["08.jsonl"] == {"read": 0, "kept": 0}
    assert found["01.txt"] == {"read": 1, "short": 1, "kept": 0}
    assert found["09.txt"] == {"read": 1, "duplicate": 1, "kept": 0}
    assert found["10.txt"] == {"read": 1, "empty": 1, "kept": 0}
    assert found["30.jsonl"]["read"] == 60
    total = manifest["documents"]
    assert sum(own["read"] for own in found.values()) == total["read"]
    assert sum(own["kept"] for own in found.values()) == total["kept"]
    assert sum(own.get("repeated", 0) for own in found.values()) == total["repeated"]
    for reason, count in total["dropped"].items():
        assert sum(own.get(reason, 0) for own in found.values()) == count
    for own in found.values():
        dropped = sum(own.get(reason, 0) for reason in total["dropped"])
        assert own["read"] == dropped + own["kept"] - own.get("repeated", 0)
    tokens = sum(split["tokens"] for split in manifest["splits"].values())
    assert sum(entry["tokens"] for entry in manifest["inputs"]) == tokens
    assert sum(source["tokens"] for source in manifest["sources"]) == tokens
    if weights:
        assert found["other.txt"]["repeated"] in (1, 2)
        assert 10 < found["30.jsonl"]["weight"] < 50


def test_what_each_step_drops_is_counted_by_file(inputs: Path) -> None:
    pytest.importorskip("rensa")
    for name, source in (("a1.txt", "17"), ("a2.txt", "17"), ("a3.txt", "26")):
        (inputs / name).write_text((inputs / f"{source}.txt").read_text())
    (inputs / "a4.txt").write_text("- one\n- two\n- three")
    chosen = config(inputs, "out", steps=("extract,clean,deduplicate,tokens",), clean=("normalise", "prose"))
    manifest = prepare(chosen)
    found = {Path(entry["file"]).name: entry["documents"] for entry in manifest["inputs"]}
    for step, dropped in manifest["steps"].items():
        if step != "extract":
            assert sum(own.get(step, 0) for own in found.values()) == sum(dropped["dropped"].values()) > 0
    assert found["a4.txt"] == {"read": 1, "clean": 1, "kept": 0}
    assert found["a1.txt"] == {"read": 1, "deduplicate": 1, "kept": 0}
    assert all(
        own["read"] == own["kept"] + sum(count for kind, count in own.items() if kind not in ("read", "kept"))
        for own in found.values()
    )


def test_errors_name_the_file(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"07\.txt, line 1, is not UTF-8 text"):
        prepare(config(inputs, "out", steps=("extract",), max_bad=0.0))
    (tmp_path / "fails_for_a_test.py").write_text("def tidy(text):\n    return 1 / 0 if '44, 3' in text else text\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"failed at .*in/44\.txt, line 1: ZeroDivisionError"):
        prepare(config(inputs, "out", steps=("extract,clean",), clean=("fails_for_a_test:tidy",)))


@pytest.mark.parametrize("name", ["03.txt", "59.txt"])
def test_a_file_that_changes_while_it_is_read_is_an_error(inputs: Path, name: str) -> None:
    def progress(done: int, total: int, note: str) -> None:
        if note == "extract" and done == 0:
            (inputs / name).write_text("Another text.")

    chosen = dataclasses.replace(config(inputs, "out", steps=("extract",)))
    with pytest.raises(DataError, match=rf"{name} changed while it was read"):
        prepare(chosen, progress)
