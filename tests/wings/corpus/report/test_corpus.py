"""The report about a prepared corpus: its numbers, what it does with hostile text, and its samples."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from run_folders import Outline, folder, page

from lambert.core.errors import DataError
from lambert.core.shards import Split
from lambert.data.batch_sizes import BatchSizes
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.report import corpus
from lambert.wings.corpus.report import inputs as corpus_inputs
from lambert.wings.corpus.report import packing as corpus_packing
from lambert.wings.corpus.report import sample as corpus_sample

HOSTILE = "<script>alert(1)</script> <img src=x> {{ 7 * 7 }}"
RECIPES = Path(__file__).parents[4] / "recipes"


def texts(count: int = 60) -> list[str]:
    def text(n: int) -> str:
        lines = (
            f"The river is {n} miles long, and {n + m} houses are near. Nobody lives in {m}." for m in range(n % 7)
        )
        return "\n\n".join([f"The town number {n} has a river.", *lines])

    return [text(n) for n in range(count)]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of one pass, with a duplicate, a short and an unreadable document."""
    root = tmp_path_factory.mktemp("single")
    rows = [json.dumps({"text": text}) for text in [*texts(), texts()[3], "Hi."]]
    (root / "rows.jsonl").write_text("\n".join([*rows, '{"text": 1}']) + "\n")
    config = PrepareConfig((root / "rows.jsonl",), root / "corpus", vocabulary=150, max_bad=0.5, heldout=0.1)
    prepare(config)
    return config.out


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of three steps with documents that a filter drops or changes."""
    root = tmp_path_factory.mktemp("stepped") / "<b>x"
    root.mkdir()
    rows = [json.dumps({"text": text}) for text in [*texts(), HOSTILE, HOSTILE + " more", "A  cat   sat on a mat."]]
    (root / "rows.jsonl").write_text("\n".join(rows) + "\n")
    config = PrepareConfig(
        (root / "rows.jsonl",), root / "corpus", steps=("extract,clean,tokens",), clean=("normalise", "prose"),
        vocabulary=150, min_tokens=1,
    )  # fmt: skip
    prepare(config)
    return config.out


def test_the_page_of_a_single_pass(single: Path, tmp_path: Path) -> None:
    html = page(single)
    text = " ".join(Outline(html).text.split())
    split = Split(single)
    for expected in (
        f"Tokens {split.tokens:,}", f"{len(split.ends):,}", "exact duplicate 1", "fewer than 8 tokens 1",
        "unreadable 1", "line 63", "Tokens of a document", "Tokens of a sentence", "Most frequent pieces",
        "bert-base-128 pairs 128", "rows.jsonl", "vocabulary 150", "from 1 file",
        f"rows.jsonl 1 60 {sum(Split(single, name).tokens for name in ('train', 'heldout')):,} 100.0% 0.000%",
    ):  # fmt: skip
        assert expected in text, expected
    assert re.search(r"Input Read Unreadable Short Exact duplicate Kept Tokens \S*rows\.jsonl 63 1 1 1 60 ", text), text
    assert "Samples" not in text
    assert "Curves" not in text
    assert "Computed from a sample" not in text


def test_it_stands_alone_and_shows_hostile_text_as_text(stepped: Path) -> None:
    html = page(stepped)
    outline = Outline(html)
    assert outline.open == []
    assert not {"script", "link", "img", "iframe", "object", "b"} & set(outline.tags)
    assert "http" not in html
    assert "{{ 7 * 7 }}" in html
    text = " ".join(outline.text.split())
    assert "prose 2" in text  # dropped
    assert "Kept, 10" in text
    assert "prose, 2" in text  # samples
    assert "changed by normalise 1" in text
    assert re.search(r"extract 63 .*clean 61 ", text)


def test_duplicates_are_beside_the_document_that_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("rensa")
    words = " ".join(f"The house {n} of the street has a door and {n * 7} windows." for n in range(60))
    pair = [f"{words} <i>Here</i> it ends.", f"{words} There it ends."]
    rows = [*(f"{n} {text}" for n, text in enumerate(texts()) if n % 7 == 6), *pair]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    steps = ("extract,deduplicate,tokens",)
    prepare(PrepareConfig((tmp_path / "rows.jsonl",), tmp_path / "corpus", steps=steps, vocabulary=150))
    ((reason, (sample,)),) = [own for own in corpus.read(tmp_path / "corpus", "corpus").samples if len(own[1]) == 1]
    assert reason == "near duplicates"
    assert {sample["text"], sample["survivor"]["text"]} == {text[:300] for text in pair}
    assert {sample["place"], sample["survivor"]["place"]} == {f"line {len(rows) - 1}", f"line {len(rows)}"}
    outline = Outline(page(tmp_path / "corpus"))
    assert outline.open == []
    text = " ".join(outline.text.split())
    assert re.search(r"near duplicates, 1 .*line \d+ The house 0 .*kept, similarity \d+% .*line \d+ The house 0 ", text)


def test_the_counts_after_each_step(stepped: Path, single: Path) -> None:
    manifest = json.loads((stepped / "manifest.json").read_text())
    bars = corpus.read(stepped, "corpus").bars
    assert [bar.label for bar in bars] == ["extract", "clean", "tokens"]
    assert [bar.documents for bar in bars] == [63, 61, manifest["documents"]["kept"]]
    assert bars[0].characters is not None
    assert bars[0].characters > (bars[1].characters or 0)
    assert [bar.documents for bar in corpus.read(single, "corpus").bars] == [62, 60]


def test_corpora_and_runs_share_a_page(single: Path, stepped: Path, tmp_path: Path) -> None:
    packing = '[packing]\nmode = "balanced"\nsequence_length = 64\n[train]\nbatch_size = 4\nsteps = 100\n'
    run = folder(tmp_path / "mine", config=packing)
    text = " ".join(Outline(page(run, single, stepped)).text.split())
    assert "Corpus single" in text
    assert "Curves" in text
    assert "mine balanced 64 4 100" in text


def test_a_damaged_corpus_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "tokenizer.json").write_text("{}")
    (tmp_path / "corpus" / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        page(tmp_path / "corpus")


def test_inputs_that_changed_or_are_gone_are_named(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text(f"A document {name} " + "\n".join(texts(9)))
    prepare(
        PrepareConfig((tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"), tmp_path / "corpus", vocabulary=150)
    )
    (tmp_path / "b.txt").write_text("Other.")
    (tmp_path / "c.txt").unlink()
    names = [row[0].rpartition("/")[2] for row in corpus.read(tmp_path / "corpus", "corpus").inputs["rows"]]
    assert names == ["a.txt", "b.txt (has changed)", "c.txt (is gone)"]


def test_a_sample_has_whole_documents_of_all_parts(single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_sample, "STRETCHES", 4)
    split = Split(single)
    whole = corpus_sample.sample_split(split)
    assert whole.share == 1.0
    lengths = np.bincount(np.asarray(split.documents), np.diff(np.asarray(split.ends), prepend=0))
    assert whole.document_lengths.tolist() == lengths.tolist()
    sample = corpus_sample.sample_split(split, sentences=4 * 40)
    assert 0 < sample.share < 1
    assert set(sample.document_lengths.tolist()) <= set(lengths.tolist())
    assert sample.documents[0] == 0
    assert set(np.diff(sample.documents).tolist()) <= {0, 1}
    assert sample.ends[-1] == sample.tokens
    for block in (1 << 20, 100, 7):
        monkeypatch.setattr(corpus_sample, "BLOCK", block)
        counts = corpus_sample.count_pieces(split)
        assert counts.tolist() == np.bincount(split.take(0, split.tokens), minlength=split.vocabulary).tolist()
        assert corpus_sample.count_pieces(split, 500).sum() == 500


def test_a_sample_inside_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(texts(60)))
    prepare(PrepareConfig((tmp_path / "a.txt",), tmp_path / "corpus", vocabulary=150))
    sample = corpus_sample.sample_split(Split(tmp_path / "corpus"), sentences=corpus_sample.STRETCHES * 4)
    assert len(sample.document_lengths) == corpus_sample.STRETCHES
    text = Outline(page(tmp_path / "corpus")).text
    assert "the corpus is one document" in text  # and no pairs can be packed
    assert "mini-laptop" in text
    assert "bert-base-128" not in text


def test_the_documents_of_each_file_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, text in enumerate(texts(6)):
        (tmp_path / f"{number}.txt").write_text(f"The document {number} is about a town. {text}")
    prepare(PrepareConfig((*tmp_path.glob("*.txt"),), tmp_path / "corpus", vocabulary=150))
    rows = corpus.read(tmp_path / "corpus", "corpus").files["rows"]
    assert [row[1:-1] for row in rows] == [["1", "1"]] * 6 + [["6", "6"]]
    monkeypatch.setattr(corpus_inputs, "MOST", 4)
    rows = corpus.read(tmp_path / "corpus", "corpus").files["rows"]
    assert [row[0] for row in rows[4:]] == ["2 more files", "all"]
    assert [row[1] for row in rows[4:]] == ["2", "6"]


def test_padding() -> None:
    lengths = np.array([64] * 32 + [128] * 32)
    to_length, shuffled, by_length = corpus_packing.measure_padding(lengths, 128)
    assert to_length == pytest.approx(0.25)
    assert by_length == 0.0
    assert shuffled == pytest.approx(0.25)


def test_epochs_are_those_of_the_packed_sequences(single: Path) -> None:
    packed = corpus_packing.Packed(corpus_sample.sample_split(Split(single)))
    lengths = packed.lengths("full", 128)
    assert not isinstance(lengths, str)
    assert lengths.sum() == Split(single).tokens + 2 * len(lengths)
    (row,) = [row for row in packed.make_epochs_table(())["rows"] if row[0] == "mini-laptop"]
    assert row[5] == f"{len(lengths):,}"
    assert float(row[-1].replace(",", "")) == pytest.approx(1200 * 128 / len(lengths), rel=0.01)


def test_the_recipes_are_those_of_the_folder() -> None:
    found = set()
    for path in RECIPES.glob("*.toml"):
        values = tomllib.loads(path.read_text())
        if "corpus" in values and "steps" in values["train"]:  # else the recipe says the epochs
            packing, train = values["packing"], values["train"]
            sizes = BatchSizes(train["batch_size"], train.get("first_batch_size", 0), train.get("ramp_steps", 0))
            found.add(
                corpus_packing.Recipe(path.stem, packing["mode"], packing["sequence_length"], sizes, train["steps"])
            )
    assert found == set(corpus_packing.RECIPES)


@pytest.mark.parametrize("lengths", [[1], [7, 7, 7], [1, 2, 300, 20_000], [*range(1, 200)]])
def test_histograms(lengths: list[int]) -> None:
    svg = corpus.draw_histogram("Tokens", np.array(lengths))
    assert "var(--run-0)" in svg
    assert "#fe0" not in svg
    assert dict(corpus.list_quantiles(np.array(lengths)))["longest"] == f"{max(lengths):,}"
