"""Reranking by pairs and by vectors, prompts, OpenAI's format, and the cards of the models."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import saved
from patience import HANGS

import lambert as library
from lambert.wings.serve.json_bodies import encode_list
from tests.support.services import Service, post, serving, texts

pytest.importorskip("fastapi")
pytestmark = pytest.mark.timeout(HANGS)
TEXTS = ["the king found a river near the old road", "a bird", "under the bright house the window walked slowly"]
QUERY = "the old king walked slowly"


@pytest.fixture(scope="module")
def vectors(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of vectors with prompts, as E5."""
    folder = tmp_path_factory.mktemp("vectors")
    rows = [{"anchor": f"the old river {number}", "positive": f"a river {number}"} for number in range(8)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings: dict[str, Any] = {"task__name": "embed", "task__embed__prompt": "find : ", "task__max_length": 32}
    settings |= {"task__embed__prompt_b": "read : ", "train__steps": 2, "train__batch_size": 4}
    library.finetune(init=pretrained, data=folder / "pairs.jsonl", out=folder / "run", **settings)
    return folder / "run"


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of transformers with one number."""
    return saved("bert", "value", tmp_path_factory.mktemp("reranker") / "model")


@pytest.fixture(scope="module")
def service(tuned: Callable[[str], Path], vectors: Path, reranker: Path) -> Iterator[Service]:
    models = (f"e5={vectors}", f"pair={tuned('pair')}", f"value={tuned('regress')}", f"cross={reranker}")
    with serving(*models, precision="float32") as running:
        yield running
        assert running.end() == (0, "")


def test_prompts_of_queries_and_documents(service: Service, vectors: Path) -> None:
    model = library.load(vectors)
    for kind, prompt in ((None, "find : "), ("query", "find : "), ("document", "read : ")):
        found = service.ask("/embed", {"inputs": TEXTS, **({"prompt": kind} if kind else {})})[1]["embeddings"]
        assert np.allclose(found, model.encode(TEXTS, prompt=prompt), atol=1e-5)
    cosines = model.encode(TEXTS, prompt="read : ") @ model.encode(QUERY, prompt="find : ")
    ranking = service.ask("/rerank", {"query": QUERY, "documents": TEXTS})[1]["results"]
    assert [row["index"] for row in ranking] == np.argsort(-cosines).tolist()
    assert [row["score"] for row in ranking] == pytest.approx(sorted(cosines.tolist(), reverse=True), abs=1e-5)
    assert service.ask("/embed", {"inputs": "a", "prompt": "other"})[0] == 422


def test_pairs_are_ranked_by_the_probability_of_the_second_class(
    service: Service, tuned: Callable[[str], Path]
) -> None:
    model = library.load(tuned("pair"))
    second = model.task.config.labels[1]
    scores = [row["probabilities"][second] for row in model([{"one": QUERY, "two": text} for text in TEXTS])]
    status, answer = service.ask("/rerank", {"query": QUERY, "documents": TEXTS, "model": "pair", "top_n": 2})
    assert status == 200
    assert [row["index"] for row in answer["results"]] == np.argsort(scores)[::-1][:2].tolist()
    assert answer["results"][0]["score"] == pytest.approx(max(scores), abs=1e-5)


def test_a_reranker_of_transformers_ranks_by_its_number(service: Service, reranker: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    net, tokenizer = (kind.from_pretrained(reranker) for kind in (AutoModelForSequenceClassification, AutoTokenizer))
    with torch.inference_mode():
        found = [net.eval()(**tokenizer(QUERY, text, return_tensors="pt")).logits.item() for text in TEXTS]
    ranking = service.ask("/rerank", {"query": QUERY, "documents": TEXTS, "model": "cross"})[1]["results"]
    assert [row["index"] for row in ranking] == np.argsort(found)[::-1].tolist()
    assert [row["score"] for row in ranking] == pytest.approx(sorted(found, reverse=True), abs=1e-5)
    inputs = [{"text": QUERY, "text_b": TEXTS[0]}, {"text": QUERY}, QUERY]
    pair, *single = (
        row["value"] for row in service.ask("/predict", {"inputs": inputs, "model": "cross"})[1]["outputs"]
    )
    assert pair == pytest.approx(found[0], abs=1e-5)
    assert single == pytest.approx([single[0]] * 2, abs=1e-5)
    assert abs(single[0] - pair) > 1e-3


def test_a_regression_of_texts_ranks_by_vectors(service: Service, tuned: Callable[[str], Path]) -> None:
    found = library.load(tuned("regress")).encode([QUERY, *TEXTS])
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    ranking = service.ask("/rerank", {"query": QUERY, "documents": TEXTS, "model": "value"})[1]["results"]
    assert ranking[0]["score"] == pytest.approx(float((found[1:] @ found[0]).max()), abs=1e-5)
    assert service.ask("/predict", {"inputs": TEXTS, "model": "value"})[1]["outputs"][0].keys() == {"value"}


def test_what_openais_client_sends(service: Service, vectors: Path) -> None:
    sent = {"input": TEXTS, "model": "e5", "encoding_format": "base64"}
    status, answer = service.ask("/v1/embeddings", sent, {"Authorization": "Bearer any"})
    assert status == 200
    assert (answer["object"], answer["model"]) == ("list", "e5")
    assert [row["index"] for row in answer["data"]] == [0, 1, 2]
    found = np.stack([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in answer["data"]])
    model = library.load(vectors)
    assert np.allclose(found, model.encode(TEXTS), atol=1e-5)
    pieces = [len(encoding.ids) for encoding in model.tokenizer.encode_batch(["find : " + text for text in TEXTS])]
    assert answer["usage"] == {"prompt_tokens": sum(pieces), "total_tokens": sum(pieces)}
    unset = {"input": TEXTS[0], "model": "e5", "encoding_format": None, "dimensions": None}
    assert np.allclose(service.ask("/v1/embeddings", unset)[1]["data"][0]["embedding"], found[0], atol=1e-5)
    cut = service.ask("/v1/embeddings", {"input": TEXTS[0], "dimensions": 8, "user": "u"})[1]["data"][0]["embedding"]
    assert np.linalg.norm(cut) == pytest.approx(1)
    assert len(cut) == 8
    for text in ("", " ", "\u200b"):  # no piece of a word: the prompt and the special tokens
        empty = service.ask("/v1/embeddings", {"input": [text], "encoding_format": "base64"})[1]["data"][0]["embedding"]
        assert np.allclose(np.frombuffer(base64.b64decode(empty), "<f4"), model.encode(text), atol=1e-5)
    listing = service.ask("/v1/models")[1]
    assert [(row["id"], row["object"]) for row in listing["data"]] == [
        (name, "model") for name in ("e5", "pair", "value", "cross")
    ]
    assert listing["data"][0]["created"] > 1.7e9


def test_cards(service: Service) -> None:
    e5, pair, value, cross = service.ask("/models")[1]
    assert (e5["task"], e5["dimensions"], e5["prompts"]) == ("embed", 32, {"query": "find : ", "document": "read : "})
    assert (pair["task"], pair["inputs"], len(pair["labels"])) == ("classify", ["one", "two"], 2)
    assert (value["task"], value["inputs"], value["max_length"]) == ("regress", ["text"], 64)
    assert (cross["task"], cross["inputs"], cross["optional_inputs"]) == ("regress", ["text"], ["text_b"])
    assert [isinstance(card["example"], str) for card in (e5, pair, value, cross)] == [True, False, True, True]
    for card in (e5, pair, value, cross):
        for given in (card["example"], dict.fromkeys(card["inputs"], "a boat")):
            assert service.ask("/predict", {"inputs": given, "model": card["name"]})[0] == 200
        assert card["precision"] == "float32"


def test_numbers_that_are_not_finite_are_null() -> None:
    body = encode_list(
        {"model": "a"}, "outputs", [{"value": float("nan")}, [float("inf"), 0.1], {"\u2028": "\x00"}]
    ).body
    assert json.loads(bytes(body)) == {"model": "a", "outputs": [{"value": None}, [None, 0.1], {"\u2028": "\x00"}]}


def test_a_request_is_answered_in_time_or_refused(tuned: Callable[[str], Path]) -> None:
    long = texts(20_000)
    with serving(tuned("classify"), precision="float32", workers=1, seconds=0.5, max_items=20_000) as service:
        status, answer = service.ask("/embed", {"inputs": long})
        assert (status, "0.5 s" in answer["error"]) == (503, True)
        service.wait_for("lambert_waiting_tokens", lambda tokens: tokens == 0)
        service.wait_for('lambert_refusals_total{reason="expired"}', lambda count: count == 1)
        assert service.end() == (0, "")


def test_too_many_tokens_are_refused_with_the_time_to_wait(tuned: Callable[[str], Path]) -> None:
    long = texts(8000)
    with serving(tuned("classify"), precision="float32", workers=1, max_waiting_tokens=1000, max_items=8000) as service:
        with service.connect() as connection:
            connection.sendall(post("/embed", {"inputs": long}))
            service.wait_for("lambert_waiting_tokens", lambda tokens: tokens > 10_000)
            status, answer = service.ask("/embed", {"inputs": "a"})
            assert (status, "Too much work" in answer["error"]) == (429, True)
        service.wait_for("lambert_waiting_tokens", lambda tokens: tokens == 0)
        assert service.ask("/embed", {"inputs": "a"})[0] == 200
