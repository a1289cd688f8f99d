import dataclasses
import gzip
import json
from functools import partial
from hashlib import blake2b
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
from small_corpora import WORDS, small_config, written
from small_corpora import content as all_content

from lambert.core.errors import DataError, UsageError
from lambert.core.lock import lock_folder
from lambert.wings.corpus import stages, workers
from lambert.wings.corpus.filters.decontamination import Decontaminate
from lambert.wings.corpus.filters.gopher import Gopher
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.reading.readers import PIECE, Layout
from lambert.wings.corpus.reading.slices import WHOLE
from lambert.wings.corpus.units import Extent, Unit

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.usefixtures("parts_of_one_file")

config = partial(small_config, max_bad=0.5)
content = partial(all_content, without=("lock.json",))


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


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_steps_give_the_bytes_of_the_single_pass(inputs: Path, workers: int) -> None:
    long = f"{WORDS}.\n\n" * (2 * PIECE // len(WORDS))  # is read in several pieces
    (inputs / "a.txt").write_text(long, encoding="utf-8")
    copyfile(Path(__file__).parents[2] / "golden" / "ltgwiki.xml", inputs / "f.xml")
    single = prepare(config(inputs, "single"))
    assert single["documents"]["passed_over"]
    prepare(config(inputs, "stepped", steps=("extract", "tokens"), workers=workers))
    assert content(inputs.parent / "single") == content(inputs.parent / "stepped")


@pytest.mark.parametrize(
    ("more", "weights"),
    [
        pytest.param((), (), marks=pytest.mark.slow),
        pytest.param(("clean",), (2.5,), marks=pytest.mark.slow),
        pytest.param(("deduplicate",), (0.7,), marks=pytest.mark.slow),
    ],
)
def test_the_step_encode_does_not_change_the_corpus(
    inputs: Path, tmp_path: Path, more: tuple[str, ...], weights: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "deduplicate" in more:
        pytest.importorskip("rensa")
    monkeypatch.setattr("lambert.wings.corpus.tokens.encoded.MARK", 1 << 14)
    long = f"{WORDS}.\n\n" * (2 * PIECE // len(WORDS))  # is read in several pieces
    (inputs / "a.txt").write_text(long, encoding="utf-8")
    copyfile(inputs / "b.jsonl", inputs / "e.jsonl")  # duplicates
    prepare(config(inputs, "learnt"))
    given: dict[str, Any] = {"tokenizer": str(inputs.parent / "learnt")}
    given |= {"clean": ("normalise", "prose") if "clean" in more else (), "weights": weights}
    one = prepare(config(inputs, "one", steps=("extract", *more, "tokens"), **given))
    chosen = config(inputs, "two", steps=("extract", *more, "encode", "tokens"), workers=2, **given)
    assert prepare(chosen)["documents"] == one["documents"]
    assert content(inputs.parent / "one") == content(inputs.parent / "two")
    before = written(chosen.work_folder / "encode")
    assert len(before) == 5
    prepare(dataclasses.replace(chosen, out=tmp_path / "three", work=chosen.work_folder, seed=1))
    assert written(chosen.work_folder / "encode") == before


def test_encode_needs_a_tokenizer(inputs: Path) -> None:
    with pytest.raises(UsageError, match="encode needs a tokenizer"):
        config(inputs, "out", steps=("encode",))


@pytest.mark.slow
def test_parts_do_not_depend_on_the_number_of_workers(inputs: Path) -> None:
    for count in (1, 3):
        prepare(config(inputs, f"out{count}", steps=("extract,clean",), clean=("normalise",), workers=count))
    assert content(inputs.parent / "out1.work") == content(inputs.parent / "out3.work")


@pytest.mark.parametrize("name", ["a.txt", "e.txt"])
def test_a_step_that_is_done_is_not_repeated_and_a_new_file_is_added(inputs: Path, name: str) -> None:
    chosen = config(inputs, "out", steps=("extract",))
    first = prepare(chosen)["steps"]["extract"]
    before = written(chosen.work_folder / "extract")
    (inputs / name).write_text(f"{WORDS}, and back.", encoding="utf-8")
    counts = prepare(chosen)["steps"]["extract"]
    after = written(chosen.work_folder / "extract")
    assert after.items() > before.items()
    assert len(after) == len(before) + 1
    assert counts["documents"] == first["documents"] + 1
    assert counts["unreadable"] == 2  # a row without text, and the damage


def test_a_file_of_another_kind_is_extracted_again(inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract",))
    documents = prepare(chosen)["steps"]["extract"]["documents"]
    (inputs / "b.jsonl").rename(inputs / "b.txt")
    assert prepare(chosen)["steps"]["extract"]["documents"] == documents - 299


def test_other_settings_make_only_their_step_again(inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract", "clean"), clean=("normalise",))
    prepare(chosen)
    extracted, cleaned = (written(chosen.work_folder / step) for step in ("extract", "clean"))
    prepare(dataclasses.replace(chosen, clean=("normalise,prose",)))
    assert written(chosen.work_folder / "extract") == extracted
    assert not written(chosen.work_folder / "clean").items() & cleaned.items()


def test_a_step_that_is_not_named_keeps_its_parts(inputs: Path) -> None:
    prepare(config(inputs, "out", steps=("extract",)))
    before = content(inputs.parent / "out.work" / "extract")
    prepare(dataclasses.replace(config(inputs, "one", steps=("tokens",)), input=(inputs / "b.jsonl",),
                                work=inputs.parent / "out.work"))  # fmt: skip
    assert content(inputs.parent / "out.work" / "extract") == before


def test_the_results_are_not_read_as_inputs(inputs: Path) -> None:
    chosen = config(inputs, "in/out", steps=("extract", "tokens"))
    manifest = prepare(chosen)
    assert prepare(chosen)["manifest_sha256"] == manifest["manifest_sha256"]


def test_the_code_of_a_function_is_part_of_the_key(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    code = tmp_path / "tidy_of_mine.py"
    code.write_text("def tidy(text):\n    return text\n")
    chosen = config(inputs, "out", steps=("extract", "clean"), clean=("tidy_of_mine:tidy",))
    prepare(chosen)
    before = written(chosen.work_folder / "clean")
    prepare(chosen)
    assert written(chosen.work_folder / "clean") == before
    code.write_text("def tidy(text):\n    return text.lower()\n")
    prepare(chosen)
    assert not before.items() & written(chosen.work_folder / "clean").items()


def test_drops_are_counted_by_reason_with_samples(inputs: Path) -> None:
    rows = [f"{WORDS} {number}. " * 9 for number in range(40)] + [f"one {number}" for number in range(30)]
    (inputs / "e.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows), encoding="utf-8")
    chosen = config(inputs, "out", steps=("extract", "clean"), clean=("normalise", "gopher", "prose"))
    chosen = dataclasses.replace(chosen, gopher=Gopher(min_words=14, min_stop_words=0))
    counts = prepare(chosen)["steps"]["clean"]
    few = "gopher: too few words"
    assert counts["dropped"].keys() == {few, "prose"}
    assert counts["dropped"][few] == 30 + 1  # and the article
    assert counts["changed"] == {"normalise": 40}
    assert counts["found"] == {}
    kept, dropped = counts["samples"]["kept"], counts["samples"][few]
    assert len(kept) == 10
    assert len(dropped) == 3 + 1  # at most 3 from a part
    assert [sample["hash"] for sample in kept] == sorted(sample["hash"] for sample in kept)
    every = sorted((blake2b(row.encode(), digest_size=8).hexdigest(), row) for row in rows[40:])
    own = [(sample["hash"], sample["text"]) for sample in dropped if sample["source"].endswith("e.jsonl")]
    assert own == every[:3]
    assert all(len(sample["text"]) <= 300 and sample["place"].startswith("line ") for sample in kept)
    assert prepare(chosen)["steps"]["clean"] == counts


def test_evaluation_files_are_part_of_the_key(inputs: Path, tmp_path: Path) -> None:
    evaluation = tmp_path / "test.txt"
    evaluation.write_text("nothing in common with any of the documents at all", encoding="utf-8")
    settings = {"clean": ("decontaminate",), "decontaminate": Decontaminate((evaluation,), words=9)}
    chosen = config(inputs, "out", steps=("extract", "clean", "tokens"), **settings)
    assert prepare(chosen)["steps"]["clean"]["dropped"] == {}
    before = written(chosen.work_folder / "clean")
    evaluation.write_text(WORDS, encoding="utf-8")
    with pytest.raises(UsageError, match=r"was prepared with decontaminate\.files"):
        prepare(chosen)
    assert not before.items() & written(chosen.work_folder / "clean").items()
    (inputs / "f.txt").write_text("Another text that shares no words with it.", encoding="utf-8")
    counts = prepare(dataclasses.replace(chosen, steps=("extract", "clean")))["steps"]["clean"]
    assert counts["dropped"] == counts["found"]
    assert counts["dropped"]["decontaminate: test.txt"] >= 299
    evaluation.unlink()
    with pytest.raises(DataError, match=r"test\.txt cannot be read"):
        prepare(chosen)


def test_filters_that_lack_something_are_refused(inputs: Path) -> None:
    with pytest.raises(UsageError, match=r"set decontaminate\.files"):
        prepare(config(inputs, "out", steps=("extract", "clean"), clean=("decontaminate",)))
    with pytest.raises(UsageError, match=r"clean = 'gofer' is unknown\. Did you mean 'gopher'"):
        prepare(config(inputs, "out", steps=("extract", "clean"), clean=("gofer",)))


def test_an_input_that_changes_while_it_is_read_is_an_error(inputs: Path, tmp_path: Path) -> None:
    extract = stages.Extract(tmp_path, Layout(), "auto")
    with pytest.raises(DataError, match=r"c\.txt changed while it was read"):
        extract(Unit((Extent(str(inputs / "c.txt"), WHOLE, 9, (1, 2, 3), "0" * 64),), 9, "0" * 16))
    assert not list(tmp_path.glob("*part*"))


def test_unreadable_documents_are_judged_before_any_is_dropped(inputs: Path) -> None:
    prepare(config(inputs, "out", steps=("extract", "clean"), clean=("prose",), max_bad=0.02))
    with pytest.raises(DataError, match=r"b\.jsonl, line 8, .*2 of \d+ documents cannot be read"):
        prepare(config(inputs, "other", steps=("extract",), max_bad=0.001))


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
        ({"steps": ("extract",), "work": inputs.parent / "out"}, "is in the output folder"),
        ({"steps": ("extract",), "work": inputs.parent / "out" / "work"}, "is in the output folder"),
    ):
        with pytest.raises(UsageError, match=words):
            prepare(config(inputs, "out", **settings))


def test_a_corpus_of_cleaned_documents_is_another_corpus(inputs: Path) -> None:
    prepare(config(inputs, "out"))
    with pytest.raises(UsageError, match="was prepared with clean"):
        prepare(config(inputs, "out", steps=("extract", "clean", "tokens"), clean=("normalise",)))


def test_a_folder_in_use_is_refused(inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract",))
    with (
        lock_folder(chosen.work_folder),
        pytest.raises(UsageError, match=r"in use by process .* choose another work folder"),
    ):
        prepare(chosen)


@pytest.mark.parametrize("text", ['{"pid": 1e999}', "[" * 990, "null"])
def test_a_damaged_lock_is_no_obstacle(inputs: Path, text: str) -> None:
    chosen = config(inputs, "out", steps=("extract",))
    chosen.work_folder.mkdir()
    (chosen.work_folder / "lock.json").write_text(text)
    prepare(chosen)


def test_versions_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch, inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract",))
    prepare(chosen)
    before = written(chosen.work_folder / "extract")
    monkeypatch.setitem(stages.VERSIONS, "extract", stages.VERSIONS["extract"] + 1)
    prepare(chosen)
    assert not before.items() & written(chosen.work_folder / "extract").items()


def test_progress_is_told_within_a_part(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "TELL_SECONDS", 0.0)
    size = sum(path.stat().st_size for path in inputs.iterdir())
    notes: dict[str, list[int]] = {}

    def note(done: int, total: int, step: str) -> None:
        assert 0 <= done <= total
        assert total == size or step in (
            "dividing",
            "writing tokens",
            "reading for the vocabulary",
            "learning the vocabulary",
        )
        notes.setdefault(step, []).append(done)

    prepare(config(inputs, "corpus", steps=("extract,clean,tokens",), clean=("normalise",)), note)
    for step in ("hashing inputs", "extract", "clean"):
        assert notes[step] == sorted(notes[step])
        assert notes[step][-1] == size
    assert len(notes["extract"]) > 100
    assert len(notes["clean"]) > 100
    assert notes["extract"][0] == 0
