"""Search with vectors: the metrics of rankings, and data in the layout of BEIR."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lambert.core.batch import Ints
from lambert.core.errors import DataError
from lambert.core.registry import nearest
from lambert.tasks.config import Columns
from lambert.tasks.reading.table import read_rows, value_cell
from lambert.tasks.scores import metrics
from lambert.tasks.task import Row, text_of
from lambert.tasks.vectors.similarity import SIMILARITIES

DEPTH = 100
"""Texts of a ranking that metrics consider: average precision the first 100, the others the first 10 or fewer."""
_QUERIES = 1024  # queries that are ranked at once


@dataclass(frozen=True, slots=True)
class Search:
    """Queries, the texts that are searched, and which of these are relevant."""

    queries: Sequence[int]
    """Numbers of texts."""
    corpus: Sequence[int]
    """Numbers of texts; several documents may have the same text."""
    relevant: Sequence[frozenset[int]]
    """For each query, the places in the corpus of what is relevant; none is empty."""
    own: Sequence[int] = ()
    """For each query, the place in the corpus of its own text, which is no result of it, or -1; empty: all are
    results."""


def rankings(vectors_TD: npt.NDArray[Any], search: Search, similarity: str = "dot") -> list[Ints]:
    """Returns for each query the places in the corpus of the `DEPTH` most similar texts, best first. Of equally similar
    texts the first of the corpus comes first.

    Args:
        vectors_TD: Vectors of all texts.
        similarity: A name of `SIMILARITIES`; the inner products of vectors of length 1 are their cosines.
    """
    corpus_CD, compare = torch.from_numpy(vectors_TD[np.asarray(search.corpus)]), SIMILARITIES[similarity]
    found, own = [], search.own or [-1] * len(search.queries)
    for begin in range(0, len(search.queries), _QUERIES):
        part = search.queries[begin : begin + _QUERIES]
        scores_QC = compare(torch.from_numpy(vectors_TD[part]), corpus_CD).numpy()
        for place, scores_C in zip(own[begin : begin + _QUERIES], scores_QC, strict=True):
            order = _best(scores_C, DEPTH + 1)
            found.append(order[order != place][:DEPTH])
    return found


def _best(scores_C: npt.NDArray[Any], count: int) -> Ints:
    """Returns the places of the `count` largest scores, in descending order; of equal ones in their order."""
    if count < len(scores_C):
        least = np.partition(scores_C, len(scores_C) - count)[len(scores_C) - count]
        near = np.flatnonzero(scores_C >= least)
    else:
        near = np.arange(len(scores_C))
    return near[np.argsort(-scores_C[near], kind="stable")][:count]


SCORES = ("ndcg_10", "mrr_10", "recall_10", "recall_100", "accuracy_1", "map_100")
"""The names of the scores of a ranking."""


def scores(ranked: Sequence[Ints], relevant: Sequence[frozenset[int]]) -> dict[str, float]:
    """Returns the mean over the queries of nDCG and MRR of the first 10 results, of recall of the first 10 and 100, of
    the share of first results that are relevant, and of average precision of the first 100, with standard errors.

    Gains are 1 for a relevant text and 0 for another.

    Source: Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", 2002; trec_eval.
    """
    rows = [of_query(order, wanted) for order, wanted in zip(ranked, relevant, strict=True)]
    values = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    found = {name: float(value.mean()) for name, value in values.items()}
    return metrics.with_errors(found, {name: metrics.mean_error(value) for name, value in values.items()})


def of_query(ranked: Ints, relevant: frozenset[int]) -> dict[str, float]:
    """Returns the scores of one query."""
    hits, wanted = np.array([float(text in relevant) for text in ranked.tolist()]), len(relevant)
    discounts = 1 / np.log2(np.arange(2, 12))
    ideal = float(discounts[: min(wanted, 10)].sum())
    first = np.flatnonzero(hits[:10])
    precisions = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return {
        "ndcg_10": float(hits[:10] @ discounts[: len(hits[:10])]) / ideal,
        "mrr_10": 1.0 / (int(first[0]) + 1) if len(first) else 0.0,
        "recall_10": float(hits[:10].sum()) / wanted,
        "recall_100": float(hits.sum()) / wanted,
        "accuracy_1": float(hits[:1].sum()),
        "map_100": float(precisions @ hits) / min(wanted, DEPTH),
    }


def is_judgements(path: Path) -> bool:
    """Returns whether `path` is a file of relevance judgements in the layout of BEIR: FOLDER/qrels/NAME.tsv, beside
    FOLDER/corpus.jsonl and FOLDER/queries.jsonl."""
    return path.parent.name == "qrels" and (path.parent.parent / "corpus.jsonl").exists()


def read_judgements(path: Path) -> tuple[dict[str, str], dict[str, str], dict[str, set[str]]]:
    """Returns the texts of the corpus and of the judged queries by id, and for each query the ids of relevant texts.

    A title precedes its text. Judgements below 1 are ignored. Raises DataError.

    Source: Thakur et al., "BEIR", 2021, section 3 and its code.
    """
    folder = path.parent.parent
    corpus = _texts(folder / "corpus.jsonl")
    relevant: dict[str, set[str]] = {}
    names = Columns(text="query-id", text_b="corpus-id", label="score")
    for place, row in read_rows(path, names):
        _check_columns(row, ("query-id", "corpus-id", "score"), str(path))
        query, text = (str(row.get(name, "")) for name in ("query-id", "corpus-id"))
        if text not in corpus:
            raise DataError(f"{place}: corpus.jsonl has no text with _id {text!r}.")
        if value_cell(row, "score", place) >= 1:
            relevant.setdefault(query, set()).add(text)
    if not relevant:
        raise DataError(f"{path} has no judgement of 1 or more, so there is nothing to find.")
    queries = _texts(folder / "queries.jsonl")
    if (missing := next((query for query in relevant if query not in queries), None)) is not None:
        raise DataError(f"{path} judges the query {missing!r}, which queries.jsonl does not have.")
    return corpus, {query: queries[query] for query in relevant}, relevant


def _texts(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, row in read_rows(path, Columns()):
        _check_columns(row, ("_id", "text"), place)
        title, number = row.get("title"), str(row["_id"])
        if not number or number in found:
            raise DataError(f"{place}: {'_id is empty' if not number else f'_id {number!r} occurs twice'}.")
        text = text_of(row, "text", place)
        found[number] = f"{title} {text}" if isinstance(title, str) and title else text
    return found


def _check_columns(row: Row, names: Sequence[str], place: str) -> None:
    """Raises DataError, with the nearest name, if a row of a file of BEIR lacks one of these columns."""
    if lacking := next((name for name in names if name not in row), ""):
        close = nearest(lacking, [*row])
        raise DataError(f"{place}: no column {lacking!r}, which files in the layout of BEIR have.{close}")


def of_pairs(texts_NG: Ints) -> Search:
    """Returns the search of each anchor of pairs or triplets [N, G] for its positives, among all other texts."""
    relevant: dict[int, set[int]] = {}
    for anchor, positive in texts_NG[:, :2].tolist():
        if anchor != positive:
            relevant.setdefault(anchor, set()).add(positive)
    corpus = np.unique(texts_NG[:, 1:]).tolist()
    places = {text: place for place, text in enumerate(corpus)}
    wanted = [frozenset(places[text] for text in found) for found in relevant.values()]
    return Search([*relevant], corpus, wanted, [places.get(query, -1) for query in relevant])
