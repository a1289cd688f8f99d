"""Search with vectors: the scores of sentence-transformers, and the order of the results."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambert.core.errors import DataError
from lambert.tasks.vectors import retrieval

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "contrastive.json").read_text())["search"]


def test_scores_are_those_of_sentence_transformers() -> None:
    vectors_TD = np.array(GOLDEN["queries"] + GOLDEN["corpus"])
    units_TD = vectors_TD / np.linalg.norm(vectors_TD, axis=1, keepdims=True)
    relevant = [frozenset(texts) for texts in GOLDEN["relevant"]]
    search = retrieval.Search(range(7), range(7, 157), relevant)
    found = retrieval.scores(retrieval.rankings(units_TD, search), relevant)
    expected = {
        "accuracy_1": GOLDEN["scores"]["accuracy@k"]["1"],
        "recall_10": GOLDEN["scores"]["recall@k"]["10"],
        "recall_100": GOLDEN["scores"]["recall@k"]["100"],
        "ndcg_10": GOLDEN["scores"]["ndcg@k"]["10"],
        "mrr_10": GOLDEN["scores"]["mrr@k"]["10"],
        "map_100": GOLDEN["scores"]["map@k"]["100"],
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_rankings_are_sorted_stable_and_without_the_query() -> None:
    draw = np.random.default_rng(0)
    units_TD = draw.integers(-1, 2, (300, 3)).astype(np.float64)  # many equal scores
    search = retrieval.Search([5, 9], range(300), [frozenset({1}), frozenset({2})], [5, 9])
    for query, ranked in zip(search.queries, retrieval.rankings(units_TD, search), strict=True):
        scores_C = units_TD @ units_TD[query]
        order = sorted((c for c in range(300) if c != query), key=lambda c: (-scores_C[c], c))
        assert ranked.tolist() == order[: retrieval.DEPTH]


def test_documents_with_equal_texts_are_several_and_may_equal_the_query() -> None:
    units_TD = np.eye(3)[[0, 1, 2]]
    search = retrieval.Search([0, 1], [0, 1, 1, 2], [frozenset({0}), frozenset({2})])
    ranked = retrieval.rankings(units_TD, search)
    assert [order.tolist()[:2] for order in ranked] == [[0, 1], [1, 2]]
    assert retrieval.scores(ranked, search.relevant)["mrr_10"] == pytest.approx((1 + 1 / 2) / 2)


def write(folder: Path, **files: str) -> Path:
    (folder / "qrels").mkdir()
    for name, text in files.items():
        path = folder / ("qrels/test.tsv" if name == "qrels" else f"{name}.jsonl")
        path.write_text(text, encoding="utf-8")
    return folder / "qrels" / "test.tsv"


CORPUS = '{"_id": "a", "title": "Rome", "text": "fell"}\n{"_id": "b", "title": "", "text": "rose"}\n'
QUERIES = '{"_id": "1", "text": "what fell?"}\n{"_id": "2", "text": "unjudged"}\n'


def test_judgements_in_the_layout_of_beir(tmp_path: Path) -> None:
    path = write(tmp_path, corpus=CORPUS, queries=QUERIES, qrels="query-id\tcorpus-id\tscore\n1\ta\t1\n1\tb\t0\n")
    assert retrieval.is_judgements(path)
    assert retrieval.read_judgements(path) == ({"a": "Rome fell", "b": "rose"}, {"1": "what fell?"}, {"1": {"a"}})


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("qrels", "query-id", "query_id", "test.tsv: no column 'query-id', .* Did you mean 'query_id'"),
        ("qrels", "corpus-id", "corpus", "test.tsv: no column 'corpus-id', .* Did you mean 'corpus'"),
        ("qrels", "score", "relevance", "test.tsv: no column 'score', .* Known: corpus-id, query-id, relevance"),
        ("qrels", "query-id\tcorpus-id\tscore\n", "", "test.tsv"),
        ("corpus", "_id", "id", "corpus.jsonl:1: no column '_id', .* Did you mean 'id'"),
        ("corpus", "text", "body", "corpus.jsonl:1: no column 'text', .* Known: _id, body, title"),
        ("corpus", '"a"', '""', "corpus.jsonl:1: _id is empty"),
        ("corpus", '"b"', '"a"', "corpus.jsonl:2: _id 'a' occurs twice"),
        ("queries", "_id", "id", "queries.jsonl:1: no column '_id', .* Did you mean 'id'"),
    ],
)
def test_columns_that_beir_does_not_have_are_named(file: str, old: str, new: str, message: str, tmp_path: Path) -> None:
    files = {"corpus": CORPUS, "queries": QUERIES, "qrels": "query-id\tcorpus-id\tscore\n1\ta\t1\n"}
    path = write(tmp_path, **{**files, file: files[file].replace(old, new)})
    with pytest.raises(DataError, match=message):
        retrieval.read_judgements(path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1\tc\t1\n", "test.tsv:2: corpus.jsonl has no text with _id 'c'"),
        ("3\ta\t1\n", "judges the query '3', which queries.jsonl does not have"),
        ("1\ta\t0\n", "has no judgement of 1 or more"),
        ("1\ta\tyes\n", "test.tsv:2: column 'score' holds 'yes', not a finite number"),
    ],
)
def test_wrong_judgements_are_named(rows: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, corpus=CORPUS, queries=QUERIES, qrels="query-id\tcorpus-id\tscore\n" + rows)
    with pytest.raises(DataError, match=message.replace("[", r"\[")):
        retrieval.read_judgements(path)
