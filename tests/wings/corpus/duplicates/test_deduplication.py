import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from small_corpora import written

from lambert.core.errors import UsageError
from lambert.wings.corpus.config import DeduplicateConfig
from lambert.wings.corpus.duplicates import minhash, near, shingles, signatures, spill
from lambert.wings.corpus.duplicates.deduplication import Lists, deduplicate
from lambert.wings.corpus.duplicates.lists import REASONS, apply_drops
from lambert.wings.corpus.parts import GROUP_CHARACTERS, read_documents, read_part, write_part
from lambert.wings.corpus.reading.pieces import Piece

pytest.importorskip("pyarrow")
pytest.importorskip("rensa")

EXACT, NEAR, EMPTIED = REASONS
CHINESE = "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生"


def draw_text(seed: int, words: int = 120, vocabulary: int = 5000) -> str:
    draw = random.Random(seed)
    return " ".join(f"w{draw.randrange(vocabulary)}" for _ in range(words)) + "."


def edited(text: str, share: float, seed: int) -> str:
    """The text with a share of its words replaced."""
    draw = random.Random(seed)
    return " ".join(f"e{draw.randrange(10**6)}" if draw.random() < share else word for word in text.split(" "))


def family(seed: int, words: int = 120, step: float = 0.006) -> list[str]:
    """Documents that are less and less similar to the first one."""
    first = draw_text(seed, words)
    return [first, *(edited(first, step * number, seed + number) for number in range(1, 6))]


def similar_pairs(texts: Iterable[str], threshold: float) -> list[tuple[str, str]]:
    """All pairs with a Jaccard similarity of word 5-grams of at least the threshold."""
    words = {text: re.findall(r"[a-z0-9]+", text.lower()) for text in texts}
    sets = {t: {tuple(own[at : at + 5]) for at in range(max(len(own) - 4, 1))} for t, own in words.items()}
    return [(a, b) for a, b in combinations(sets, 2) if len(sets[a] & sets[b]) >= threshold * len(sets[a] | sets[b])]


def survivors(texts: Sequence[str], threshold: float) -> dict[str, str]:
    """The text that is kept for each text, by comparing all pairs."""
    found = {text: text for text in sorted(set(texts), key=shingles.hash_text)}
    changed = True
    links = similar_pairs(found, threshold)
    while changed:
        changed = False
        for pair in links:
            least = min((found[text] for text in pair), key=shingles.hash_text)
            for text in pair:  # until nothing changes
                changed |= found[text] != least
                found[text] = least
    return found


def write(folder: Path, documents: Iterable[Sequence[str]], key: str) -> tuple[str, Path]:
    """A part of documents, each of one or more pieces."""
    pieces = [
        Piece(text, f"row {number}", last=at == len(document) - 1)
        for number, document in enumerate(documents)
        for at, text in enumerate(document)
    ]
    folder.mkdir(exist_ok=True)
    write_part(folder / f"part-{key}.parquet", [key], pieces)
    return key, folder / f"part-{key}.parquet"


def sampled(lists: Lists) -> Iterator[tuple[str, ...]]:
    """The samples without their places."""
    for reason, samples in lists.record["samples"].items():
        for sample in samples:
            yield reason, sample["hash"], sample["text"], sample.get("survivor", {}).get("text", "")


