"""The part of a report about the scored examples of a run: confusions, calibration, groups, worst examples."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lambert.tasks.scores import calibration, metrics
from lambert.tasks.scores.examples import EXAMPLES, Examples
from lambert.tasks.scores.formulas import Formula, numbers, value
from lambert.verbs.report.cells import cell, table
from lambert.verbs.report.curves import INK, RUNS, svg
from lambert.verbs.report.folders import RunContents

Rows = Sequence[Mapping[str, Any]]
Counts = tuple[Counter[str], Counter[str], Counter[str]]
"""How often each label is right, true and predicted."""

MATRIX_LABELS = 12
"""Maximum number of labels of a confusion matrix; with more, the largest confusions are listed instead."""
CONFUSIONS, WORST, LENGTHS, LABELS = 20, 10, 5, 40
"""Maximum numbers of confusions, worst examples, groups of lengths, and labels in a table."""
QUESTION_WORDS = ("what", "who", "whom", "whose", "when", "where", "which", "why", "how many", "how much", "how")
"""Question words; the first in a question is counted."""
_OF_GROUPS = ("mean", "percent", "ratio", "f1_of_sums")
"""Formulas that mean the same in a group of examples as in all of them."""


_WORST_FIRST: Sequence[tuple[str, Sequence[str], Callable[[Mapping[str, Any]], Any]]] = (
    ("Largest losses", ["loss"], lambda row: -float(row["loss"])),
    ("Largest errors", ["squared_error"], lambda row: -float(row["squared_error"])),
    ("Largest differences of ranks", ["rank_difference"], lambda row: -float(row["rank_difference"])),
    # Most queries of a poor model have an nDCG@10 of 0.
    ("Lowest nDCG@10", ["ndcg_10", "map_100"], lambda row: row["ndcg_10"] + row["map_100"] * 1e-6),
    ("Most wrong words", ["words", "correct"], lambda row: row["correct"] - row["words"]),
    ("Lowest F1, longest predictions first", ["f1"], lambda row: float(row["f1"]) - len(str(row["prediction"])) * 1e-9),
)
"""Orders of the examples, the worst first: the first is used whose columns the examples have."""


def pages(runs: Sequence[RunContents]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the values of errors.html for each run with scored examples, and a notice about each whose rows are
    damaged."""
    found, notices = [], []
    for run in runs:
        if run.examples is not None and run.examples.rows:
            try:
                found.append(_page(run.name, _add_ranks(run.examples)))
            except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
                notices.append(f"{run.name}: the rows of {EXAMPLES} are damaged ({error}).")
    return found, notices


def _add_ranks(found: Examples) -> Examples:
    """Returns scored pairs of texts with the ranks of their similarity and of their truth, 1 for the most similar pair,
    and the difference of the ranks, 1 if the most similar pair is taken for the least similar one. Returns other
    examples as they are."""
    if "spearman" not in found.formulas or _has(found.rows, "squared_error"):  # values, not similarities
        return found
    found_N, truth_N = (metrics.ranks(-numbers(found.rows, key)) for key in ("prediction", "truth"))
    apart_N = np.abs(found_N - truth_N) / max(1, len(truth_N) - 1)
    rows = [
        {**row, "rank_by_similarity": rank, "rank_by_truth": true, "rank_difference": apart}
        for row, rank, true, apart in zip(found.rows, found_N.tolist(), truth_N.tolist(), apart_N.tolist(), strict=True)
    ]
    formula = Formula("mean", ("rank_difference",), lower_is_better=True)
    return replace(found, rows=rows, formulas={**found.formulas, "rank_difference": formula})


def _page(name: str, found: Examples) -> dict[str, Any]:
    rows = found.rows
    pairs = _label_pairs(rows)
    return {
        "name": name,
        "data": found.data,
        "count": f"{len(rows):,}",
        "matrix": _matrix(pairs),
        "charts_title": "Calibration" if _has(rows, "probability") else "Predicted and true values",
        "charts": list(_charts(rows)),
        "tables": [block for block in _tables(found, pairs) if block["rows"]],
        **_worst(found),
    }


def _has(rows: Rows, *columns: str) -> bool:
    return all(column in row for row in rows for column in columns)


def _label_pairs(rows: Rows) -> Counter[tuple[str, str]]:
    """Returns how often each (true, predicted) label occurs; of tags, those of words."""
    if _has(rows, "correct", "truth", "prediction") and all(isinstance(row["truth"], str) for row in rows):
        return Counter((str(row["truth"]), str(row["prediction"])) for row in rows)
    if _has(rows, "truth", "prediction", "words"):
        words = (pair for row in rows for pair in zip(row["truth"], row["prediction"], strict=False))
        return Counter((str(true), "none" if found is None else str(found)) for true, found in words)
    return Counter()


