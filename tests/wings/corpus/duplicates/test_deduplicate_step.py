import json
import random
import re
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from small_corpora import content as all_content
from small_corpora import small_config, stopped

from lambert.core.errors import MachineError, UsageError
from lambert.wings.corpus import stages
from lambert.wings.corpus.config import DeduplicateConfig
from lambert.wings.corpus.duplicates import lists, signatures, spill
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.reading import slices
from lambert.wings.corpus.verbs.prepare import summarize, summarize_steps

pytest.importorskip("pyarrow")
pytest.importorskip("rensa")
pytestmark = pytest.mark.usefixtures("parts_of_one_file")

config = partial(small_config, vocabulary=200, max_bad=0.5, steps=("extract,deduplicate,tokens",))
content = partial(all_content, without=("tokens", "lock.json"))  # which name the output folder

REPEATED = "This sentence is at the end of many pages and says who owns them, when they were written and where. " * 2


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Two files of 60 documents, most of which have a near duplicate in the other file, and one unreadable row."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "ab":
        rows = []
        for number in range(60):
            draw = random.Random(number)
            words = [f"word{draw.randrange(900)}" for _ in range(80)]
            words[number] = name if number < 50 else words[number]
            rows.append(json.dumps({"text": " ".join(words) + "." + f"\n\n{REPEATED}" * (number % 3)}))
        (folder / f"{name}.jsonl").write_text("\n".join([*rows, "{}"]), encoding="utf-8")
    return folder


def test_near_duplicates_are_not_in_the_corpus(inputs: Path) -> None:
    manifest = prepare(config(inputs, "out"))
    assert manifest["documents"]["read"] == 62
    assert manifest["documents"]["kept"] == 60
    counts = manifest["steps"]["deduplicate"]
    assert counts["dropped"] == {"exact duplicates": 10, "near duplicates": 50, "only repeated paragraphs": 0}
    assert counts["documents"] == 62
    assert counts["unreadable"] == 2
    assert manifest["settings"]["deduplicate"]["threshold"] == 0.8
    lines = summarize_steps(manifest["steps"])
    assert any("dropped: 50 near duplicates, 10 exact duplicates" in line for line in lines)
    assert {len(re.match(r"\w+ +", line)[0]) for line in (*lines, summarize(manifest)[0])} == {12}  # type: ignore[index]