Run = Callable[..., tuple[Lists, list[str]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Removes duplicates from parts, each a list of texts, and returns the lists and the texts that are left."""

    def run(*parts: Sequence[str], workers: int = 1, work: str = "work", **settings: object) -> tuple[Lists, list[str]]:
        made = [write(tmp_path / "in", [[text] for text in texts], f"{work}{n}") for n, texts in enumerate(parts)]
        config = DeduplicateConfig(**settings)  # type: ignore[arg-type]
        lists = deduplicate(made, tmp_path / work, config, workers, lambda done, total, note: None)
        left = [
            piece.text
            for n, (_, path) in enumerate(made)
            for piece in apply_drops(read_part(path), lists.read_drops(n))
        ]
        return lists, left

    return run


@pytest.mark.parametrize(
    ("threshold", "words", "step"),
    [(0.6, 120, 0.015), (0.8, 120, 0.006), pytest.param(0.95, 800, 0.0015, marks=pytest.mark.slow)],
)
def test_the_result_is_that_of_all_pairs(run: Run, threshold: float, words: int, step: float) -> None:
    texts = [text for seed in range(0, 3000, 50) for text in family(seed, words, step)]
    lists, left = run(texts[:100], texts[100:], threshold=threshold)
    expected = survivors(texts, threshold)
    assert sum(own != kept for own, kept in expected.items()) > 60
    assert set(left) == set(expected.values())
    assert lists.record["pairs"]["compared"] > 20
    assert lists.record["documents"] == len(left)


def test_the_survivor_is_the_text_with_the_smallest_key(run: Run) -> None:
    texts = [edited(draw_text(1, 400), 0.002, seed) for seed in range(8)]
    lists, left = run(texts)
    assert left == [min(texts, key=shingles.hash_text)]
    (samples,) = lists.record["samples"].values()
    assert {entry["survivor"]["text"] for entry in samples} == {left[0][:300]}
    at = texts.index(left[0])
    assert lists.read_drops(0).documents["survivor"].tolist() == [at] * 7
    assert lists.read_drops(0).documents["document"].tolist() == [number for number in range(8) if number != at]


def test_the_result_does_not_depend_on_order_parts_or_processes(run: Run) -> None:
    texts = [text for seed in range(0, 1000, 50) for text in family(seed)] * 2
    lists, left = run(texts)
    for seed, workers in ((1, 1), (2, 2)):
        mixed = random.Random(seed).sample(texts, len(texts))
        cuts = [0, 20 * seed, 20 * seed, 90, len(texts)]  # one part is empty
        parts = [mixed[begin:end] for begin, end in pairwise(cuts)]
        other, same = run(*parts, workers=workers, work=f"work{seed}")
        assert sorted(same) == sorted(left)
        assert other.record["dropped"] == lists.record["dropped"]
        assert [*sampled(other)] == [*sampled(lists)]
        assert other.record["pairs"] == lists.record["pairs"]


def test_small_memory_gives_the_same_lists(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = draw_text(9, 30)
    texts = [text for seed in range(0, 1000, 50) for text in family(seed)]
    texts = [f"{text}\n{line} {number % 40}" for number, text in enumerate(texts)] * 2
    run(texts, paragraphs=True)
    monkeypatch.setattr(spill.Partitions.__init__, "__defaults__", (1 << 10,))
    monkeypatch.setattr(near, "PAIRS", 5)
    monkeypatch.setattr(signatures, "BATCH", 1000)
    run(texts, paragraphs=True, work="small")
    for name in ("documents.bin", "lines.bin"):
        assert (tmp_path / "work/lists" / name).read_bytes() == (tmp_path / "small/lists" / name).read_bytes()
        assert (tmp_path / "work/lists" / name).stat().st_size


def test_exact_duplicates_leave_the_first(run: Run) -> None:
    lists, left = run(["one", "one", ""], ["one", "two", "", "!!", "??"])
    assert left == ["one", "", "two", "", "!!", "??"]
    assert lists.record["dropped"] == {EXACT: 2, NEAR: 0, EMPTIED: 0}
    assert lists.read_drops(1).documents.tolist() == [(0, 0, 0, 0)]


def test_punctuation_capitals_and_white_space_make_no_difference(run: Run) -> None:
    text = draw_text(5)
    lists, left = run([text, text.upper(), text.replace(" ", ",\n"), f"{text} {text}"])
    assert lists.record["dropped"][NEAR] == 3
    assert len(left) == 1


def test_chinese_is_compared_by_characters(run: Run) -> None:
    draw = random.Random(3)
    texts = ["".join(draw.choices(CHINESE, k=300)) for _ in range(30)]
    others = [text[:150] + "新" + text[151:] for text in texts]
    halves = [text[:150] for text in texts]
    _, left = run([*texts, *others, *halves])
    assert len(left) == 60
    assert set(halves) <= set(left)


def test_long_documents_are_compared_whole(tmp_path: Path) -> None:
    begin, one, other = (draw_text(seed, 4000, 10**6) for seed in range(3))
    documents = [[begin, one], [begin, other], [begin], [f"{begin}\n{one} more."], [begin, one, "more."]]
    key, path = write(tmp_path / "in", documents, "a")
    assert len(set(read_documents(path, np.array([1, 4])))) == 5
    config = DeduplicateConfig()
    lists = deduplicate([(key, path)], tmp_path / "work", config, 1, lambda done, total, note: None)
    assert lists.record["documents"] == 3
    left = [piece.text for piece in apply_drops(read_part(path), lists.read_drops(0))]
    assert left.count(other) == 1
    assert sum(one in text for text in left) == 1
    for batch in (1, 10**9):
        records = [own for own, _ in signatures.describe(read_part(path), 100)]
        assert batch
        assert np.concatenate(records)["shingles"].tolist() == [7992, 7992, 3996, 7997, 7992 + 1]


def test_unreadable_documents_are_kept_for_the_next_step(tmp_path: Path) -> None:
    bad = [Piece("", "row 1", error="is bad"), Piece("", "row 2", error="is bad")]
    damaged = [Piece("begun", "row 4", last=False), Piece("", "row 4", error="is damaged")]
    pieces = [*bad, Piece("a b", "row 3"), *damaged, Piece("a b", "row 5")]
    write_part(tmp_path / "part", ["in"], pieces)
    lists = deduplicate([("k", tmp_path / "part")], tmp_path / "work", DeduplicateConfig(), 1, lambda *_: None)
    found = apply_drops(read_part(tmp_path / "part"), lists.read_drops(0))
    assert [replace(piece, id="", source="") for piece in found] == pieces[:-1]


def test_repeated_paragraphs_stay_in_one_document(run: Run) -> None:
    lines = [draw_text(seed, 40) for seed in range(4)]
    texts = [f"title\n\n{lines[0]}\n\n{lines[1]}", f"{lines[2]}\n\n{lines[0].upper()}", f"{lines[3]}\nend\n{lines[3]}"]
    lists, left = run(texts, paragraphs=True)
    first, second = sorted(texts[:2], key=shingles.hash_text)
    removed = "\n".join(line for line in second.split("\n") if line.lower() != lines[0])
    assert sorted(left) == sorted([first, removed, texts[2]])  # a repetition within a document is no business of ours
    assert lists.record["lines_removed"] == 1
    assert run(texts, work="short")[1] == texts


def test_documents_of_repeated_paragraphs_only_are_dropped(run: Run) -> None:
    lines = [draw_text(seed, 40) for seed in range(3)]
    texts = ["\n\n".join(lines[at] for at in own) for own in ((0, 1), (1, 2), (0, 2), (0, 1, 2))]
    lists, left = run(texts, paragraphs=True)
    assert lists.record["dropped"][EMPTIED] == len(texts) - len(left) > 0
    assert lists.record["dropped"][NEAR] == 0
    assert sorted(line for text in left for line in text.split("\n") if line) == sorted(lines)
    assert all(own["survivor"] == own["document"] for own in lists.read_drops(0).documents)


def test_paragraphs_of_dropped_documents_count_for_nothing(run: Run) -> None:
    for seed in range(10):
        text = "\n".join(draw_text(seed + at, 40) for at in range(10))
        _, left = run([text, f"{text} end"], paragraphs=True, work=f"work{seed}")
        assert left in ([text], [f"{text} end"])


def test_only_new_parts_are_read(run: Run, tmp_path: Path) -> None:
    made = partial(written, tmp_path / "work", "**/*")
    texts = [draw_text(seed) for seed in range(10)]
    parts = [write(tmp_path / "in", [[text] for text in own], str(n)) for n, own in enumerate((texts, texts[5:]))]
    arguments = (tmp_path / "work", DeduplicateConfig(), 1, lambda done, total, note: None)
    deduplicate(parts[:1], *arguments)
    before = made()
    deduplicate(parts[:1], *arguments)
    assert made() == before
    assert deduplicate(parts, *arguments).record["documents"] == 10
    after = made()
    assert len(before.items() & after.items()) == 3
    for name in after:
        whole = Path(name).read_bytes()
        Path(name).write_bytes(whole[:-1] + b"?")
        deduplicate(parts, *arguments)
        assert Path(name).read_bytes() == whole, name
    deduplicate(parts[1:], *arguments)
    assert len(made()) == 6


def test_nothing_to_compare(run: Run) -> None:
    assert run()[0].record["documents"] == 0
    assert run([], work="empty")[1] == []
    assert run(["", " \n"], work="blank")[1] == ["", " \n"]
    assert run(["same"] * 50, work="same")[1] == ["same"]


def test_hashes_do_not_depend_on_the_batch() -> None:
    texts = ["A b, c d e f.", "", "word", "他说 the end. «Ünï» don't", "a b c d e f", "ไทย x"]
    words = shingles.find_words(texts)
    hashes, bounds = shingles.hash_shingles(texts, words)
    for number, text in enumerate(texts):
        own, _ = shingles.hash_shingles([text], shingles.find_words([text]))
        assert own.tolist() == hashes[bounds[number] : bounds[number + 1]].tolist()
    assert np.diff(words.bounds_D1).tolist() == [6, 0, 1, 7, 6, 4]
    assert hashes[bounds[0] : bounds[1]].tolist() == hashes[bounds[4] : bounds[5]].tolist()
    assert shingles.count_lines_with_words(shingles.find_words(["a\n\n!\nb c\n", "", "x"])).tolist() == [2, 0, 1]


def test_signatures_have_the_expected_error_and_merge() -> None:
    rng = np.random.default_rng(1)
    for shared, own in ((800, 100), (900, 50), (60, 20)):
        errors = []
        for _ in range(300):
            hashes = rng.integers(0, 1 << 64, shared + 2 * own, dtype=np.uint64)
            first, second = hashes[: shared + own], hashes[own:]
            bounds = np.array([0, len(first), 2 * len(first)])
            found = minhash.compute_signatures(np.concatenate([first, second]), bounds)
            errors.append(minhash.estimate_similarities(found[:1], found[1:])[0] - shared / (shared + 2 * own))
            assert (found.min(axis=0) == minhash.compute_signatures(hashes, np.array([0, len(hashes)]))[0]).all()
        assert abs(np.mean(errors)) < 0.01
        assert np.std(errors) < 0.045


def test_signatures_are_the_same_on_every_machine() -> None:
    texts = [draw_text(seed) for seed in range(50)]
    hashes, bounds = shingles.hash_shingles(texts, shingles.find_words(texts))
    found = minhash.compute_signatures(hashes, bounds)
    assert int(shingles.mix(found.astype(np.uint64)).sum()) == 418133878213159157


def test_bands_follow_from_the_threshold() -> None:
    assert [minhash.choose_band_rows(threshold) for threshold in (0.5, 0.7, 0.8, 0.9, 1.0)] == [3, 4, 6, 10, 16]
    assert [round(minhash.candidate_share(at, 6), 3) for at in (0.5, 0.7, 0.8, 0.9)] == [0.282, 0.928, 0.998, 1.0]


def test_settings_out_of_range_are_refused() -> None:
    for settings in ({"threshold": 0.4}, {"threshold": float("nan")}, {"paragraph_characters": 0}):
        with pytest.raises(UsageError, match="deduplicate"):
            DeduplicateConfig(**settings)  # type: ignore[arg-type]


def test_documents_of_a_part_are_found_in_their_row_groups(tmp_path: Path) -> None:
    long = "a" * (GROUP_CHARACTERS // 2 + 1)
    documents = [["one"], [long, long, "end"], ["two"], [long], ["three"], [long, "end"], ["four"]]
    _, path = write(tmp_path / "in", documents, "a")
    for wanted in ([], [1], [0, 6], [2, 3, 5], list(range(7))):
        found = [piece.text for piece in read_documents(path, np.array(wanted, dtype=np.int64))]
        assert found == [text for number in wanted for text in documents[number]]
