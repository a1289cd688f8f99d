import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lambert.core.errors import DataError, UsageError
from lambert.corpus import parts, stages
from lambert.corpus.config import PrepareConfig
from lambert.corpus.pipeline import prepare
from lambert.corpus.readers import PIECE, Piece

pytest.importorskip("pyarrow")

WORDS = "the river runs under an old stone bridge near the quiet road to town"


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A file with a row that cannot be read, one of articles, and a damaged one."""
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [{"text": f"{WORDS} {number}."} for number in range(300)]
    lines = [json.dumps(row) for row in rows]
    lines[7] = '{"text": 3}'
    (folder / "b.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "c.txt").write_text('<doc id="1" title="Town">\nTown\n\nThe town is small.\n</doc>\n', encoding="utf-8")
    packed = gzip.compress("\n".join(json.dumps({"text": f"line {n} {WORDS}"}) for n in range(99)).encode(), mtime=0)
    (folder / "d.jsonl.gz").write_bytes(packed[:-40])
    return folder


def config(inputs: Path, out: str, **settings: Any) -> PrepareConfig:
    fixed: dict[str, Any] = {"vocabulary": 120, "max_bad": 0.5, "workers": 1, "min_tokens": 2}
    return PrepareConfig(input=(inputs,), out=inputs.parent / out, **fixed | settings)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def made(folder: Path) -> dict[str, tuple[int, int]]:
    """The inode and time of each part, which change when the part is written again."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in sorted(folder.glob("*.parquet"))}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_steps_give_the_bytes_of_the_single_pass(inputs: Path, workers: int) -> None:
    long = f"{WORDS}.\n\n" * (2 * PIECE // len(WORDS))  # is read in several pieces
    (inputs / "a.txt").write_text(long, encoding="utf-8")
    prepare(config(inputs, "single"))
    prepare(config(inputs, "stepped", steps=("extract", "tokens"), workers=workers))
    assert content(inputs.parent / "single") == content(inputs.parent / "stepped")


def test_parts_do_not_depend_on_the_number_of_workers(inputs: Path) -> None:
    for workers in (1, 3):
        prepare(config(inputs, f"out{workers}", steps=("extract,clean",), clean=("normalise",), workers=workers))
    assert content(inputs.parent / "out1.work") == content(inputs.parent / "out3.work")


def test_a_step_that_is_done_is_not_repeated_and_a_new_file_is_added(inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract",))
    first = prepare(chosen)["steps"]["extract"]
    before = made(chosen.work_folder / "extract")
    (inputs / "e.txt").write_text(f"{WORDS}, and back.", encoding="utf-8")
    counts = prepare(chosen)["steps"]["extract"]
    after = made(chosen.work_folder / "extract")
    assert after.items() > before.items()
    assert len(after) == len(before) + 1
    assert counts["documents"] == first["documents"] + 1
    assert counts["unreadable"] == 2  # a row without text, and the damage


def test_what_is_stale_or_damaged_is_made_again(inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract", "clean"), clean=("normalise",))
    prepare(chosen)
    whole = content(chosen.work_folder)
    (chosen.work_folder / "extract" / "part-00001.parquet").write_bytes(b"PAR1")
    (chosen.work_folder / "clean" / "part-00002.json").write_text("{}")
    (chosen.work_folder / "clean" / "part-00009.parquet").write_bytes(b"of an input that is gone")
    before = made(chosen.work_folder / "clean")
    prepare(chosen)
    assert content(chosen.work_folder) == whole
    after = made(chosen.work_folder / "clean")
    assert {name for name in after if after[name] != before[name]} == {"part-00002.parquet"}
    extracted = made(chosen.work_folder / "extract")
    prepare(dataclasses.replace(chosen, clean=("normalise", "prose")))
    assert made(chosen.work_folder / "extract") == extracted
    assert all(made(chosen.work_folder / "clean")[name] != after[name] for name in after)


def test_every_damage_of_a_part_or_a_record_is_noticed(inputs: Path) -> None:
    for path in ("b.jsonl", "d.jsonl.gz"):
        (inputs / path).unlink()
    chosen = config(inputs, "out", steps=("extract", "clean"), clean=("normalise",))
    counts = prepare(chosen)["steps"]
    whole = content(chosen.work_folder)
    assert len(whole) == 4
    for name, data in whole.items():
        flips = (bytes([*data[:at], data[at] ^ 1, *data[at + 1 :]]) for at in range(0, len(data), len(data) // 20))
        other = whole[next(other for other in whole if other != name)]
        for damaged in (*flips, data[:-2], data[: len(data) // 2], b"", other, None):
            path = chosen.work_folder / name
            path.unlink() if damaged is None else path.write_bytes(damaged)
            assert prepare(chosen)["steps"] == counts, name
            assert content(chosen.work_folder) == whole, name


def test_a_step_without_the_one_before_is_refused(inputs: Path) -> None:
    with pytest.raises(UsageError, match=r"lacks 3 of 3 parts .* Add extract to steps"):
        prepare(config(inputs, "out", steps=("tokens",)))


def test_settings_that_contradict_each_other_are_refused(inputs: Path) -> None:
    for settings, words in (
        ({"steps": ("tokenise",)}, "steps = 'tokenise' is unknown"),
        ({"steps": ("extract", "clean")}, "set clean"),
        ({"clean": ("normalise",)}, "needs steps"),
        ({"steps": ("extract", "clean"), "clean": ("tidy",)}, "clean = 'tidy' is unknown"),
    ):
        with pytest.raises(UsageError, match=words):
            prepare(config(inputs, "out", **settings))


def test_a_corpus_of_cleaned_documents_is_another_corpus(inputs: Path) -> None:
    prepare(config(inputs, "out"))
    with pytest.raises(UsageError, match="was prepared with clean"):
        prepare(config(inputs, "out", steps=("extract", "clean", "tokens"), clean=("normalise",)))


def test_a_part_reads_back_as_it_was_written(tmp_path: Path) -> None:
    pieces = [Piece("a" * parts.GROUP_CHARACTERS, "line 1", last=False), Piece("b", "line 9"), Piece("", "row 3")]
    pieces += [Piece("", "line 12", error="is not UTF-8 text")]
    counts = parts.write_part(tmp_path / "part", "in.txt", pieces)
    assert list(parts.read_part(tmp_path / "part")) == pieces
    assert counts == {"documents": 3, "unreadable": 1, "characters": parts.GROUP_CHARACTERS + 1}


def test_a_part_of_no_documents_can_be_read(tmp_path: Path) -> None:
    assert parts.write_part(tmp_path / "part", "in.txt", [])["documents"] == 0
    assert list(parts.read_part(tmp_path / "part")) == []
    (tmp_path / "other").write_bytes(b"no Parquet")
    with pytest.raises(DataError, match="run its step again"):
        list(parts.read_part(tmp_path / "other"))


def test_versions_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch, inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract",))
    prepare(chosen)
    before = made(chosen.work_folder / "extract")
    monkeypatch.setitem(stages.VERSIONS, "extract", stages.VERSIONS["extract"] + 1)
    prepare(chosen)
    assert not before.items() & made(chosen.work_folder / "extract").items()