def test_repeated_paragraphs_are_removed(inputs: Path) -> None:
    whole = prepare(config(inputs, "whole"))
    manifest = prepare(config(inputs, "out", deduplicate=DeduplicateConfig(paragraphs=True)))
    removed = manifest["steps"]["deduplicate"]["lines_removed"]
    assert removed in (40 * 3 // 2 - 1, 40 * 3 // 2 - 2)  # the document that keeps it may have it twice
    assert manifest["documents"]["kept"] == 60
    before, after = (sum(split["tokens"] for split in values["splits"].values()) for values in (whole, manifest))
    assert after < before - 20 * removed


def test_the_manifest_has_samples_of_what_is_dropped_with_its_survivor(inputs: Path) -> None:
    rows = [REPEATED.strip(), REPEATED.strip() + "\n\n" + "One page of its own has this line at its end. " * 3]
    (inputs / "c.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    manifest = prepare(config(inputs, "out", deduplicate=DeduplicateConfig(paragraphs=True)))
    counts = manifest["steps"]["deduplicate"]
    assert counts["dropped"] == {"exact duplicates": 10, "near duplicates": 50, "only repeated paragraphs": 1}
    samples = counts["samples"]
    assert {reason: len(own) for reason, own in samples.items()} == {
        "exact duplicates": 10, "near duplicates": 10, "only repeated paragraphs": 1,
    }  # fmt: skip
    texts = {
        str(path): [json.loads(line).get("text", "") for line in path.read_text().splitlines()]
        for path in inputs.iterdir()
    }
    every = [text for own in texts.values() for text in own]

    def text_of(sample: dict[str, Any]) -> str:
        found = texts[sample["source"]][int(sample["place"].removeprefix("line ")) - 1]
        assert sample["text"] == found[:300]
        return found

    for reason, own in samples.items():
        for sample in own:
            text = text_of(sample)
            assert sample["hash"] == blake2b(text.encode(), digest_size=8).hexdigest()
            if reason == "only repeated paragraphs":
                assert "survivor" not in sample
                continue
            survivor = text_of(sample["survivor"])
            assert (survivor == text) == (reason == "exact duplicates") == (every.count(text) == 2)
            assert 0.5 < sample["survivor"]["estimate"] <= 1


@pytest.mark.slow
def test_slices_and_processes_make_no_difference(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"deduplicate": DeduplicateConfig(paragraphs=True)}
    one = prepare(config(inputs, "one", **settings))
    prepare(config(inputs, "two", workers=2, **settings))
    assert content(inputs.parent / "one") == content(inputs.parent / "two")
    assert content(inputs.parent / "one.work") == content(inputs.parent / "two.work")
    monkeypatch.setattr(slices, "SLICE", 5000)
    sliced = prepare(config(inputs, "sliced", **settings))
    assert len(list((inputs.parent / "sliced.work" / "extract").glob("*.parquet"))) > 10
    assert sliced["splits"] == one["splits"]
    counts = [dict(manifest["steps"]["deduplicate"]) for manifest in (sliced, one)]
    kept = [{reason: [sample["hash"] for sample in samples] for reason, samples in own.pop("samples").items()}
            for own in counts]  # fmt: skip
    assert kept[0] == kept[1]
    assert counts[0] == counts[1]


def test_a_step_that_was_stopped_continues_to_the_same_bytes(inputs: Path) -> None:
    prepare(config(inputs, "whole"))
    for phase in ("hashing documents", "comparing documents"):
        chosen = config(inputs, "out")
        stopped(chosen, phase)
        assert list((chosen.work_folder / "deduplicate").glob("signatures-*.json"))
        assert not (chosen.work_folder / "deduplicate" / "lists").exists()
    prepare(chosen)
    assert content(inputs.parent / "whole.work") == content(chosen.work_folder)
    assert content(inputs.parent / "whole") == content(chosen.out)


def test_the_step_can_be_run_alone_after_the_others(inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract", "clean"), clean=("normalise",))
    prepare(chosen)
    alone = config(inputs, "out", steps=("deduplicate",), clean=("normalise",))
    assert prepare(alone)["steps"]["deduplicate"]["documents"] == 62
    both = config(inputs, "out", steps=("deduplicate", "tokens"), clean=("normalise",))
    assert prepare(both)["documents"]["kept"] == 60
    work = {"clean": ("normalise",), "work": both.work_folder}
    for steps in ("tokens", "clean,tokens"):
        with pytest.raises(UsageError, match=r"lists as duplicates\. Add deduplicate to steps .*, or extract"):
            prepare(config(inputs, "without", steps=(steps,), **work))
    before = content(both.work_folder)
    without = config(inputs, "without", steps=("extract,clean,tokens",), **work)
    assert prepare(without)["documents"]["kept"] == 110
    assert content(both.work_folder) == before


def test_a_corpus_without_near_duplicates_is_another_corpus(inputs: Path) -> None:
    prepare(config(inputs, "out", steps=("extract,tokens",)))
    with pytest.raises(UsageError, match="was prepared with deduplicate"):
        prepare(config(inputs, "out"))
    prepare(config(inputs, "other"))
    with pytest.raises(UsageError, match="was prepared with deduplicate"):
        prepare(config(inputs, "other", steps=("extract,tokens",), work=inputs.parent / "out.work"))
    with pytest.raises(UsageError, match="was prepared with deduplicate"):
        prepare(config(inputs, "other", deduplicate=DeduplicateConfig(0.7)))


def test_settings_without_the_step_are_refused(inputs: Path) -> None:
    with pytest.raises(UsageError, match="set steps = extract, deduplicate, tokens"):
        config(inputs, "out", steps=(), deduplicate=DeduplicateConfig(0.9))
    with pytest.raises(UsageError, match="set steps = extract, deduplicate, tokens"):
        config(inputs, "out", steps=("encode",), tokenizer="vocab.txt", deduplicate=DeduplicateConfig(0.9))
    config(inputs, "out", steps=("extract",), deduplicate=DeduplicateConfig(0.9))


@pytest.mark.parametrize("written", [2, 5, 8])
def test_a_full_disk_keeps_what_is_complete(inputs: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    prepare(config(inputs, "whole"))
    left, write = written, spill.write

    def full(*given: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise OSError(28, "No space left on device")
        write(*given)

    chosen = config(inputs, "out")
    for module in (spill, signatures, lists):
        monkeypatch.setattr(module, "write", full)
    with pytest.raises(MachineError, match=r"No space left on device\. Complete parts are kept; free space"):
        prepare(chosen)
    prepare(chosen)
    assert content(chosen.work_folder) == content(inputs.parent / "whole.work")


def test_a_corpus_with_more_files_is_that_from_the_beginning(inputs: Path) -> None:
    prepare(config(inputs, "first"))
    given = {
        "tokenizer": str(inputs.parent / "first"),
        "heldout": 0.3,
        "deduplicate": DeduplicateConfig(paragraphs=True),
    }
    for number, text in enumerate(("one more document, which is alone\n" * 3, (inputs / "a.jsonl").read_text())):
        prepare(config(inputs, f"out{number}", work=inputs.parent / "work", **given))
        (inputs / f"c{number}.jsonl").write_text(json.dumps({"text": text}) if "{" not in text else text)
        prepare(config(inputs, f"more{number}", work=inputs.parent / "work", **given))
        prepare(config(inputs, f"whole{number}", **given))
        assert content(inputs.parent / f"more{number}") == content(inputs.parent / f"whole{number}")


def test_new_files_change_the_survivors_but_no_part(inputs: Path) -> None:
    chosen = config(inputs, "out", steps=("extract", "deduplicate"))
    prepare(chosen)
    before = content(chosen.work_folder)
    (inputs / "c.jsonl").write_bytes((inputs / "a.jsonl").read_bytes())
    assert sum(prepare(chosen)["steps"]["deduplicate"]["dropped"].values()) == 120
    after = content(chosen.work_folder)
    changed = {name for name, data in before.items() if after[name] != data}
    assert changed == {f"deduplicate/lists/{name}" for name in ("record.json", "documents.bin")}
    assert "deduplicate" not in stages.VERSIONS  # it makes no parts
