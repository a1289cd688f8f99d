"""The official scores of SQuAD v1.1 and v2.0, which differ (evaluate-v1.1.py, evaluate-v2.0.py of Rajpurkar et al.).

| | v1.1 | v2.0 |
| --- | --- | --- |
| a question without a prediction | scores 0 | is left out |
| gold answers of articles and punctuation only | kept | left out; "" if none is left |
| F1 if prediction and gold answer have no words | 0 | 1 |

Other languages than English are normalised by the rules of MLQA (mlqa_evaluation_v1.py of Lewis et al. 2020).
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lambert.tasks.scores.examples import Examples, shorten
from lambert.tasks.scores.formulas import Formula
from lambert.tasks.scores.metrics import Floats, binomial_error, mean_error, with_errors

if TYPE_CHECKING:
    from lambert.tasks.squad.text import Question

Golds = Mapping[str, Sequence[str]]
"""The texts of the gold answers by question id; an empty sequence for a question without an answer."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower-cases, removes ASCII punctuation, then English articles, and joins words by single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


_MLQA_ARTICLES = {
    "ar": "ال",
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "hi": "",
    "vi": r"\b(?:của|là|cái|chiếc|những)\b",
    "zh": "",
}
_HAN = re.compile("([\u4e00-\u9fa5])")


def normalise_mlqa(text: str, language: str) -> str:
    """Lower-cases, removes punctuation of all scripts and the articles of the language, and joins words by single
    spaces. Each character of Chinese is a word."""
    plain = "".join(character for character in text.lower() if not _is_punctuation(character))
    if articles := _MLQA_ARTICLES[language]:
        plain = re.sub(articles, " ", plain)
    return " ".join((_HAN.sub(r" \1 ", plain) if language == "zh" else plain).split())


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def normaliser(language: str) -> Callable[[str], str]:
    """Returns the function that normalises answers in this language before they are compared."""
    return normalise if language == "en" else partial(normalise_mlqa, language=language)


def f1(predicted: str, gold: str, *, both_empty: float) -> float:
    """Returns F1 of the bags of words of two normalised texts, or `both_empty` if neither has a word."""
    predicted_words, gold_words = predicted.split(), gold.split()
    if not predicted_words and not gold_words:
        return both_empty
    same = (Counter(predicted_words) & Counter(gold_words)).total()
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted_words), same / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def score_pairs(
    golds: Golds, predictions: Mapping[str, str], version: str, language: str = "en"
) -> dict[str, tuple[float, float]]:
    """Returns (exact match, F1) of each question, from 0 to 1, by the rules of the version."""
    found, words, two = {}, normaliser(language), version != "1.1"
    for name, answers in golds.items():
        if name in predictions:
            predicted, texts = words(predictions[name]), [words(answer) for answer in answers]
            if two:
                texts = [text for text in texts if text] or [""]
            best = max((f1(predicted, text, both_empty=float(two)) for text in texts), default=0.0)
            found[name] = (float(predicted in texts), best)
        elif not two:
            found[name] = (0.0, 0.0)
    return found


def score_v1(golds: Golds, predictions: Mapping[str, str], language: str = "en") -> dict[str, float]:
    """Returns exact_match and f1 in per cent with their standard errors, and the number of questions."""
    return _means(list(score_pairs(golds, predictions, "1.1", language).values()))


def score_v2(golds: Golds, predictions: Mapping[str, str], language: str = "en") -> dict[str, float]:
    """Returns exact_match and f1 in per cent with their standard errors: of all questions with a prediction, of those
    with an answer (has_answer_...) and of those without (no_answer_...)."""
    pairs = score_pairs(golds, predictions, "2.0", language)
    found = _means(list(pairs.values()))
    for prefix, wanted in (("has_answer_", True), ("no_answer_", False)):
        part = _means([pair for name, pair in pairs.items() if bool(golds[name]) is wanted])
        if part["questions"]:
            found |= {prefix + name: value for name, value in part.items()}
    return found


def _means(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    if not pairs:
        return {"exact_match": 0.0, "f1": 0.0, "questions": 0.0}
    exact_N, f1_N = np.array(pairs).T
    exact, share = float(exact_N.mean()), float(f1_N.mean())
    return {
        **with_errors({"exact_match": 100.0 * exact}, {"exact_match": 100.0 * binomial_error(exact, len(pairs))}),
        **with_errors({"f1": 100.0 * share}, {"f1": 100.0 * mean_error(f1_N)}),
        "questions": float(len(pairs)),
    }


def best_threshold(odds_N: Floats, answered_N: Floats, unanswered_N: Floats) -> tuple[float, float]:
    """Returns the best mean score in per cent, and the threshold of the odds above which "no answer" is predicted.

    Of equally good thresholds the lowest is returned; a threshold below all odds predicts no answer for all questions.

    Args:
        odds_N: Score of no answer minus that of the best answer.
        answered_N: Score of each question, from 0 to 1, with its best answer.
        unanswered_N: Score of each question, from 0 to 1, with no answer.
    """
    order = np.argsort(odds_N, kind="stable")
    sorted_N = odds_N[order]
    gains_N = np.cumsum((answered_N - unanswered_N)[order])
    ends = np.flatnonzero(np.append(sorted_N[1:] != sorted_N[:-1], True))
    totals = np.concatenate([[0.0], gains_N[ends]]) + unanswered_N.sum()
    best = int(np.argmax(totals))
    threshold = float(sorted_N[ends[best - 1]]) if best else float(sorted_N[0]) - 1.0
    return 100.0 * float(totals[best]) / len(odds_N), threshold


def golds_of(questions: "Sequence[Question]") -> dict[str, list[str]]:
    """Returns the texts of the gold answers by question id."""
    return {question.id: [text for text, _ in question.answers] for question in questions}


def answer_examples(
    questions: "Sequence[Question]", texts: Mapping[str, str], version: str, language: str = "en"
) -> Examples:
    """Returns the scored examples of answers by question id: rows with id, text (the question), truth (the texts of the
    gold answers), prediction, and exact_match and f1 from 0 to 1."""
    golds = golds_of(questions)
    pairs = score_pairs(golds, texts, version, language)
    rows: list[dict[str, Any]] = [
        {
            "id": question.id, "text": shorten(question.text),
            "truth": [shorten(text) for text in dict.fromkeys(golds[question.id])],
            "prediction": shorten(texts[question.id]),
            "exact_match": pairs[question.id][0], "f1": pairs[question.id][1],
        }
        for question in questions
    ]  # fmt: skip
    return Examples(rows, {name: Formula("percent", (name,)) for name in ("f1", "exact_match")})
