"""The error analysis of a fine-tuning run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import Outline, folder, page, row
from scipy.stats import rankdata
from sklearn.metrics import precision_recall_fscore_support

from lambert.tasks.scores import examples
from lambert.tasks.scores.examples import EXAMPLES, Examples
from lambert.tasks.scores.formulas import Formula
from lambert.verbs.report.errors import by_length, question_word

HOSTILE = "<script>alert(1)</script>{{ 7 * 7 }}"
ACCURACY = {"accuracy": Formula("mean", ("correct",))}


def classified(labels: list[str], size: int = 200) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    rows = []
    for number in range(size):
        truth, found = (labels[int(draw.integers(len(labels)))] for _ in range(2))
        found = truth if draw.random() < 0.5 else found
        kept = {"text": f"{HOSTILE} text {number}", "tokens": 5 + number % 20, "truth": truth, "prediction": found}
        rows.append({**kept, "correct": int(truth == found), "probability": 0.9, "loss": float(draw.random())})
    return rows


def shown(path: Path, rows: list[dict[str, Any]], formulas: dict[str, Formula], task: str = "classify") -> str:
    run = folder(path, [row(10)])
    examples.write(run / EXAMPLES, Examples(rows, formulas, task, "dev.tsv", "0" * 64))
    html = page(run)
    assert "script" not in Outline(html).tags
    assert Outline(html).open == []
    return html


def text_of(html: str) -> str:
    return " ".join(Outline(html).text.split())


def test_labels_have_the_precision_and_recall_of_scikit_learn(tmp_path: Path) -> None:
    labels = ["down", "left", HOSTILE]
    rows = classified(labels)
    text = text_of(shown(tmp_path / "run", rows, ACCURACY))
    truth, found = [one["truth"] for one in rows], [one["prediction"] for one in rows]
    expected = precision_recall_fscore_support(truth, found, labels=labels)
    for label, precision, recall, f1, count in zip(labels, *expected, strict=True):
        assert f"{label} {count} {precision:.3f} {recall:.3f} {f1:.3f}" in text
    counts = [
        str(sum(a == "down" and b == other for a, b in zip(truth, found, strict=True))) for other in sorted(labels)
    ]
    assert f"down {' '.join(counts)}" in text.partition("prediction")[2]
    right = np.mean([one["correct"] for one in rows])
    assert f"expected calibration error {abs(right - 0.9):.3f}" in text
    assert "{{ 7 * 7 }} text" in text


def test_the_worst_examples_are_wrong_and_in_order(tmp_path: Path) -> None:
    rows = classified(["a", "b"])
    html = shown(tmp_path / "run", rows, ACCURACY)
    wrong = sorted((one["loss"], number) for number, one in enumerate(rows, 1) if not one["correct"])[::-1][:10]
    worst = text_of(html).partition("Largest losses")[2]
    places = [worst.index(f"example: {number} ") for _, number in wrong]
    assert places == sorted(places)
    assert worst.count("example: ") == 10


def test_the_largest_confusions_of_many_labels(tmp_path: Path) -> None:
    labels = [f"label {number:02d}" for number in range(15)]
    rows = classified(labels)
    for changed in rows[:30]:
        changed |= {"truth": "label 03", "prediction": "label 07", "correct": 0}
    text = text_of(shown(tmp_path / "run", rows, ACCURACY))
    assert "Largest confusions Truth Prediction Count label 03 label 07 3" in text
    assert "truth \\ prediction" not in text


def test_questions_by_their_word_and_answer(tmp_path: Path) -> None:
    asked = [("How many people?", ["3"], 1.0), ("How many?", [], 0.0), ("Since when?", ["May"], 0.5)]
    rows = [
        {"id": "q", "text": text, "tokens": 9, "truth": truth, "prediction": "3", "f1": f1, "exact_match": f1 // 1}
        for text, truth, f1 in asked
    ]
    text = text_of(shown(tmp_path / "run", rows, {"f1": Formula("percent", ("f1",))}, "squad"))
    assert "how many 2 50.0 when 1 50.0" in text
    assert "in the paragraph 2 75.0 none 1 0.0" in text
    assert "How many? example: 2 truth: no answer prediction: 3 f1: 0.000" in text


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("In what year?", "what"),
        ("Who knew how?", "who"),
        ("At how much?", "how much"),
        ("How old?", "how"),
        ("Name the river whatever.", "other"),
        ("", "other"),
    ],
)
def test_the_question_word(question: str, word: str) -> None:
    assert question_word(question) == word


def test_groups_of_lengths_are_disjoint_and_complete() -> None:
    lengths = np.random.default_rng(1).integers(3, 40, 500).tolist()
    groups = by_length([{"tokens": length} for length in lengths])
    assert sorted(one["tokens"] for _, group in groups for one in group) == sorted(lengths)
    tops = [max(one["tokens"] for one in group) for _, group in groups]
    bottoms = [min(one["tokens"] for one in group) for _, group in groups]
    assert all(top < bottom for top, bottom in zip(tops, bottoms[1:], strict=False))
    assert 3 <= len(groups) <= 5
    assert [name for name, _ in by_length([{"tokens": 7}] * 3)] == ["7"]


def test_tags_are_counted_by_word(tmp_path: Path) -> None:
    pairs = [(["O", "LOC", "LOC"], ["O", "LOC", None]), (["O", "PER"], ["PER", "PER"]), (["O"], ["O"])]
    rows = [
        {
            "text": " ".join(truth), "tokens": len(truth) + 2, "truth": truth, "prediction": found, "words": len(truth),
            "correct": sum(a == b for a, b in zip(truth, found, strict=True)),
        }
        for truth, found in pairs
    ]  # fmt: skip
    text = text_of(shown(tmp_path / "run", rows, {"accuracy": Formula("ratio", ("correct", "words"))}, "tag"))
    assert "LOC 2 1.000 0.500 0.667 PER 1 0.500 1.000 0.667" in text
    assert "wrong tags: LOC as none" in text
    assert "wrong tags: O as PER" in text
    assert "3 1 1.000 4 1 0.500 5 1 0.667" in text


def test_a_run_of_finetune(tuned: Callable[[str], Path], tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [row(10)])
    (run / EXAMPLES).write_bytes((tuned("regress") / EXAMPLES).read_bytes())
    text = text_of(page(run))
    for part in ("16 examples", "By length", "Predictions by truth", "Largest errors"):
        assert part in text


def test_a_search(tuned: Callable[[str], Path], tmp_path: Path) -> None:
    run = shutil.copytree(tuned("embed"), tmp_path / "run")
    kept = examples.read(run / EXAMPLES)
    text = text_of(page(run))
    header = "By length Tokens Examples ndcg 10 mrr 10 recall 10 recall 100 accuracy 1 map 100"
    assert f"{len(kept.rows)} examples {header} " in text
    name, group = by_length(kept.rows)[0]
    means = [np.mean([one[score] for one in group]) for score in kept.formulas]
    assert f"{header} {name} {len(group)} {' '.join(f'{mean:.3f}' for mean in means)}" in text
    worst = text.partition("Lowest nDCG@10")[2]
    poor = [one for one in kept.rows if one["ndcg_10"] < 1.0]
    assert 0 < len(poor) < len(kept.rows)
    assert worst.count("first result: ") == min(10, len(poor))
    values = [float(part.split()[0]) for part in worst.split("ndcg 10: ")[1:]]
    assert values == sorted(round(one["ndcg_10"], 3) for one in poor)[:10]
    lowest = min(poor, key=lambda one: (one["ndcg_10"], one["map_100"]))
    found = f"{lowest['text']} example: {kept.rows.index(lowest) + 1} relevant: {lowest['relevant']} first result: "
    assert found + lowest["prediction"] in worst
    assert "truth: " not in worst
    assert f"Held out, queries {len(kept.rows)} Held out, texts " in text


def test_scored_pairs(tuned: Callable[[str], Path], tmp_path: Path, lambert: Callable[..., Any]) -> None:
    scores = [3.0, 1.0, 2.0, 0.5, 1.5, 0.0]
    texts = ["the king", "the bird", "the green house", "a window near the road", "the old stone", "the boat"]
    rows = [f"the king\t{text}\t{score}\n" for text, score in zip(texts, scores, strict=True)]
    data, run = tmp_path / "pairs.tsv", folder(tmp_path / "run", [row(10)])
    data.write_text("text\ttext_b\tscore\n" + "".join(rows))
    flags = {"data": data, "examples": run / EXAMPLES, "columns__label": "score"}
    done = lambert("evaluate", model=tuned("embed"), **flags)
    assert done.code == 0, done.err
    kept = examples.read(run / EXAMPLES).rows
    assert kept[0]["tokens"] == 8  # both texts, with their special tokens
    cosines = [one["prediction"] for one in kept]
    text = text_of(page(run))
    ranks_N, true_N = (rankdata([-number for number in of]) for of in (cosines, scores))
    apart_N = np.abs(ranks_N - true_N) / 5
    worst = int(apart_N.argmax())
    first = text.partition("Largest differences of ranks the king ")[2]
    assert first.startswith(f"{texts[worst]} example: {worst + 1} truth: ")
    assert f"rank by similarity: {ranks_N[worst]:g} rank by truth: {true_N[worst]:g}" in first.partition("example: ")[2]
    assert first.count("rank by truth: ") == (apart_N > 0).sum()
    table = text.partition("By length Tokens Examples rank difference ")[2].partition("Largest")[0].split()
    counts, means = [int(part) for part in table[1::3]], [float(part) for part in table[2::3]]
    assert sum(counts) == 6
    assert np.average(means, weights=counts) == pytest.approx(apart_N.mean(), abs=1e-3)
    assert "Predicted and true values" in text


def test_damage_is_a_notice_and_a_missing_file_is_silent(tmp_path: Path) -> None:
    assert "Errors" not in text_of(page(folder(tmp_path / "none", [row(10)])))
    rows = classified(["a", "b"], 10)
    rows[3] |= {"tokens": "many"}
    text = text_of(shown(tmp_path / "rows", rows, ACCURACY))
    assert "the rows of examples.jsonl are damaged" in text
    run = folder(tmp_path / "cut", [row(10)])
    (run / EXAMPLES).write_text(json.dumps({"lambert_examples": 1}) + "\n")
    assert "examples.jsonl is damaged: 'scores' is missing" in text_of(page(run))


def test_several_labels_have_the_precision_and_recall_of_scikit_learn(tmp_path: Path) -> None:
    draw, names = np.random.default_rng(3), np.array(["joy", "fear", "rage", "never"])
    truth_NL, found_NL = (draw.random((60, 4)) < share for share in ([0.6, 0.4, 0.2, 0.0], [0.5, 0.5, 0.2, 0.1]))
    rows = [
        {
            "text": "x", "tokens": 3, "truth": names[truth_L].tolist(), "prediction": names[found_L].tolist(),
            "labels_correct": int((truth_L & found_L).sum()), "labels_true": int(truth_L.sum()),
            "labels_predicted": int(found_L.sum()), "correct": 0, "loss": 1.0,
        }
        for truth_L, found_L in zip(truth_NL, found_NL, strict=True)
    ]  # fmt: skip
    f1 = Formula("f1_of_sums", ("labels_correct", "labels_true", "labels_predicted"))
    text = text_of(shown(tmp_path / "run", rows, {"f1_micro": f1}, "multilabel"))
    expected = precision_recall_fscore_support(truth_NL, found_NL, zero_division=0.0)
    listed = text.partition("By label Label Examples Precision Recall F1 ")[2]
    for label, precision, recall, value, count in zip(names, *expected, strict=True):
        assert f"{label} {count} {precision:.3f} {recall:.3f} {value:.3f} " in listed
    assert listed.startswith("joy ")


def test_the_labels_of_a_text_are_listed(tmp_path: Path) -> None:
    row = {"text": "x", "tokens": 3, "labels_correct": 0, "labels_predicted": 0, "correct": 0, "loss": 1.0}
    rows = [{**row, "truth": ["war", "sea"], "prediction": [], "labels_true": 2}]
    f1 = Formula("f1_of_sums", ("labels_correct", "labels_true", "labels_predicted"))
    text = text_of(shown(tmp_path / "run", rows, {"f1_micro": f1}, "multilabel"))
    assert "By label Label Examples Precision Recall F1 " in text
    assert "truth: war, sea" in text
    assert "prediction: no label" in text
    assert "wrong tags" not in text