def _matrix(pairs: Counter[tuple[str, str]]) -> dict[str, Any] | None:
    """Returns the confusion matrix, each cell with its share of the row in per cent."""
    labels = _labels(pairs)
    if not 0 < len(labels) <= MATRIX_LABELS:
        return None
    totals = {label: sum(pairs[label, other] for other in labels) for label in labels}
    cells = [
        (label, [(f"{pairs[label, other]:,}", round(60 * pairs[label, other] / totals[label])) for other in labels])
        for label in labels
        if totals[label]
    ]
    return {"columns": labels, "rows": cells}


def _labels(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return sorted({label for pair in pairs for label in pair})


def _tables(found: Examples, pairs: Counter[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    labels = _labels(pairs)
    if len(labels) > MATRIX_LABELS:
        wrong = Counter({pair: count for pair, count in pairs.items() if pair[0] != pair[1]})
        rows = [[*pair, f"{count:,}"] for pair, count in wrong.most_common(CONFUSIONS)]
        yield table("Largest confusions", ["Truth", "Prediction", "Count"], rows)
    counts = _counts_of_sets(found.rows) if _has(found.rows, "labels_true") else _counts(pairs)
    yield table("By label", ["Label", "Examples", "Precision", "Recall", "F1"], list(_by_label(*counts)))
    groups: dict[str, Callable[[Mapping[str, Any]], str]] = {}
    if _has(found.rows, "exact_match", "f1"):  # answers to questions
        groups = {"Question word": lambda row: question_word(row["text"])}
        if any(not row["truth"] for row in found.rows):
            groups["Answer"] = lambda row: "in the paragraph" if row["truth"] else "none"
    for name, of in groups.items():
        parted: dict[str, list[Any]] = {}
        for row in found.rows:
            parted.setdefault(of(row), []).append(row)
        largest = sorted(parted.items(), key=lambda group: -len(group[1]))
        yield _scores(f"By {name.lower()}", name, largest, found.formulas)
    if _has(found.rows, "tokens"):
        yield _scores("By length", "Tokens", by_length(found.rows), found.formulas)


def _counts(pairs: Counter[tuple[str, str]]) -> Counts:
    """Returns the counts of the labels of (true, predicted) pairs."""
    right, true, predicted = Counter[str](), Counter[str](), Counter[str]()
    for (label, found), count in pairs.items():
        true[label] += count
        predicted[found] += count
        right[label] += count if label == found else 0
    return right, true, predicted


def _counts_of_sets(rows: Rows) -> Counts:
    """Returns the counts of the labels of examples with several labels. A label that is only predicted is 0 times
    true."""
    right, true, predicted = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        right.update({*row["truth"]} & {*row["prediction"]})
        true.update({label: int(label in row["truth"]) for label in (*row["truth"], *row["prediction"])})
        predicted.update(row["prediction"])
    return right, true, predicted


def _by_label(right: Counter[str], true: Counter[str], predicted: Counter[str]) -> Iterator[list[str]]:
    """Yields label, number, precision, recall and F1 of the most frequent labels."""
    for label, count in true.most_common(LABELS):
        under = (predicted[label], count, (count + predicted[label]) / 2)
        yield [label, f"{count:,}", *(f"{right[label] / number if number else 0.0:.3f}" for number in under)]


def question_word(text: str) -> str:
    """Returns the first question word of a question, or "other"."""
    words = "".join(character if character.isalpha() else " " for character in text.lower()).split()
    for number, word in enumerate(words):
        both = " ".join(words[number : number + 2])
        if both in QUESTION_WORDS or word in QUESTION_WORDS:
            return both if both in QUESTION_WORDS else word
    return "other"


def by_length(rows: Rows) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Returns the rows in groups of about equal size by their number of tokens, with the range of each group."""
    lengths_N = np.array([int(row["tokens"]) for row in rows])
    ends = np.unique(np.quantile(lengths_N, np.arange(1, LENGTHS + 1) / LENGTHS, method="inverted_cdf"))
    groups: list[list[Mapping[str, Any]]] = [[] for _ in ends]
    for row, number in zip(rows, np.searchsorted(ends, lengths_N).tolist(), strict=True):
        groups[number].append(row)
    spans = [(min(int(row["tokens"]) for row in group), int(end)) for group, end in zip(groups, ends, strict=True)]
    names = [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in spans]
    return list(zip(names, groups, strict=True))


def _scores(
    caption: str, what: str, groups: Sequence[tuple[str, Rows]], formulas: Mapping[str, Formula]
) -> dict[str, Any]:
    """Returns the table of the scores of each group of examples."""
    kept = {name: formula for name, formula in formulas.items() if formula.kind in _OF_GROUPS}
    rows = [
        [name, f"{len(group):,}", *(_number(value(group, formula), formula) for formula in kept.values())]
        for name, group in groups
    ]
    return table(caption, [what, "Examples", *(name.replace("_", " ") for name in kept)], rows)


def _number(number: float, formula: Formula) -> str:
    return f"{number:.1f}" if formula.kind == "percent" else f"{number:.3f}"


def _charts(rows: Rows) -> Iterator[dict[str, str]]:
    """Yields the reliability diagram of a classifier, or the true and predicted values of a regression or of scored
    pairs."""
    if _has(rows, "probability", "correct"):
        confidence_N, correct_N = numbers(rows, "probability"), numbers(rows, "correct")
        bins = calibration.reliability(confidence_N, correct_N)
        brier = f", Brier score {numbers(rows, 'brier').mean():.3f}" if _has(rows, "brier") else ""

        def plot(axes: Any) -> None:
            axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle="--", alpha=0.6)
            sizes = 10 + 120 * bins.counts_B / bins.counts_B.max()
            axes.plot(bins.confidence_B, bins.accuracy_B, color=RUNS[0], linewidth=1.2, alpha=0.6)
            axes.scatter(bins.confidence_B, bins.accuracy_B, s=sizes, color=RUNS[0], linewidth=0)
            axes.set_xlim(min(0.5, float(bins.confidence_B.min())) - 0.03, 1.03)
            axes.set_ylim(-0.05, 1.05)
            axes.set_xlabel("probability of the predicted label", color=INK)
            axes.set_ylabel("accuracy", color=INK)

        caption = f"expected calibration error {bins.error:.3f}{brier}"
        yield {"title": "Reliability", "value": caption, "svg": svg("Reliability", plot)}
    elif _has(rows, "squared_error") or _has(rows, "rank_difference"):
        truth_N, found_N = numbers(rows, "truth"), numbers(rows, "prediction")
        chosen_N = np.linspace(0, len(truth_N) - 1, min(len(truth_N), 1000)).astype(np.int64)

        def scatter(axes: Any) -> None:
            if _has(rows, "squared_error"):  # a similarity has another scale than the truth
                ends = [float(truth_N.min()), float(truth_N.max())]
                axes.plot(ends, ends, color=INK, linewidth=1, linestyle="--", alpha=0.6)
            axes.scatter(truth_N[chosen_N], found_N[chosen_N], s=9, color=RUNS[0], alpha=0.5, linewidth=0)
            axes.set_xlabel("truth", color=INK)
            axes.set_ylabel("prediction", color=INK)

        yield {"title": "Predictions by truth", "value": "", "svg": svg("Predictions by truth", scatter)}


def _worst(found: Examples) -> dict[str, Any]:
    """Returns the worst examples and the title of their order."""
    rows = found.rows
    for title, columns, order_of in _WORST_FIRST:
        if _has(rows, *columns):
            order = [float(order_of(row)) for row in rows]
            ranked = sorted(range(len(rows)), key=order.__getitem__)
            worst = [number for number in ranked if _wrong(rows[number])][:WORST]
            return {"worst_title": title, "worst": [_describe(number, rows[number]) for number in worst]}
    return {"worst_title": "", "worst": []}


def _wrong(row: Mapping[str, Any]) -> bool:
    right = row.get("truth") == row.get("prediction")
    return not (right or row.get("f1") == 1.0 or row.get("ndcg_10") == 1.0 or row.get("rank_difference") == 0.0)


def _describe(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the texts of an example and its facts."""
    truth, found = row.get("truth"), row.get("prediction")
    if isinstance(truth, list) and isinstance(found, list) and "words" in row:
        wrong = [f"{a} as {b or 'none'}" for a, b in zip(truth, found, strict=False) if a != b]
        facts = [("wrong tags", ", ".join(wrong))]
    elif isinstance(truth, list) and isinstance(found, list):
        facts = [(name, ", ".join(labels) or "no label") for name, labels in (("truth", truth), ("prediction", found))]
    elif "relevant" in row:
        facts = [("relevant", str(row["relevant"])), ("first result", str(found))]
    else:
        answers = (" / ".join(truth) or "no answer") if isinstance(truth, list) else cell(truth)
        facts = [("truth", answers), ("prediction", cell(found) or "no answer")]
    shares = ("probability", "loss", "f1", "ndcg_10", "recall_100")
    facts += [(key.replace("_", " "), f"{row[key]:.3f}") for key in shares if isinstance(row.get(key), int | float)]
    facts += [
        (key.replace("_", " "), f"{row[key]:,.1f}".removesuffix(".0"))
        for key in ("rank_by_similarity", "rank_by_truth")
        if key in row
    ]
    texts = [str(row[key]) for key in ("text", "text_b") if row.get(key)]
    return {"texts": texts, "facts": [("example", f"{number + 1:,}"), *facts]}
