from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambert.tasks.squad.score import (
    best_threshold,
    normalise,
    normalise_mlqa,
    score_pairs,
    score_v1,
    score_v2,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The U.S.", "us"),
        ("state-of-the-art", "stateoftheart"),
        ("$5.00", "500"),
        ("“A” – the  an\tend", "“ ” – end"),
        ("the", ""),
        ("An Athlete", "athlete"),
    ],
)
def test_normalised(text: str, expected: str) -> None:
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("golds", "predicted", "v1", "v2"),
    [
        (["the cat"], "cat", (1, 1), (1, 1)),
        (["black cat", "cat"], "the cat", (1, 1), (1, 1)),
        (["black cat"], "cat", (0, 2 / 3), (0, 2 / 3)),
        (["cat cat"], "cat", (0, 2 / 3), (0, 2 / 3)),
        (["dog"], "cat", (0, 0), (0, 0)),
        (["the"], "a", (1, 0), (1, 1)),  # both normalise to nothing
        (["the", "cat"], "a", (1, 0), (0, 0)),  # v2 leaves the empty gold out
        (["the"], "cat", (0, 0), (0, 0)),
        ([], "", (0, 0), (1, 1)),
        ([], "cat", (0, 0), (0, 0)),
        (["cat"], "", (0, 0), (0, 0)),
    ],
)
def test_the_versions_differ(
    golds: list[str], predicted: str, v1: tuple[float, float], v2: tuple[float, float]
) -> None:
    assert score_pairs({"q": golds}, {"q": predicted}, "1.1")["q"] == pytest.approx(v1)
    assert score_pairs({"q": golds}, {"q": predicted}, "2.0")["q"] == pytest.approx(v2)


def test_a_missing_prediction_scores_nothing_or_is_left_out() -> None:
    golds = {"a": ["cat"], "b": ["dog"], "c": ["ape"]}
    predictions = {"a": "cat", "b": "cow", "unknown": "dog"}
    assert score_v1(golds, predictions)["exact_match"] == pytest.approx(100 / 3)
    found = score_v2(golds, predictions)
    assert found["exact_match"] == pytest.approx(50.0)
    assert found["questions"] == 2
    assert score_v2(golds, {})["questions"] == 0


def test_published_predictions(golden: dict[str, Any]) -> None:
    """An excerpt of BERT's published predictions for v2.0 and what transformers' copy of the official script says."""
    questions = [qa for paragraph in golden["files"][1]["data"][0]["paragraphs"] for qa in paragraph["qas"]]
    golds = {qa["id"]: [answer["text"] for answer in qa["answers"]] for qa in questions}
    found, expected = score_v2(golds, golden["published"]), golden["published_scores"]
    names = {"exact": "exact_match", "f1": "f1", "total": "questions"}
    for prefix, ours in (("", ""), ("HasAns_", "has_answer_"), ("NoAns_", "no_answer_")):
        for theirs, name in names.items():
            assert found[ours + name] == pytest.approx(expected[prefix + theirs], abs=1e-9)
    nothing = score_v2(golds, dict.fromkeys(golds, ""))
    assert nothing["exact_match"] == nothing["f1"] == pytest.approx(100 * expected["NoAns_total"] / expected["total"])


def test_torchmetrics_agrees_where_no_gold_normalises_to_nothing() -> None:
    from torchmetrics.functional.text import squad

    rng = np.random.default_rng(0)
    words = ["the", "cat", "Dog.", "a", "U.S.", "ape", "an", "—", "owl's", "2,000"]

    def phrase() -> str:
        return " ".join(rng.choice(words, size=int(rng.integers(1, 5))))

    golds = {f"q{n}": [text for text in (phrase(), phrase(), phrase()) if normalise(text)] for n in range(600)}
    golds = {name: texts for name, texts in golds.items() if texts}
    predictions = {name: phrase() if n % 3 else golds[name][0].upper() for n, name in enumerate(golds)}
    found = squad(
        [{"id": name, "prediction_text": text} for name, text in predictions.items()],
        [{"id": name, "answers": {"text": texts, "answer_start": [0] * len(texts)}} for name, texts in golds.items()],
    )
    for ours in (score_v1(golds, predictions), score_v2(golds, predictions)):
        assert ours["exact_match"] == pytest.approx(float(found["exact_match"]), abs=1e-4)
        assert ours["f1"] == pytest.approx(float(found["f1"]), abs=1e-4)


SHARES, NONE = st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 1.0])
ROWS = st.lists(st.tuples(st.integers(-3, 3), SHARES, NONE), min_size=1, max_size=12)


@given(ROWS)
def test_best_threshold_is_that_of_brute_force(rows: list[tuple[int, float, float]]) -> None:
    odds, answered, unanswered = np.array(rows, dtype=np.float64).T

    def mean(threshold: float) -> float:
        return 100.0 * float(np.where(odds > threshold, unanswered, answered).mean())

    score, threshold = best_threshold(odds, answered, unanswered)
    assert score == pytest.approx(max(mean(at) for at in [odds.min() - 1.0, *odds]))
    assert mean(threshold) == pytest.approx(score)


MLQA = [
    ("zh", "成都市。", "四川省成都市", "成 都 市", 2 / 3),
    ("zh", "1980年 的 Tesla", "1980年的tesla", "1980 年 的 tesla", 1.0),
    ("zh", "。", "，", "", 0.0),
    ("de", "Die Römer", "den Römern, der Römer", "römer", 2 / 3),
    ("de", "„der Bahnhof“", "Bahnhof", "bahnhof", 1.0),
    ("es", "la Casa de los Ángeles", "casa de Ángeles", "casa de ángeles", 1.0),
    ("vi", "của Việt Nam", "việt nam", "việt nam", 1.0),
    ("ar", "الكتاب", "كتاب", "كتاب", 1.0),
    ("hi", "क।ख", "कख", "कख", 1.0),
]
"""Language, prediction, gold answer; and the normalised prediction and F1 of mlqa_evaluation_v1.py."""


@pytest.mark.parametrize(("language", "predicted", "gold", "expected", "f1"), MLQA)
def test_other_languages_score_as_mlqa(language: str, predicted: str, gold: str, expected: str, f1: float) -> None:
    assert normalise_mlqa(predicted, language) == expected
    found = score_v1({"q": [gold]}, {"q": predicted}, language)
    assert found["f1"] == pytest.approx(100 * f1)
    same = normalise_mlqa(predicted, language) == normalise_mlqa(gold, language)
    assert found["exact_match"] == (100.0 if same else 0.0)
    found = score_v2({"q": [gold]}, {"q": predicted}, language)
    assert found["exact_match"] == (100.0 if same else 0.0)
